"""Which ATen ops a model's forward has, from shapes alone: no memory, no arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class NotTraced(Exception):
    """The ops of a forward cannot be told; the text says why."""


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(str(func))
        return func(*args, **(kwargs or {}))


def ops_of(model: nn.Module, inputs: Sequence[Any] | Mapping[str, Any] | None) -> frozenset[str]:
    """The ops of a forward, such as `aten.pow.Tensor_Scalar`.

    Raises:
        NotTraced: nobody says what the model is called with, or it branches on values.
    """
    given = getattr(model, "dummy_inputs", None) if inputs is None else inputs
    if given is None:
        raise NotTraced("give adapt the inputs that the model is called with")
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    device = next((t.device for t in held.values()), None)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        return mode.from_tensor(tensor if device is None else tensor.to(device))

    try:
        weights: dict[str, torch.Tensor] = {k: mode.from_tensor(t) for k, t in held.items()}
        both = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
        with torch.no_grad(), mode, _Ops() as ops:
            torch.func.functional_call(model, weights, both[0], both[1])
    except Exception as error:  # the code of any model
        text = str(error).strip().splitlines()
        raise NotTraced(text[0][:200] if text else type(error).__name__) from None
    return frozenset(ops.found)
