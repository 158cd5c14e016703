"""What PyTorch raises for an op that it cannot trace or lower, told from mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._inductor.exc import OperatorIssue
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.frontend.eager_call import SizeSource

_NOT_LOWERED = (
    OperatorIssue,
    GuardOnDataDependentSymNode,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
REFUSED = "PyTorch's check of it refuses these arguments"
"""Of a call that a kernel of PyTorch is to judge (csrc/device/eager.cpp has the same text)."""
# How PyTorch begins what it raises for ops whose shape rules are not written for symbols.
_NO_SYMBOLS = "TensorIterator does not support symbolic shapes"


class NotOneKernel(Exception):
    """The op is no single kernel of the card; the text says why.

    Attributes:
        exact: sizes without which that may be otherwise.
    """

    exact: tuple[tuple[SizeSource, int], ...] = ()


@contextmanager
def what_inductor_does_not_know() -> Iterator[None]:
    """Turns what PyTorch raises for an op that it cannot trace or lower into NotOneKernel."""
    try:
        yield
    except _NOT_LOWERED as error:
        if (own := _own_error(error)) is not None:
            raise own from None
        if any(map(_is_check, _chain(error))):
            raise NotOneKernel(REFUSED) from error
        raise NotOneKernel(f"Inductor cannot lower it: {_first_line(error)}") from error
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if _is_check(error):
            raise NotOneKernel(REFUSED) from error
        if _NO_SYMBOLS not in str(error):
            raise
        raise NotOneKernel("PyTorch's own shape rule of it takes numbers only") from error


def _is_check(error: BaseException) -> bool:
    """Whether torch._check found something wrong: of the arguments, not in a lowering."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    where = trace.tb_frame
    return where.f_globals.get("__name__") == "torch" and where.f_code.co_name.startswith("_check")


def _own_error(error: BaseException | None) -> SpyreError | BrokenInvariant | NotOneKernel | None:
    """What our lowerings raised, for Inductor raises an error of its own in its place."""
    for each in _chain(error):
        if isinstance(each, (SpyreError, BrokenInvariant, NotOneKernel)):
            return each
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:150]}" if lines else type(error).__name__
