"""Worked adapters, of calls and of modules; `spyre adapt check FILE` takes this file.

None is needed: our compiler lowers all. Other compilers for the card did not (`pow` of negative
numbers came out without its sign; a matrix product with the weight as rows had no layout).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM
from transformers.pytorch_utils import Conv1D

from openspyre.hf.adapters import Adapter, Calls, Gap, ModuleClass, Trial
from openspyre.hf.proof_inputs import Case, Floats
from openspyre.hf.weights import fetch


class Cubic(nn.Module):
    """A feed-forward block whose activation is a cube, as in `gelu_new`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.outer = Conv1D(8, 6), Conv1D(6, 8)
        for weight in (self.inner.weight, self.outer.weight):
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y = torch.tanh(y + 0.044715 * torch.pow(y, 3.0)) + y**2
        return self.outer(y)


def cubic() -> tuple[nn.Module, tuple[Tensor]]:
    return Cubic().eval(), (torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(4)),)


def albert() -> tuple[nn.Module, dict[str, Tensor]]:
    """Trained; twelve layers that share their weights."""
    model = AutoModelForMaskedLM.from_pretrained(fetch("rxnmapper"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, model.config.vocab_size, (2, 24), generator=generator)
    return model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def is_cube(base: Any, exponent: Any, **_: Any) -> bool:
    number = isinstance(exponent, (int, float)) and exponent == 3
    return number and isinstance(base, Tensor) and base.is_floating_point()


def cube(base: Tensor, _exponent: float) -> Tensor:
    return base * base * base


POWER = Adapter(
    id="cube-as-products",
    replaces=Calls(("torch:pow", "torch:Tensor.pow", "torch:Tensor.__pow__"), is_cube),
    replacement=cube,
    gap=Gap("aten.pow.Tensor_Scalar", "negative bases lose their sign", "TS #4009"),
    cases=(Case((Floats(("rows", "columns")), 3)), Case((Floats(("rows",)), 3.0))),
    controls={
        "by logarithm": lambda x, n: torch.exp(n * torch.log(x)),
        "of magnitudes": lambda x, n: x.abs() * x.abs() * x.abs(),
        "0 for NaN": lambda x, n: (x * x * x).nan_to_num(0.0, float("inf"), -float("inf")),
    },
    trials=(Trial("a block with a cube", cubic),),
)


def linear(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, Conv1D)
    return functional.linear(x, module.weight.T, module.bias)


CONV1D = Adapter(
    id="conv1d-as-linear",
    replaces=ModuleClass("transformers.pytorch_utils:Conv1D", lambda: Conv1D(5, 4)),
    replacement=linear,
    gap=Gap("aten.addmm.default", "no feasible layout", "TS #3193"),
    cases=(Case((Floats(("batch", "tokens", 4)),)),),
    controls={
        "without its bias": lambda m, x: functional.linear(x, m.weight.T),
        "weight not turned": lambda m, x: functional.linear(x, m.weight.reshape(5, 4), m.bias),
    },
    trials=(Trial("a block with two of them", cubic),),
)


def product(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.Linear)
    return torch.matmul(x, module.weight.mT) + module.bias


LINEAR = Adapter(
    id="linear-as-product",
    replaces=ModuleClass("torch.nn:Linear", lambda: nn.Linear(5, 4)),
    replacement=product,
    gap=Gap("aten.linear.default", "an example for a trained model"),
    cases=(Case((Floats(("batch", "tokens", 5)),)),),
    controls={"without its bias": lambda m, x: x @ m.weight.mT},
    trials=(Trial("ALBERT of rxnmapper", albert, weights="rxnmapper"),),
)
ADAPTERS = (POWER, CONV1D, LINEAR)
