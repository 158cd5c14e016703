"""Rules and capability compiled to PyTorch's native hooks; nothing of PyTorch is changed.

What the hooks can say becomes `set_test_configs`; the rest becomes cases that our device base
applies to each generated test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from openspyre.ci.native import hooks as native
from openspyre.ci.reuse.capability_table import Capability
from openspyre.ci.reuse.schema import Rule, RuleSet, TestFile, Verdict

_AWAY = (Verdict.EXCLUDE, Verdict.QUARANTINE)


def compiled(
    file: TestFile, capability: Capability | None, *, canary: bool = False
) -> native.Hooks:
    """The hooks for one test file.

    Args:
        canary: whether tests in quarantine are generated.
    """
    away = [r for r in file.rules if r.verdict in _AWAY and not (canary and _quarantined(r))]
    return native.Hooks(
        op_allowlist=capability.op_allowlist() if capability else None,
        op_dtypes=capability.op_dtypes() if capability else {},
        test_exclusions=_exclusions(file, away),
        op_overrides=_overrides(file, away),
        bypass=file.guards.bypass,
        cases=tuple(_cases(file, away)),
    )


def _quarantined(rule: Rule) -> bool:
    return rule.verdict is Verdict.QUARANTINE


def _is_whole(rule: Rule) -> bool:
    """Whether a rule is about all tests of a class or method."""
    return not (rule.ops or rule.dtypes or rule.params)


def _natively_excluded(file: TestFile, away: list[Rule]) -> list[Rule]:
    """Rules that are plain exclusions: no more specific rule takes a test back."""
    kept = [rule for rule in file.rules if rule not in away]
    return [
        rule
        for rule in away
        if _is_whole(rule)
        and not any(k.cls == rule.cls and rule.method in ("*", k.method) for k in kept)
    ]


def _exclusions(file: TestFile, away: list[Rule]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = defaultdict(list)
    for rule in _natively_excluded(file, away):
        found[rule.cls].append(rule.method)
    return {
        cls: ("*",) if "*" in methods else tuple(sorted(set(methods)))
        for cls, methods in sorted(found.items())
    }


def _overrides(file: TestFile, away: list[Rule]) -> dict[str, tuple[native.Override, ...]]:
    """Skips and tolerances of ops: the native hook adds decorators, it cannot take one back."""
    found: dict[str, list[native.Override]] = defaultdict(list)
    for rule in file.rules:
        action = _override(rule, away)
        if action is None or not _is_native(rule, file):
            continue
        for op in rule.ops:
            override = native.Override(
                rule.id, rule.cls, rule.method, action, rule.dtypes, rule.reason
            )
            found[op].append(override)
    return {op: tuple(listed) for op, listed in sorted(found.items())}


def _override(rule: Rule, away: list[Rule]) -> native.Drop | native.Tolerance | None:
    if rule in away:
        return native.Drop()
    if rule.tolerance:
        return rule.tolerance
    return None


def _is_native(rule: Rule, file: TestFile) -> bool:
    """Whether a decorator of an op says it: by op and dtype, and nothing more specific is there."""
    others = [
        r for r in file.rules
        if r.specificity > rule.specificity and r.cls == rule.cls
        and (rule.method == "*" or r.method in ("*", rule.method))
    ]  # fmt: skip
    # A tolerance that an op brings is looked up by the test's dtype.
    by_dtype = rule.tolerance is None or bool(rule.dtypes)
    return bool(rule.ops) and by_dtype and not rule.params and not others


def _cases(file: TestFile, away: list[Rule]) -> Iterator[native.Case]:
    """The rules in which the first that matches decides, without those at the end that keep."""
    natives = [*_natively_excluded(file, away), *[r for r in file.rules if _is_native(r, file)]]
    found = [
        native.Case(
            rule.id, rule.cls, rule.method, _action(rule, away, rule in natives), rule.ops,
            rule.dtypes, tuple(sorted(rule.params.items())),
        )
        for rule in sorted(file.rules, key=lambda r: (-r.specificity, r.id))
    ]  # fmt: skip
    while found and isinstance(found[-1].action, native.Keep):
        found.pop()
    yield from found


def _action(rule: Rule, away: list[Rule], is_native: bool) -> native.Action:
    if rule.raises and rule.verdict is Verdict.XFAIL:
        return native.Expect(rule.raises.type, rule.raises.match)
    if is_native:
        return native.Keep()
    if rule in away:
        return native.Drop()
    if rule.tolerance:
        return rule.tolerance
    return native.Keep()


# --- as Python ----------------------------------------------------------------------------------


def hooks_file(file: str, device: str, hooks: native.Hooks) -> str:
    """A file for TORCH_TEST_DEVICES, to be read and reviewed."""
    used = sorted({type(part).__name__ for part in _parts(hooks)})
    return (
        f'"""The hooks of {device} for {file}; written by `spyre-ci config compile`."""\n\n'
        f"from {native.__name__} import {', '.join(used)}\n"
        f"from {native.__name__.rpartition('.')[0]}.device_base import device_base\n\n"
        f"HOOKS = {_python(hooks, 0)}\n\n"
        "# PyTorch runs this file with these two names; no other device is tested.\n"
        "device_type_test_bases.clear()  # noqa: F821\n"
        "TEST_CLASS = device_base(PrivateUse1TestBase, HOOKS)  # noqa: F821\n"
    )


def _parts(value: Any) -> Iterator[Any]:
    """The dataclasses in a value, itself included."""
    if is_dataclass(value) and not isinstance(value, type):
        yield value
        for name in fields(value):
            yield from _parts(getattr(value, name.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _parts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item)


def _python(value: Any, depth: int) -> str:
    """Python for data, over several lines where it does not fit one."""
    plain = _line(value)
    if len(plain) + 4 * depth <= 92:
        return plain
    match value:
        case dict():
            opened, closed = "{", "}"
            items = [f"{k!r}: {_python(v, depth + 1)}" for k, v in value.items()]
        case tuple():
            opened, closed = "(", ")"
            items = [_python(item, depth + 1) for item in value]
        case _ if is_dataclass(value):
            opened, closed = f"{type(value).__name__}(", ")"
            items = [f"{n}={_python(v, depth + 1)}" for n, v in _told(value)]
        case _:
            return plain
    inner = "    " * (depth + 1)
    return f"{opened}\n" + "".join(f"{inner}{item},\n" for item in items) + "    " * depth + closed


def _line(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{k!r}: {_line(v)}" for k, v in value.items()) + "}"
        case tuple():
            return f"({', '.join(map(_line, value))}{',' if len(value) == 1 else ''})"
        case _ if is_dataclass(value):
            inside = ", ".join(f"{n}={_line(v)}" for n, v in _told(value))
            return f"{type(value).__name__}({inside})"
    return repr(value)


def _told(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are not empty."""
    for field in fields(value):
        found = getattr(value, field.name)
        if found not in ((), {}, "") and found is not None:
            yield field.name, found


