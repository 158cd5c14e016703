"""What a device can do, by op of PyTorch's test list, derived from what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openspyre.ci.capability import Row, State
from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

FORMAT = "openspyre.ci/capability-1"
_RIGHT = (State.CARD, State.FALLBACK)


@dataclass(frozen=True, slots=True)
class OpCapability:
    """One op.

    Attributes:
        fwd, bwd: dtypes in which its results, its gradients are right; sorted.
        state: the worst of its function in any dtype that was tried: card, fallback, wrong, raised.
        reason: why it is not "card".
    """

    fwd: tuple[str, ...]
    bwd: tuple[str, ...]
    layouts: tuple[str, ...]
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Capability:
    """A device: its ops by the full name of their OpInfo, and what else it has."""

    torch: str
    ops: Mapping[str, OpCapability]
    features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of everything in it, however the file is laid out."""
        text = json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def op_allowlist(self) -> tuple[str, ...]:
        """The ops that are right in some dtype."""
        return tuple(name for name, op in sorted(self.ops.items()) if op.fwd)

    def op_dtypes(self) -> dict[str, tuple[str, ...]]:
        return {name: op.fwd for name, op in sorted(self.ops.items()) if op.fwd}


def derived(rows: Iterable[Row], torch_version: str) -> Capability:
    """The table of a survey's rows (`./dev bench opinfo`)."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.state is not State.UNTRIED:
            groups.setdefault(row.op, []).append(row)
    ops = {name: _op(groups[name]) for name in sorted(groups)}
    right = [row for found in groups.values() for row in found if row.state in _RIGHT]
    variants = {row.variant for row in right}
    features = {
        "autograd": "gradient" in variants,
        "compile": "compiled" in variants,
        "complex": any(row.dtype.startswith("complex") for row in right),
        "inplace": "inplace" in variants,
        "out": "out" in variants,
    }
    return Capability(torch_version, ops, features)


def _op(rows: list[Row]) -> OpCapability:
    function = [row for row in rows if row.variant == "function"] or rows
    worst = function[0]
    for row in function:
        if row.state.worse(worst.state):
            worst = row

    def right(variant: str) -> tuple[str, ...]:
        return tuple(sorted(r.dtype for r in rows if r.variant == variant and r.state in _RIGHT))

    # A survey tries the first sample of a function with other strides too.
    layouts = ("strided",) if right("function") else ()
    return OpCapability(
        right("function"), right("gradient"), layouts, worst.state.value, worst.reason
    )


def measured_with(path: Path) -> str:
    """The version of PyTorch with which a survey was made.

    Raises:
        SpyreError: the file is no survey.
    """
    try:
        return str(json.loads(path.read_text())["torch"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpyreError(
            f"{path} is no survey of ops", why=repr(error), hint="./dev bench opinfo"
        ) from None


def write_capability(path: Path, table: Capability) -> None:
    """Writes the table, an op a line."""
    plain = _plain(table)
    ops = [f"{json.dumps(name)}: {json.dumps(op)}" for name, op in plain.pop("ops").items()]
    head = json.dumps({"format": FORMAT, "digest": table.digest, **plain})[:-1]
    write_whole(path, (head + ', "ops": {\n' + ",\n".join(ops) + "\n}}\n").encode())


def read_capability(path: Path) -> Capability:
    """The table of a file.

    Raises:
        SpyreError: it is not one, or its digest is not that of what it says.
    """
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}")
        ops = {
            name: OpCapability(
                tuple(op["fwd"]), tuple(op["bwd"]), tuple(op["layouts"]), op["state"], op["reason"]
            )
            for name, op in found["ops"].items()
        }
        table = Capability(found["torch"], ops, found["features"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SpyreError(
            f"{path} is no capability table", why=repr(error), hint="spyre-ci capability"
        ) from None
    if table.digest != found["digest"]:
        raise SpyreError(
            f"{path} was changed by hand", why=f"its digest is {table.digest}",
            hint="spyre-ci capability writes it from what was measured",
        )  # fmt: skip
    return table


def _plain(table: Capability) -> dict[str, Any]:
    return {
        "torch": table.torch,
        "features": dict(table.features),
        "ops": {
            name: {
                "fwd": list(op.fwd), "bwd": list(op.bwd), "layouts": list(op.layouts),
                "state": op.state, "reason": op.reason,
            }
            for name, op in sorted(table.ops.items())
        },
    }  # fmt: skip
