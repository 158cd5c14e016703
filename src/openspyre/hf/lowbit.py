"""Weights of few bits through torchao's own `quantize_`, where its configurations stop at a CUDA
device: int4 that is stored as 4 bits, and fp8 products of fp8 activations.

    quantize_(model, Int4WeightOnly(group_size=64))
    model = torch.compile(model.to("spyre"))

`Int8WeightOnlyConfig`, `Float8WeightOnlyConfig` and `IntxWeightOnlyConfig` of torchao work as they
are. Models may be quantized before or after they move. Needs the package torchao.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.core.config import AOBaseConfig
from torchao.float8.inference import Float8MMConfig
from torchao.quantization import PerRow, PerTensor
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    quantize_affine,
)
from torchao.quantization.quantize_.common import KernelPreference
from torchao.quantization.quantize_.workflows import Float8Tensor, QuantizeTensorToFloat8Kwargs
from torchao.quantization.transform_module import register_quantize_module_handler
from torchao.utils import TorchAOBaseTensor

from openspyre.errors import SpyreError

_HALVES = (64, 32, 16, 8, 4, 2, 1)  # columns of one half of a block: a stick if it can be
_LARGEST = 15


@dataclass
class Int4WeightOnly(AOBaseConfig):  # type: ignore[misc]
    """Weights of linears in 4 bits, asymmetric, two to a byte; activations stay as they are.

    Attributes:
        group_size: neighbours along the input dim that share a scale and a zero point. Linears
            whose input dim is odd or no multiple of it are left alone, as torchao does.
    """

    group_size: int = 128

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise SpyreError(f"group_size must be at least 2, got {self.group_size}")


@dataclass
class Float8DynamicActivation(AOBaseConfig):  # type: ignore[misc]
    """Weights and activations of linears in fp8: products run at the card's fp8 rate.

    Activations are quantized as they come, by the same granularity as weights.

    Attributes:
        granularity: a scale a row, or one a tensor.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
    """

    granularity: PerRow | PerTensor
    dtype: torch.dtype

    def __init__(
        self,
        granularity: PerRow | PerTensor | None = None,
        dtype: torch.dtype = torch.float8_e4m3fn,
    ) -> None:
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise SpyreError(f"dtype must be float8_e4m3fn or float8_e5m2, got {dtype}")
        self.granularity = PerRow() if granularity is None else granularity
        self.dtype = dtype


class Int4Weight(TorchAOBaseTensor):  # type: ignore[misc]
    """A matrix [N, K] of 4-bit codes with a scale and a zero point for each group of a row.

    Attributes:
        qdata: uint8 [N, B, H]: byte h of block b holds column 2*H*b + h in its low half and
            column 2*H*b + H + h in its high one, so that either half lies as it is computed with.
        scale: [N, K / group].
        zero_point: [N, K / group], in the codes' units.
        shape: (N, K).
    """

    tensor_data_names = ["qdata", "scale", "zero_point"]  # noqa: RUF012 - torchao's protocol
    tensor_attribute_names = ["shape"]  # noqa: RUF012

    def __new__(
        cls, qdata: Tensor, scale: Tensor, zero_point: Tensor, shape: tuple[int, int]
    ) -> Int4Weight:
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=scale.dtype, device=qdata.device, requires_grad=False
        )

    def __init__(
        self, qdata: Tensor, scale: Tensor, zero_point: Tensor, shape: tuple[int, int]
    ) -> None:
        super().__init__()
        self.qdata = qdata
        self.scale = scale
        self.zero_point = zero_point

    @classmethod
    def of(cls, weight: Tensor, group: int) -> Int4Weight:
        """Quantizes a matrix [N, K] of floats; K is a multiple of `group` and even."""
        rows, columns = weight.shape
        block = (1, group)
        scale, zero = choose_qparams_affine(
            weight,
            MappingType.ASYMMETRIC,
            block,
            torch.uint8,
            quant_min=0,
            quant_max=_LARGEST,
            scale_dtype=weight.dtype,
            zero_point_dtype=torch.uint8,
        )
        codes = quantize_affine(
            weight, block, scale, zero, torch.uint8, quant_min=0, quant_max=_LARGEST
        )
        half = next(
            h for h in _HALVES if columns % (2 * h) == 0 and (h % group == 0 or group % h == 0)
        )
        low, high = codes.view(rows, -1, 2, half).unbind(2)
        groups = (rows, columns // group)
        packed = low | (high << 4)
        return cls(packed, scale.view(groups), zero.view(groups).to(weight.dtype), (rows, columns))

    def _stable_hash_for_caching(self) -> str:
        """What a cached graph depends on, as AOTAutograd asks it of a tensor's class."""
        parts = (self.qdata, self.scale, self.zero_point)
        kinds = [(str(p.dtype), str(p.device), tuple(p.shape), p.stride()) for p in parts]
        return f"{type(self).__qualname__} {tuple(self.shape)} {kinds}"

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix [N, K] of floats that the codes stand for."""
        rows, columns = self.shape
        groups = self.scale.shape[1]
        halves = torch.stack((self.qdata & _LARGEST, self.qdata >> 4), 2)
        codes = halves.view(rows, groups, columns // groups).to(self.dtype)
        weight = (codes - self.zero_point.unsqueeze(2)) * self.scale.unsqueeze(2)
        return weight.view(rows, columns).to(dtype or self.dtype)


@Int4Weight.implements(torch.ops.aten.linear.default)  # type: ignore[untyped-decorator]
@Int4Weight.implements_torch_function(F.linear)  # type: ignore[untyped-decorator]
def _linear(_func: Any, _types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, weight, *rest = args
    return F.linear(x, weight.dequantize(x.dtype), *rest, **kwargs)


@register_quantize_module_handler(Int4WeightOnly)  # type: ignore[untyped-decorator]
def _in_four_bits(module: nn.Module, config: Int4WeightOnly) -> nn.Module:
    weight = _weight(module)
    columns = weight.shape[1]
    if not weight.numel() or columns % config.group_size or columns % 2:
        return module
    return _with(module, Int4Weight.of(weight, config.group_size))


@register_quantize_module_handler(Float8DynamicActivation)  # type: ignore[untyped-decorator]
def _in_fp8(module: nn.Module, config: Float8DynamicActivation) -> nn.Module:
    weight = Float8Tensor.from_hp(
        _weight(module),
        float8_dtype=config.dtype,
        granularity=config.granularity,
        mm_config=Float8MMConfig(use_fast_accum=False),
        kernel_preference=KernelPreference.TORCH,
        act_quant_kwargs=QuantizeTensorToFloat8Kwargs(
            config.dtype, config.granularity, kernel_preference=KernelPreference.TORCH
        ),
    )
    return _with(module, weight)


def _weight(module: nn.Module) -> Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise SpyreError(
            f"{type(module).__name__} has no weight matrix of floats to quantize; "
            "name the modules that have one by quantize_'s filter_fn"
        )
    return weight.detach()


def _with(module: nn.Module, weight: Tensor) -> nn.Module:
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module
