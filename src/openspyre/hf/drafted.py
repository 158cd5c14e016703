"""Adapters in files: the code of a replacement, and the facts of the calls that it is for."""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import SpyreError
from openspyre.hf.adapters import Adapter, Calls, Gap, Replacement
from openspyre.hf.code_files import module_of_file
from openspyre.hf.gaps import Argument, FailingOp, case_of
from openspyre.hf.proof_inputs import Case, Floats, Integers

Facts = Mapping[str, Any]
_ADDED = "# --- added by `spyre adapt draft`: what the replacement is for, and was proved on ---"


def facts_of(failing: FailingOp) -> dict[str, Any]:
    """What a drafted adapter must know of an op's calls, as plain data.

    Raises:
        SpyreError: no call can be proved: its place is unknown, or its arguments are not tensors
            and plain values.
    """
    cases = [(call, case_of(call)) for call in failing.calls]
    known = [(call, case) for call, case in cases if case is not None]
    if not known:
        raise SpyreError(
            f"no call of {failing.op} can be replaced and proved",
            why="a decomposition makes it, or it has other arguments than tensors and plain values",
            hint="write an adapter of the module's class (docs/adapters.md)",
        )
    return {
        "op": failing.op,
        "rule": failing.rule,
        "functions": list(dict.fromkeys(call.name for call, _ in known)),
        "calls": [_plain_case(case) for _, case in known],
    }


def name_of(failing: FailingOp) -> str:
    """An id for an adapter of an op."""
    return re.sub(r"\W+", "-", failing.op.partition("::")[2] or failing.op).strip("-_")


def drafted_adapter(name: str, replacement: Replacement, facts: Facts) -> Adapter:
    """The adapter of a file: it replaces calls like those that were seen, and no others."""
    cases = tuple(map(_case_of_plain, facts["calls"]))
    gap = Gap(facts["op"], facts["rule"])
    calls = Calls(tuple(facts["functions"]), Seen(cases))
    return Adapter(name, calls, replacement, gap, cases)


def adapter_file(name: str, code: str, facts: Facts) -> str:
    """The text of the file of an accepted draft."""
    shown = pprint.pformat(dict(facts), width=96, sort_dicts=False)
    return (
        f"{code.rstrip()}\n\n\n{_ADDED}\n"
        "from openspyre.hf.drafted import drafted_adapter  # noqa: E402\n\n"
        f"ADAPTERS = (drafted_adapter({name!r}, replacement, {shown}),)\n"
    )


def read_adapters(path: Path) -> tuple[Adapter, ...]:
    """The adapters of a file, which is run: read it first.

    Raises:
        SpyreError: there is no such file, it fails, or it defines none.
    """
    if not path.is_file():
        raise SpyreError(f"there is no file {path}")
    try:
        found = getattr(module_of_file(path), "ADAPTERS", None)
    except Exception as error:  # of anybody's code
        raise SpyreError(f"{path} fails", why=f"{type(error).__name__}: {error}") from None
    if not isinstance(found, tuple) or not all(isinstance(one, Adapter) for one in found):
        raise SpyreError(f"{path} defines no ADAPTERS", hint="ADAPTERS = (Adapter(...),)")
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether a call is like one of the cases: ranks, floating dtypes, and all plain values."""

    cases: tuple[Case, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return any(_like(case, args, kwargs) for case in self.cases)


def _like(case: Case, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if len(args) != len(case.args) or sorted(kwargs) != sorted(case.kwargs):
        return False
    pairs = [*zip(case.args, args, strict=True), *((v, kwargs[k]) for k, v in case.kwargs.items())]
    return all(_fits(spec, value) for spec, value in pairs)


def _fits(spec: Any, value: Any) -> bool:
    if isinstance(spec, Floats):
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return floats and value.dim() == len(spec.shape)
    if isinstance(spec, Integers):
        same = isinstance(value, Tensor) and value.dtype == spec.dtype
        return same and value.dim() == len(spec.shape)
    if isinstance(value, (list, tuple)):
        return isinstance(spec, tuple) and tuple(value) == spec
    return type(value) is type(spec) and bool(value == spec)


def _plain_case(case: Case) -> dict[str, Any]:
    return {
        "args": [_plain(spec) for spec in case.args],
        "kwargs": {name: _plain(spec) for name, spec in case.kwargs.items()},
    }


def _plain(spec: Any) -> Any:
    match spec:
        case Floats(shape=shape):
            return {"floats": list(shape)}
        case Integers(shape=shape, low=low, high=high, dtype=dtype):
            kind = str(dtype).removeprefix("torch.")
            return {"integers": list(shape), "low": low, "high": high, "dtype": kind}
        case tuple():
            return {"tuple": list(spec)}
        case _:
            return spec


def _case_of_plain(found: Mapping[str, Any]) -> Case:
    args = tuple(map(_spec, found["args"]))
    return Case(args, {name: _spec(value) for name, value in found["kwargs"].items()})


def _spec(value: Any) -> Any:
    match value:
        case {"floats": shape}:
            return Floats(tuple(shape))
        case {"integers": shape, "low": low, "high": high, "dtype": kind}:
            return Integers(tuple(shape), low, high, getattr(torch, kind))
        case {"tuple": items}:
            return tuple(items)
        case _:
            return value


def described(value: Any) -> Any:
    """An argument of a call for a brief."""
    match value:
        case Argument(shape=shape, dtype=dtype, stride=stride):
            return {"shape": list(shape), "dtype": dtype, "stride": list(stride)}
        case tuple():
            return list(value)
        case _:
            return value
