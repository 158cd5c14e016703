"""What depends on an op and on its tensors alone is found once, however often a plan is looked at.

Stages and the looks of a stage give a kernel other plan tables and keep its ops, tensors and
layouts: what was found for the one kernel holds for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

from openspyre.ir.kernel import Kernel, Op, StickLayout, Tensor

_Found = TypeVar("_Found")
_KERNELS = 8  # ops with their tensors that are remembered


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """All of a kernel but its plan; equal where it is the same objects, which never change."""

    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    layouts: Mapping[str, StickLayout]
    limits: Mapping[str, tuple[int, int]]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Tables)
            and self.ops is other.ops
            and self.tensors is other.tensors
            and self.layouts is other.layouts
            and self.limits is other.limits
        )

    def __hash__(self) -> int:
        return hash((id(self.ops), id(self.tensors), id(self.layouts), id(self.limits)))


@lru_cache(maxsize=_KERNELS)
def _known(tables: _Tables) -> dict[tuple[object, str], Any]:
    """What functions gave for ops, by name."""
    return {}


def once_per_op(function: Callable[[Kernel, Op], _Found]) -> Callable[[Kernel, Op], _Found]:
    """The function; it is called once for an op of a kernel and of others that differ in their
    plans. It must not depend on steps, divisions or residency.
    """

    @wraps(function)
    def found(kernel: Kernel, op: Op) -> _Found:
        if kernel.by_name.get(op.name) is not op:
            return function(kernel, op)
        known = _known(_Tables(kernel.ops, kernel.tensors, kernel.layouts, kernel.limits))
        if (function, op.name) not in known:
            known[function, op.name] = function(kernel, op)
        one: _Found = known[function, op.name]
        return one

    return found
