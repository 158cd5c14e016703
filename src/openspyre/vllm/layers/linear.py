"""Linears in plain PyTorch, whole or cut over the cards of a group."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_gather, tensor_model_parallel_all_reduce


class Linear(nn.Module):
    """y = x W^T + b with a whole weight; attributes are those of vLLM's linears."""

    weight: Tensor
    bias: Tensor | None
    quant_config: Any
    quant_method: Any
    skip_bias_add: bool
    return_bias: bool
    tp_size: int
    tp_rank: int

    def forward(self, x: Tensor) -> Any:
        return self._answer(self._product(x, None if self.skip_bias_add else self.bias))

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.quant_config is None:
            return F.linear(x, self.weight, bias)
        y: Tensor = self.quant_method.apply(self, x, bias)
        return y

    def _answer(self, y: Tensor) -> Any:
        """The output, and where the layer is asked for it, the bias that was not added."""
        if not self.return_bias:
            return y
        return y, self.bias if self.skip_bias_add else None


class ColumnLinear(Linear):
    """A linear whose card has some of the rows of W: its share of the outputs."""

    gather_output: bool

    def forward(self, x: Tensor) -> Any:
        y = self._product(x, None if self.skip_bias_add else self.bias)
        if self.gather_output and self.tp_size > 1:
            y = tensor_model_parallel_all_gather(y)
        return self._answer(y)


class RowLinear(Linear):
    """A linear whose card has some of the columns of W: outputs are sums over cards."""

    input_is_parallel: bool
    reduce_results: bool

    def forward(self, x: Tensor) -> Any:
        if not self.input_is_parallel:
            x = x.chunk(self.tp_size, -1)[self.tp_rank]
        once = self.tp_rank == 0 and not self.skip_bias_add  # or the sum would have it many times
        y = self._product(x, self.bias if once else None)
        if self.reduce_results and self.tp_size > 1:
            y = tensor_model_parallel_all_reduce(y)
        return self._answer(y)
