"""Rules of torch-spyre's RFC 1287 (`test_suite_config`) as ours.

That schema names methods without their classes, and asks for no reason: what is missing is
written as empty fields, which `config check` refuses until somebody fills them in.
"""

from __future__ import annotations

from typing import Any

import yaml

from openspyre.ci.reuse.fields import Fields
from openspyre.ci.reuse.located import InvalidRules, Located
from openspyre.ci.reuse.schema import SCHEMA

_VERDICTS = {
    "mandatory_success": "gate", "xfail_strict": "xfail", "xfail": "observe", "skip": "quarantine",
}  # fmt: skip
_FILL = {
    "gate": (), "observe": ("reason", "expires"), "xfail": ("reason", "issue", "expires", "raises"),
    "quarantine": ("reason", "issue", "expires", "cause"),
}  # fmt: skip


def imported(node: Located, device: str, torch: str) -> tuple[str, list[str]]:
    """The YAML, and what is to be filled in.

    Raises:
        InvalidRules: it is not of that schema.
    """
    problems: list[str] = []
    top = Fields(node, problems, "the file")
    config = top.part("test_suite_config")
    missing: list[str] = []
    files = []
    if config is None:
        top.wrong("there is no test_suite_config")
    else:
        numbers = iter(range(1, 1_000_000))
        for item in config.items("files"):
            files.append(_file(Fields(item, problems, "a file"), problems, missing, numbers))
        if config.part("global") is not None:
            missing.append("global: what the device supports is measured; `spyre-ci capability`")
        missing += [f"{name} is not taken over" for name in (*config.left(), *top.left())]
    if problems:
        raise InvalidRules(problems)
    found = {"schema": SCHEMA, "torch": torch, "device": device, "files": files}
    return yaml.safe_dump(found, sort_keys=False, width=96), missing


def _file(fields: Fields, problems: list[str], missing: list[str], numbers: Any) -> dict[str, Any]:
    path = fields.need("path", str, "")
    relative = _relative(path)
    unlisted = fields.take("unlisted_test_mode", str, "")
    if unlisted and _VERDICTS.get(unlisted) not in ("gate", "observe"):
        missing.append(f"{relative}: tests it does not list are {unlisted}: here they are observed")
    rules = []
    for item in fields.items("tests"):
        entry = Fields(item, problems, "an entry of tests")
        rules += _rules(entry, relative, missing, numbers)
    missing += [f"{relative}: {name} is not taken over" for name in fields.left()]
    return {"path": relative, "rules": rules}


def _relative(path: str) -> str:
    """A path from PyTorch's folder of tests on, whatever leads to that."""
    inside = path.rpartition("/test/")[2].removeprefix("test/")
    return inside.rpartition("/")[2] if "$" in inside else inside


def _rules(entry: Fields, path: str, missing: list[str], numbers: Any) -> list[dict[str, Any]]:
    mode = entry.choice("mode", _VERDICTS, "")
    tags = entry.texts("tags")
    verdict = _VERDICTS.get(mode, "gate")
    found = []
    for name in entry.texts("names"):
        cls, colons, method = name.rpartition("::")
        id_ = f"IMPORTED-{next(numbers):04}"
        rule: dict[str, Any] = {"id": id_, "test": f"{cls.rpartition('::')[2]}::{method}"}
        rule["verdict"] = verdict
        if not colons:
            missing.append(f"{path}: {id_}: the class of {method}")
        missing += [f"{path}: {id_}: {field}" for field in _FILL[verdict]]
        if tags:
            rule["tags"] = list(tags)
        found.append(rule)
    if entry.part("edits") is not None:
        missing.append(f"{path}: edits of {', '.join(str(r['test']) for r in found)}: as rules")
    tests = ", ".join(str(rule["test"]) for rule in found)
    missing += [f"{path}: {name} of {tests} is not taken over" for name in entry.left()]
    return found
