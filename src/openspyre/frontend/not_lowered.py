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
        raise NotOneKernel(f"Inductor cannot lower it: {_first_line(error)}") from error
    except RuntimeError as error:
        if _NO_SYMBOLS not in str(error):
            raise
        raise NotOneKernel("PyTorch's own shape rule of it takes numbers only") from error


def _own_error(error: BaseException | None) -> SpyreError | BrokenInvariant | NotOneKernel | None:
    """What our lowerings raised, for Inductor raises an error of its own in its place."""
    while error is not None and not isinstance(error, (SpyreError, BrokenInvariant, NotOneKernel)):
        error = error.__cause__ or error.__context__
    return error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:150]}" if lines else type(error).__name__
