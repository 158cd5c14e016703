"""Rules about PyTorch's tests, as data: schema openspyre.ci/1."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from openspyre.ci.native.hooks import Expect, Tolerance
from openspyre.ci.native.identity import Identity
from openspyre.ci.reuse.located import At

SCHEMA = "openspyre.ci/1"
CAUSES = (
    "op", "dtype", "layout", "precision", "feature", "crash", "hang", "infra", "upstream-bug",
    "not-device",
)  # fmt: skip
QUARANTINE_CAUSES = ("crash", "hang", "infra")


class Verdict(Enum):
    """What is asked of a test."""

    GATE = "gate"  # it passes
    OBSERVE = "observe"  # it runs and is counted
    XFAIL = "xfail"  # it fails, in one way
    QUARANTINE = "quarantine"  # it runs in the canary lane alone
    EXCLUDE = "exclude"  # it does not run


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; it owns the tests of which no other is more specific.

    Attributes:
        method: "*" is every one of the class.
        ops, dtypes: empty means any.
        hits: how many tests it owns, as last verified.
        isolate: whether each of its tests gets a process of its own.
    """

    id: str
    cls: str
    method: str
    verdict: Verdict
    at: At
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""
    reason: str = ""
    issue: str = ""
    since: datetime.date | None = None
    expires: datetime.date | None = None
    owner: str = ""
    raises: Expect | None = None
    tolerance: Tolerance | None = None
    isolate: bool = False
    tags: tuple[str, ...] = ()
    hits: int | None = None

    @property
    def specificity(self) -> int:
        """op+dtype+params > op+dtype > op > dtype > params > method > class."""
        return (
            8 * bool(self.ops) + 4 * bool(self.dtypes) + 2 * bool(self.params)
            + (self.method != "*")
        )  # fmt: skip

    def matches(self, test: Identity) -> bool:
        return (
            self.cls == test.cls
            and self.method in ("*", test.method)
            and (not self.ops or test.value("op") in self.ops)
            and (not self.dtypes or test.value("dtype") in self.dtypes)
            and self.params.items() <= dict(test.params).items()
        )

    def covers(self, other: Rule) -> bool:
        """Whether every test that the other matches is one that this one matches."""
        return (
            self.cls == other.cls
            and self.method in ("*", other.method)
            and _within(other.ops, self.ops)
            and _within(other.dtypes, self.dtypes)
            and self.params.items() <= other.params.items()
        )

    def may_clash(self, other: Rule) -> bool:
        """Whether both could own one test."""
        return (
            self.specificity == other.specificity
            and (self.cls, self.method) == (other.cls, other.method)
            and (not self.ops or bool({*self.ops} & {*other.ops}))
            and (not self.dtypes or bool({*self.dtypes} & {*other.dtypes}))
            and all(other.params.get(k, v) == v for k, v in self.params.items())
        )


def _within(some: tuple[str, ...], all_: tuple[str, ...]) -> bool:
    """Whether what is named is a part of the other; no name means any."""
    return not all_ or (bool(some) and {*some} <= {*all_})


@dataclass(frozen=True, slots=True)
class Guards:
    """What is lifted of a file's own restrictions to other devices.

    Attributes:
        bypass: classes whose decorators like `onlyCUDA` do not skip.
        for_custom: whether classes that ask for other devices are generated.
    """

    bypass: tuple[str, ...] = ()
    for_custom: bool = False


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file, relative to PyTorch's folder of tests, and the rules for it.

    Attributes:
        sha256: of the file that the rules were verified with; empty: of any.
    """

    __test__ = False  # pytest looks at the name

    path: str
    at: At
    sha256: str = ""
    guards: Guards = Guards()
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a rule says nothing; days are from since, or today, to expires."""

    unlisted: Verdict = Verdict.OBSERVE
    timeout_s: float = 60.0
    max_days: Mapping[Verdict, int] = field(
        default_factory=lambda: {
            Verdict.OBSERVE: 180, Verdict.XFAIL: 120, Verdict.QUARANTINE: 60, Verdict.EXCLUDE: 365,
        }
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapabilitySource:
    """The file that `spyre-ci capability` wrote, and the digest that it must have."""

    file: str
    digest: str
    at: At


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Everything one or several YAML files say.

    Attributes:
        torch: the versions it is for.
        device: the name of the PrivateUse1 backend.
        bootstrap: what registers it, `module:function`; empty: PyTorch's autoload.
    """

    torch: str
    device: str
    bootstrap: str = ""
    capability: CapabilitySource | None = None
    defaults: Defaults = field(default_factory=Defaults)
    files: tuple[TestFile, ...] = ()

    def rules(self) -> dict[str, Rule]:
        """All rules by id."""
        return {rule.id: rule for file in self.files for rule in file.rules}
