"""Rules with everything they refer to: the capability table, the version of PyTorch, the files."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.specifiers import SpecifierSet

from openspyre.ci.reuse.capability_table import Capability, read_capability
from openspyre.ci.reuse.located import InvalidRules
from openspyre.ci.reuse.reading import expired, read_rules
from openspyre.ci.reuse.schema import RuleSet, TestFile, Verdict
from openspyre.errors import SpyreError

_STRICT = (Verdict.GATE, Verdict.XFAIL)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rules that hold here and now, and what a user should know of them."""

    rules: RuleSet
    capability: Capability | None
    warnings: tuple[str, ...]


def load(paths: Sequence[Path], *, grace: int = 0, allow_drift: bool = False) -> Loaded:
    """Reads rules and what they refer to.

    Args:
        grace: days for which expired rules hold, with a warning.
        allow_drift: with another PyTorch than the rules are for, only observe.

    Raises:
        InvalidRules, SpyreError: they do not hold.
    """
    today = datetime.date.today()
    rules = read_rules(paths, today, grace)
    warnings = [f"{r.at}: {r.id} expired on {r.expires}" for r in expired(rules, today)]
    try:
        here = version("torch")
    except PackageNotFoundError:
        raise SpyreError("torch is not installed", hint=f"pip install torch{rules.torch}") from None
    if not SpecifierSet(rules.torch).contains(here.partition("+")[0], prereleases=True):
        said = f"the rules are for torch {rules.torch}, and this is {here}"
        if not allow_drift:
            raise SpyreError(said, hint="--allow-drift runs everything as observe")
        warnings.append(f"{said}: everything is observed")
        rules = _observed(rules)
    return Loaded(rules, _capability(rules), tuple(warnings))


def _capability(rules: RuleSet) -> Capability | None:
    source = rules.capability
    if source is None:
        return None
    table = read_capability(Path(source.at.file).parent / source.file)
    if table.digest != source.digest:
        raise InvalidRules([
            f"{source.at}: the digest of {source.file} is {table.digest}: what the device can do"
            " has changed since these rules were verified"
        ])  # fmt: skip
    return table


def _observed(rules: RuleSet) -> RuleSet:
    files = tuple(
        replace(
            file,
            rules=tuple(
                replace(r, verdict=Verdict.OBSERVE, raises=None) if r.verdict in _STRICT else r
                for r in file.rules
            ),
        )
        for file in rules.files
    )
    return replace(
        rules, files=files, defaults=replace(rules.defaults, unlisted=Verdict.OBSERVE)
    )  # fmt: skip


def drift(tests: Path, file: TestFile) -> list[str]:
    """The rules that were verified against another version of their file."""
    path = tests / file.path
    if not file.sha256 or not path.is_file():
        return []
    here = hashlib.sha256(path.read_bytes()).hexdigest()
    if here == file.sha256:
        return []
    return [f"{r.at}: {r.id} was verified with another {file.path}" for r in file.rules] or [
        f"{file.at}: {file.path} is another than was verified"
    ]
