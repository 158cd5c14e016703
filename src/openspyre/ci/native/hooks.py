"""What a backend asks of the tests that are generated for it: data, written by `config compile`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .identity import Identity


@dataclass(frozen=True, slots=True)
class Keep:
    """The test runs as it is."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The test is not generated."""


@dataclass(frozen=True, slots=True)
class Expect:
    """The test must raise: an exception whose type, or a base of it, has this name.

    Attributes:
        match: a regular expression that is found in the exception's text.
    """

    type: str
    match: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The test compares within these."""

    atol: float
    rtol: float


Action = Keep | Drop | Expect | Tolerance


@dataclass(frozen=True, slots=True)
class Case:
    """What becomes of some generated tests; the first of a list that matches one decides.

    Attributes:
        rule: the name of the rule behind it.
        cls: generic class.
        method: of the class; "*" is every one.
        ops, dtypes: empty means any.
        params: other values that the test is generated with, as texts.
    """

    rule: str
    cls: str
    method: str
    action: Action
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()

    def matches(self, test: Identity) -> bool:
        return (
            self.cls == test.cls
            and self.method in ("*", test.method)
            and (not self.ops or test.value("op") in self.ops)
            and (not self.dtypes or test.value("dtype") in self.dtypes)
            and set(self.params) <= set(test.params)
        )


@dataclass(frozen=True, slots=True)
class Override:
    """A decorator for the tests of one op: a skip with its reason, or a tolerance."""

    rule: str
    cls: str
    method: str
    action: Drop | Tolerance
    dtypes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hooks:
    """All that is asked for one test file.

    Attributes:
        op_allowlist: full names of ops; None means all.
        op_dtypes: the dtypes of each op, by full name; an op that is not named has all.
        test_exclusions: by generic class: its methods, or "*".
        op_overrides: by full name of the op.
        bypass: generic classes whose device restrictions are lifted.
        cases: what the native hooks cannot say, in order.
    """

    op_allowlist: tuple[str, ...] | None = None
    op_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test_exclusions: Mapping[str, Collection[str]] = field(default_factory=dict)
    op_overrides: Mapping[str, tuple[Override, ...]] = field(default_factory=dict)
    bypass: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
