"""The arguments of one eager call, as the native side describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import torch


class Form(NamedTuple):
    """A tensor without its values; sizes and strides are examples, except that 0 and 1 stay."""

    dtype: torch.dtype
    on_card: bool
    wrapped: bool  # a Python number that PyTorch made a tensor of
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Number(NamedTuple):
    """A number that is passed at launch."""

    example: float


Source = tuple[int, int]  # (0, tensor), (1, launch scalar)
SizeSource = tuple[int, int, int]  # (0 size or 1 stride, tensor, dim)


Argument = Union[Form, Number, Sequence[Any], Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a leaf."""

    number: int


class Inputs:
    """The leaves of the arguments in order: tensors on the card, and launch scalars."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.leaves: list[Form | Number] = []
        self.arguments = tuple(self._slot(a) for a in arguments)

    def _slot(self, argument: Argument) -> Any:
        match argument:
            case Form() | Number():
                self.leaves.append(argument)
                return Slot(len(self.leaves) - 1)
            case tuple():
                return [self._slot(a) for a in argument]
        return argument

    def filled(self, values: Sequence[Any]) -> list[Any]:
        """The arguments with `values` for the leaves."""

        def fill(argument: Any) -> Any:
            match argument:
                case Slot(number):
                    return values[number]
                case list():
                    return [fill(a) for a in argument]
            return argument

        return [fill(a) for a in self.arguments]
