"""Names of generated tests, read from what they were generated with, never from their names.

`div_no_rounding_mode_cpu_float32` cannot be split: the op may be `div`, or `div` in its variant
`no_rounding_mode`. What the generated function carries says which.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_PLAIN = " !\"#$&'()*+-./:;<>?@^_`{|}~"


@dataclass(frozen=True, slots=True)
class Identity:
    """A generated test: generic class, method, and what it was generated with.

    Attributes:
        params: names and texts of all but the device, sorted.
    """

    cls: str
    method: str
    params: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        inside = ",".join(f"{name}={text}" for name, text in self.params)
        return f"{self.cls}::{self.method}" + (f"[{inside}]" if inside else "")

    def value(self, name: str) -> str:
        """The text of a parameter; empty where there is none of this name."""
        return dict(self.params).get(name, "")


def identity_of(cls: str, method: str, generated: Callable[..., Any]) -> Identity:
    """The identity of a function that `instantiate_test` made of a method of a generic class."""
    defaults: Any = getattr(generated, "__defaults__", None) or ({},)
    given: Mapping[str, Any] = defaults[0] if isinstance(defaults[0], Mapping) else {}
    params = [(k, value_text(v)) for k, v in given.items() if k not in ("device", "devices")]
    return Identity(cls, method, tuple(sorted(params)))


def value_text(value: object) -> str:
    """The text of a parameter's value: the same in every process."""
    return quote(_text(value), safe=_PLAIN, errors="surrogatepass")


def plain_text(text: str) -> str:
    """A text that every encoding of Unicode can hold: halves of characters become escapes."""
    return text.encode(errors="backslashreplace").decode()


def _text(value: object) -> str:
    match value:
        case None | bool() | int() | float() | complex() | str():
            return str(value)
        case enum.Enum():
            return value.name
        case Sequence() | set() | frozenset():
            texts = [_text(item) for item in value]
            return "+".join(texts if isinstance(value, Sequence) else sorted(texts))
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if kind in ("torch.dtype", "torch.device"):  # rules are read where PyTorch is not installed
        return str(value).removeprefix("torch.").partition(":")[0]
    return _name(value)


def _name(value: object) -> str:
    """What an entry of a list of ops, modules or optimizers calls itself; else its type."""
    for attribute in ("full_name", "formatted_name", "name", "__name__"):
        found = getattr(value, attribute, None)
        if isinstance(found, str):
            return found
    optimizer = getattr(value, "optim_cls", None)
    return optimizer.__name__ if isinstance(optimizer, type) else type(value).__name__
