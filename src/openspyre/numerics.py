"""How programs compute: as PyTorch's dtypes say, or as the card's own formats do.

`ieee` (the default): float16, bfloat16 and float32 as PyTorch has them, sums in float32. `card`:
float16 and bfloat16 are DL16 inside the card, sums of such values round as the card's do, and what
silicon does that nobody has published is a switch (docs/numerics.md has the sources).
Numerics belong to a launch, not to a program: the same compiled program runs under both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from openspyre.errors import InvalidSetting

LONGEST_CHUNK = 64
HIGHEST_BIAS = 15


class Mode(Enum):
    """PyTorch's dtypes, or the card's formats."""

    IEEE = "ieee"
    CARD = "card"


class Dl16Round(Enum):
    """What becomes of a value between two DL16 values."""

    NEAREST_UP = "nearest_up"  # ties away from zero: half a step is added to the magnitude
    NEAREST_EVEN = "nearest_even"
    TRUNCATE = "truncate"


class Bf16Round(Enum):
    """How DL16 becomes bfloat16 (toolchains before June 2026 truncated)."""

    NEAREST_EVEN = "nearest_even"
    TRUNCATE = "truncate"


class SumFormat(Enum):
    """What a sum keeps inside a chunk; sums of chunks are added in DL16."""

    DL16 = "dl16"  # products and sums are rounded
    DL16_FUSED = "dl16_fused"  # only sums: a fused multiply-add
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerics of a launch. The switches mean something in mode `card` only.

    Attributes:
        dl16_round: rounding to DL16.
        bf16_out_round: rounding of DL16 to bfloat16 where a tensor leaves the card.
        acc_format: format of sums inside a chunk.
        acc_chunk: terms of a chunk, a power of two up to 64; 0: the whole sum is one chunk, so that
            (fp32, 0) is an accumulator in float32 and (dl16, 0) one that rounds after every term.
        fp8_bias: of the exponents of float8_e4m3fn, 1 to 15; PyTorch's is 7.
    """

    mode: Mode = Mode.IEEE
    dl16_round: Dl16Round = Dl16Round.NEAREST_UP
    bf16_out_round: Bf16Round = Bf16Round.NEAREST_EVEN
    acc_format: SumFormat = SumFormat.DL16
    acc_chunk: int = LONGEST_CHUNK
    fp8_bias: int = 7

    def __post_init__(self) -> None:
        chunk = self.acc_chunk
        if not 0 <= chunk <= LONGEST_CHUNK or chunk & (chunk - 1):
            raise InvalidSetting(
                f"acc_chunk={chunk} means nothing",
                why=f"a chunk has a power of two of terms, at most {LONGEST_CHUNK}",
                hint="use 0 for one chunk as long as the sum",
            )
        if not 1 <= self.fp8_bias <= HIGHEST_BIAS:
            raise InvalidSetting(
                f"fp8_bias={self.fp8_bias} means nothing",
                why=f"the bias of fp8 is programmable from 1 to {HIGHEST_BIAS}",
                hint="PyTorch's is 7",
            )
        if self.mode is Mode.IEEE and replace(self, mode=Mode.CARD) != CARD:
            raise InvalidSetting(
                "numerics ieee have no switches",
                why="PyTorch's dtypes leave no choice",
                hint="use numerics card",
            )

    @classmethod
    def of_words(cls, words: tuple[int, int, int, int, int, int]) -> Numerics:
        """The inverse of `words`."""
        card, rounding, truncated, sums, chunk, bias = words
        return cls(
            Mode.CARD if card else Mode.IEEE,
            list(Dl16Round)[rounding],
            Bf16Round.TRUNCATE if truncated else Bf16Round.NEAREST_EVEN,
            list(SumFormat)[sums],
            chunk,
            bias,
        )

    def words(self) -> tuple[int, int, int, int, int, int]:
        """The numbers of `spyre_numerics` (csrc/card/card.h)."""
        return (
            int(self.mode is Mode.CARD),
            list(Dl16Round).index(self.dl16_round),
            int(self.bf16_out_round is Bf16Round.TRUNCATE),
            list(SumFormat).index(self.acc_format),
            self.acc_chunk,
            self.fp8_bias,
        )

    def __str__(self) -> str:
        """As `parse_numerics` reads it: the mode and the switches that are not their default."""
        words = [self.mode.value]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"{field.name}={value.value if isinstance(value, Enum) else value}")
        return ",".join(words)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("use a number")
    return int(text)


_SWITCHES: Mapping[str, Callable[[str], Any]] = {
    "dl16_round": Dl16Round,
    "bf16_out_round": Bf16Round,
    "acc_format": SumFormat,
    "acc_chunk": _whole,
    "fp8_bias": _whole,
}

_CHOICES: Mapping[object, list[str]] = {
    enum: [choice.value for choice in enum] for enum in (Mode, Dl16Round, Bf16Round, SumFormat)
}


def make_numerics(mode: str, switches: Mapping[str, object]) -> Numerics:
    """Numerics from words: `make_numerics("card", {"acc_chunk": 8, "acc_format": "fp32"})`.

    Raises:
        InvalidSetting: there is no such mode or switch, or a switch has no such value.
    """
    values: dict[str, Any] = {"mode": _value("numerics", Mode, mode)}
    for name, value in switches.items():
        if name not in _SWITCHES:
            raise InvalidSetting(
                f"numerics have no switch {name}", hint=f"there are {', '.join(_SWITCHES)}"
            )
        text = value.value if isinstance(value, Enum) else value
        values[name] = _value(name, _SWITCHES[name], str(text))
    return Numerics(**values)


def _value(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        choices = ", ".join(_CHOICES.get(read, ["a number"]))
        raise InvalidSetting(f"{name}={text} means nothing", hint=f"use {choices}") from None


def parse_numerics(text: str) -> Numerics:
    """Numerics from one line: `card,dl16_round=truncate,acc_chunk=8`.

    Raises:
        InvalidSetting: it means nothing.
    """
    mode, *rest = (word.strip() for word in text.lower().split(","))
    switches = dict(word.partition("=")[::2] for word in rest)
    return make_numerics(mode, switches)


CARD = Numerics(Mode.CARD)
IEEE = Numerics()