def native_only(rules: RuleSet, capability: Capability | None) -> tuple[str, list[str]]:
    """Plain `set_test_configs` calls, for any backend, and what they do not say.

    The native tables know no files: a class that is excluded is excluded wherever it is.
    """
    lines = [
        f'"""Native test hooks of {rules.device}; written by `spyre-ci config compile`."""',
        "",
        "import unittest",
        "",
        "from torch.testing._internal.common_device_type import PrivateUse1TestBase, tol",
        "from torch.testing._internal.common_device_type import toleranceOverride",
        "from torch.testing._internal.opinfo.core import DecorateInfo",
        "import torch",
        "",
    ]
    exclusions: dict[str, tuple[str, ...]] = {}
    overrides: dict[str, list[str]] = defaultdict(list)
    left = []
    for file in rules.files:
        hooks = compiled(file, capability)
        exclusions |= {cls: tuple(names) for cls, names in hooks.test_exclusions.items()}
        for op, listed in hooks.op_overrides.items():
            overrides[op] += [_decorate_info(override) for override in listed]
        left += [
            f"{case.rule}: {type(case.action).__name__.lower()} of {case.cls}::{case.method}"
            for case in hooks.cases
            if not isinstance(case.action, native.Keep)
        ]
        left += [f"{file.path}: bypass of {cls}" for cls in hooks.bypass]
    if capability is not None:
        left.append("dtypes of ops: set OpInfo.dtypesIf for the device")
    tables = {cls: "*" if names == ("*",) else list(names) for cls, names in exclusions.items()}
    allowed = list(capability.op_allowlist()) if capability else None
    body = "".join(
        f"        {op!r}: [\n"
        + "".join(f"            {text},\n" for text in listed)
        + "        ],\n"
        for op, listed in sorted(overrides.items())
    )
    lines += [
        "PrivateUse1TestBase.set_test_configs(",
        f"    op_allowlist={allowed!r},",
        f"    test_exclusions={tables!r},",
        "    op_overrides={\n" + body + "    },",
        ")",
    ]
    return "\n".join(lines) + "\n", left


def _decorate_info(override: native.Override) -> str:
    dtypes = ", ".join(f"torch.{name}" for name in override.dtypes)
    tail = f", dtypes=[{dtypes}]" if dtypes else ""
    method = None if override.method == "*" else override.method
    match override.action:
        case native.Drop():
            what = f"unittest.skip({f'{override.rule}: {override.reason}'!r})"
        case native.Tolerance(atol, rtol):
            names = override.dtypes or ("float16", "bfloat16", "float32", "float64")
            pairs = ", ".join(f"torch.{n}: tol(atol={atol}, rtol={rtol})" for n in names)
            what = f"toleranceOverride({{{pairs}}})"
    return f"DecorateInfo({what}, {override.cls!r}, {method!r}{tail})"
