"""What a plan names, run by `ci.reuse`: each test isolated, every one of a file accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from openspyre.ci.reuse.capability_table import Capability
from openspyre.ci.reuse.isolation import Place
from openspyre.ci.reuse.ledger import EXECUTED, Bucket, Entry, Ledger, ledger_of
from openspyre.ci.reuse.located import At, InvalidRules
from openspyre.ci.reuse.running import AGAIN, Choice, Prepared, prepare, run_prepared
from openspyre.ci.reuse.schema import RuleSet, TestFile
from openspyre.ci.select.stages.plan import Chosen
from openspyre.ci.select.stages.trial import Outcome

_ENDED = EXECUTED | {
    Bucket.SKIPPED_UPSTREAM, Bucket.IMPORT_ERROR, Bucket.NOT_REACHED, Bucket.QUARANTINED,
}  # fmt: skip
ALL = "*"


@dataclass(slots=True)
class ReuseRunner:
    """A `Runner` of stage 4.

    Attributes:
        entries: the account of all tests of the files that it ran.
        problems: where that does not add up.
        hits: how many tests each rule owns in them.
        asked: ids of what it was asked to run.
    """

    rules: RuleSet
    capability: Capability | None
    place: Place
    entries: dict[str, Entry] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def run(self, items: Sequence[Chosen]) -> Iterator[tuple[Chosen, Sequence[Outcome]]]:
        """Runs file by file, in the order in which the plan first names them.

        Raises:
            InvalidRules: the rules do not fit the tests of a file.
        """
        by_file: dict[str, list[Chosen]] = {}
        self.asked |= {item.id for item in items}
        for item in items:
            by_file.setdefault(item.id.partition("::")[0], []).append(item)
        known = {file.path: file for file in self.rules.files}
        for path, wanted in by_file.items():
            file = known.get(path) or TestFile(path, At("(no rules)", 1, 1))
            yield from self._file(file, wanted)

    def _file(
        self, file: TestFile, items: Sequence[Chosen]
    ) -> Iterator[tuple[Chosen, Sequence[Outcome]]]:
        prepared = prepare(self.rules, file, self.capability, self.place, check_hits=False)
        if prepared.plan.problems:
            raise InvalidRules(list(prepared.plan.problems))
        self.hits |= prepared.plan.hits
        ids = {item.id: _ids(prepared, item) for item in items}
        chosen = frozenset(id for found in ids.values() for id in found)
        run = run_prepared([prepared], self.place, Choice(ids=chosen, repeat="all", resume=True))
        self.problems += run.problems
        self.entries |= {entry.id: entry for entry in run.ledger.entries}
        ended = {e.id: _outcome(e) for e in run.ledger.entries if e.bucket in _ENDED}
        broken = [outcome for id, outcome in ended.items() if id == f"{file.path}::{ALL}"]
        for item in items:
            yield item, [*broken, *(ended[id] for id in sorted(ids[item.id]) if id in ended)]

    def ledger(self) -> Ledger:
        return ledger_of(self.entries.values())


def _ids(prepared: Prepared, item: Chosen) -> set[str]:
    """The tests that are made of a method; `file::Class::*` is all of the class."""
    _, cls, method = [*item.id.split("::"), ALL][:3]
    found = set()
    for planned in prepared.plan.tests:
        test = planned.test
        named = cls == ALL or (test.cls == cls and method in (test.method, ALL))
        if named and (not item.ops or test.value("op") in item.ops):
            found.add(planned.id)
    return found


def _outcome(entry: Entry) -> Outcome:
    reason = entry.reason.removeprefix(AGAIN)
    return Outcome(entry.id, entry.bucket.value, reason, entry.seconds)
