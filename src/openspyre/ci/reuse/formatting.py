"""Rules written as YAML in one form, whatever the order they were in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import yaml

from openspyre.ci.reuse.schema import SCHEMA, Defaults, Rule, RuleSet, TestFile


class _Flow(dict[str, Any]):
    """Written on one line."""


class _FlowList(list[Any]):
    """Written on one line."""


def _indented(dumper: yaml.SafeDumper, flow: bool = False, indentless: bool = False) -> None:
    """Lists stand farther in than what they belong to."""
    yaml.SafeDumper.increase_indent(dumper, flow, False)


_Dumper: Any = type("_Dumper", (yaml.SafeDumper,), {"increase_indent": _indented})


def _flow(dumper: yaml.SafeDumper, value: Mapping[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)


def _flow_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Line ends beside "\\n" are escaped: written as they are, they are read as spaces."""
    style = None if value.replace("\n", "").isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Flow, _flow)
_Dumper.add_representer(_FlowList, _flow_list)


def formatted(rules: RuleSet) -> str:
    """The text of rules: fields in the schema's order, files by path, rules by id."""
    found: dict[str, Any] = {"schema": SCHEMA, "torch": rules.torch, "device": rules.device}
    if rules.bootstrap:
        found["bootstrap"] = rules.bootstrap
    if rules.capability:
        source = rules.capability
        found["capability"] = _Flow(file=source.file, digest=source.digest)
    if rules.defaults != Defaults():
        found["defaults"] = _defaults(rules.defaults)
    found["files"] = [_file(file) for file in sorted(rules.files, key=lambda f: f.path)]
    return str(
        yaml.dump(found, Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True, indent=2)
    )


def _defaults(defaults: Defaults) -> dict[str, Any]:
    seconds = defaults.timeout_s
    return {
        "unlisted": defaults.unlisted.value,
        "timeout_s": int(seconds) if seconds.is_integer() else seconds,
        "max_days": _Flow((verdict.value, days) for verdict, days in defaults.max_days.items()),
    }


def _file(file: TestFile) -> dict[str, Any]:
    found: dict[str, Any] = {"path": file.path}
    if file.sha256:
        found["sha256"] = file.sha256
    guards = _Flow()
    if file.guards.bypass:
        guards["bypass"] = _FlowList(file.guards.bypass)
    if file.guards.for_custom:
        guards["for_custom"] = True
    if guards:
        found["guards"] = guards
    if file.rules:
        found["rules"] = [_rule(rule) for rule in sorted(file.rules, key=lambda r: r.id)]
    return found


def _rule(rule: Rule) -> dict[str, Any]:
    dates = _Flow(
        (name, value)
        for name in ("since", "expires", "owner")
        if (value := getattr(rule, name)) not in (None, "")
    )
    raises, tolerance = rule.raises, rule.tolerance
    fields: dict[str, Any] = {
        "id": rule.id,
        "test": f"{rule.cls}::{rule.method}",
        "ops": _FlowList(sorted(rule.ops)),
        "dtypes": _FlowList(sorted(rule.dtypes)),
        "params": _Flow((name, unquote(text)) for name, text in sorted(rule.params.items())),
        "verdict": rule.verdict.value,
        "cause": rule.cause,
        "reason": rule.reason,
        "issue": rule.issue,
        "dates": dates,
        "raises": _Flow(type=raises.type, match=raises.match) if raises else None,
        "tolerance": _Flow(atol=tolerance.atol, rtol=tolerance.rtol) if tolerance else None,
        "isolate": "test" if rule.isolate else "",
        "tags": _FlowList(sorted(rule.tags)),
        "hits": rule.hits,
    }
    return {k: v for k, v in fields.items() if v is not None and v not in ("", {}, [])}
