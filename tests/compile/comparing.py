"""Compiled on the card against eager on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code

from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel

TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Values that a test can tell apart: floats around 0, small integers, mixed bools."""
    made = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=made).to(dtype)
    return torch.randn(shape, generator=made).to(dtype)


def moved(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("spyre"), value)


def fallbacks_in(code: Sequence[str]) -> list[str]:
    """Calls in generated code that leave the card's kernels."""
    found = re.findall(r"(?:extern_kernels\.|torch\.ops\.|aten\.)[\w.]+\(", "\n".join(code))
    return sorted(set(found))


def widened(value: Any) -> Any:
    """float16 and bfloat16 arguments as float32: the reference rounds once, at the end."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t

    return torch.utils._pytree.tree_map_only(torch.Tensor, wide, value)


def compare(
    function: Callable[..., Any],
    *args: Any,
    dynamic: bool | None = False,
    fallbacks: Sequence[str] = (),
    launches: int | None = None,
    tolerance: dict[str, float] | None = None,
    wide: bool = False,
) -> list[str]:
    """Assert that the compiled function gives the CPU's results; returns the generated code.

    Args:
        fallbacks: parts of the names of calls that may leave the card.
        launches: how many kernels the graph must launch.
        wide: compare with the function of float32 arguments, cast to the result's dtype.
    """
    torch._dynamo.reset()
    expected = function(*(widened(args) if wide else args))
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    actual, code = run_and_get_code(compiled, *moved(args))
    unwanted = [f for f in fallbacks_in(code) if not any(name in f for name in fallbacks)]
    assert not unwanted, f"left the card: {unwanted}"
    if launches is not None:
        calls = re.findall(r"^    +k\d+\(", "\n".join(code), flags=re.M)
        assert len(calls) == launches, calls
    pairs = zip(
        torch.utils._pytree.tree_leaves(actual),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    )
    for ours, theirs in pairs:
        same(ours, theirs, tolerance)
    return code


def same(ours: Any, theirs: Any, tolerance: dict[str, float] | None = None) -> None:
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    assert ours.device.type == "spyre"
    assert ours.shape == theirs.shape
    close = tolerance or TOLERANCE.get(ours.dtype, {"rtol": 0, "atol": 0})
    torch.testing.assert_close(ours.cpu(), theirs.to(ours.dtype), equal_nan=True, **close)


def kernels_in(code: Sequence[str]) -> list[Kernel]:
    """The kernels that generated code loads."""
    texts = re.findall(r"load_kernel\('''\\\n(.*?)'''\)", "\n".join(code), flags=re.S)
    return [parse_kernel(text.replace("\\\\", "\\").replace("\\'", "'")) for text in texts]


def generated(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> list[str]:
    """The code that compiling a call generates."""
    torch._dynamo.reset()
    _, code = run_and_get_code(torch.compile(function, dynamic=dynamic), *moved(args))
    return code
