"""Stage 3: what runs, in which order, as far as the seconds go; all else with the reason."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from typing import Any

from .canonical import digest
from .diff import Change, Diff
from .errors import SelectionError
from .knowledge import Capability, History, Policy
from .records import SCHEMA, Enumeration, Test, record_of, to_json
from .relevance import Judged, Label, World, not_generic, other_device

_OF_ITSELF = frozenset({
    "added", "moved", "body", "decorators", "helpers", "class", "generation", "instantiation",
})  # fmt: skip
_EXPIRING_DAYS = 14
_ROTATION = 14


class Tier(IntEnum):
    """Why a test runs; the lowest that holds."""

    ALWAYS = 0  # changed gates, last failures, rules that are about to expire
    CHANGED = 1  # relevant, and new or changed itself
    REACHED = 2  # relevant by what it runs in: ops of tracked models first
    UNSURE = 3
    SAMPLE = 4  # some of the unchanged gates, others each time


@dataclass(frozen=True, slots=True)
class Chosen:
    """A test method of the plan.

    Attributes:
        ops: it runs for these ops alone; empty is all.
        score: within its tier the higher comes first; its parts are in `parts`.
        verdict: "observe" where nothing else is asked and nobody is sure.
    """

    id: str
    tier: int
    score: float
    seconds: float
    why: str
    parts: Mapping[str, float] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A test that does not run: over the budget, with the rank it had, or for a reason."""

    id: str
    bucket: str
    reason: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs, in order, and what was ranked or judged and does not."""

    base: str
    head: str
    budget: float | None
    chosen: tuple[Chosen, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.chosen)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asks of a plan.

    Attributes:
        budget: seconds; None is no limit.
        today: the day that decides which rules are about to expire; None: none is.
        model_ops: full names of the ops of tracked models.
    """

    budget: float | None = None
    today: datetime.date | None = None
    model_ops: frozenset[str] = frozenset()


def plan_of(
    diff: Diff, labels: Iterable[Judged], head: Enumeration, capability: Capability,
    policy: Policy, history: History, product: Mapping[str, tuple[str, ...]], wishes: Wishes,
) -> Plan:  # fmt: skip
    """Orders what runs, and cuts it where the budget ends.

    Raises:
        SelectionError: what always runs does not fit into the budget.
    """
    if wishes.budget is not None and not wishes.budget >= 0:
        raise SelectionError(f"a budget of {wishes.budget} s is none", hint="0 or more")
    maker = _Maker(head.by_id(), capability, policy, history, wishes)
    maker.from_labels(diff, list(labels))
    maker.from_product(product)
    maker.always()
    maker.sample(head.commit)
    ranked = sorted(maker.found.values(), key=lambda one: (one.tier, -one.score, one.id))
    taken = _cut(ranked, wishes.budget)
    out = [
        LeftOut(one.id, "over-budget", f"rank {rank} of {len(ranked)}, tier {one.tier}", rank)
        for rank, one in enumerate(ranked[taken:], taken + 1)
    ]
    rest = sorted(maker.refused.keys() - maker.found.keys())
    out += [LeftOut(id, "not-selected", maker.refused[id]) for id in rest]
    return Plan(diff.base, diff.head, wishes.budget, tuple(ranked[:taken]), tuple(out))


def _cut(ranked: list[Chosen], budget: float | None) -> int:
    """How many run: a larger budget never runs fewer, nor others."""
    if budget is None:
        return len(ranked)
    spent = 0.0
    for number, one in enumerate(ranked):
        spent += one.seconds
        if spent > budget:
            if one.tier == Tier.ALWAYS:
                total = sum(o.seconds for o in ranked if o.tier == Tier.ALWAYS)
                raise SelectionError(
                    f"what always runs takes {total:.0f} s, the budget is {budget:.0f} s",
                    why="changed gates, last failures and expiring rules are never cut",
                    hint="a larger budget, or fewer gates",
                )
            return number
    return len(ranked)


@dataclass(slots=True)
class _Maker:
    """Collects what runs; a test that is found twice keeps its lowest tier."""

    tests: Mapping[str, Test]
    capability: Capability
    policy: Policy
    history: History
    wishes: Wishes
    found: dict[str, Chosen] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add(
        self, id: str, tier: Tier, why: str, ops: tuple[str, ...] = (), weight: float = 1.0
    ) -> None:
        old = self.found.get(id)
        if old is not None and not (ops and old.ops):
            ops = ()
        elif old is not None:
            ops = tuple(sorted({*ops, *old.ops}))
        if old is not None and old.tier <= tier:
            self.found[id] = replace(old, ops=ops)
            return
        seconds = self.history.seconds(id)
        failure = self.history.of(id).failure
        parts = {"failure": round(failure, 6), "seconds": seconds, "weight": weight}
        verdict = next((r.verdict for r in self.policy.of(id)), "")
        if tier is Tier.UNSURE and not verdict:
            verdict = "observe"
        score = round(weight * failure / max(seconds, 0.001), 6)
        self.found[id] = Chosen(id, int(tier), score, seconds, why, parts, ops, verdict)

    def from_labels(self, diff: Diff, labels: list[Judged]) -> None:
        changes = {change.id: change for change in diff.changes}
        for one in labels:
            change = changes[one.id]
            why = f"{one.rule}: {one.evidence[0]}" if one.evidence else one.rule
            if one.label is Label.IRRELEVANT:
                self.refused[one.id] = why
            elif not change.is_test:
                continue
            elif change.kind == "removed":
                self.refused[one.id] = "it is no more in the head ref"
            elif one.label is Label.UNSURE:
                self.add(one.id, Tier.UNSURE, why, one.ops)
            else:
                own = _OF_ITSELF & set(change.kinds)
                gate = any(self.policy.is_gate(id) for id in (one.id, change.was) if id)
                tier = Tier.REACHED if not own else Tier.ALWAYS if gate else Tier.CHANGED
                self.add(one.id, tier, why, one.ops, self._weight(one))

    def _weight(self, one: Judged) -> float:
        """Ops of tracked models count twice."""
        used = set(one.ops) or set(self._ops_of(self.tests.get(one.id)))
        return 2.0 if used & self.wishes.model_ops else 1.0

    def _ops_of(self, test: Test | None) -> frozenset[str]:
        if test is None:
            return frozenset()
        names = {name.removeprefix("torch.") for name in test.calls}
        return frozenset(names | {name.rstrip("_") for name in test.called})

    def from_product(self, product: Mapping[str, tuple[str, ...]]) -> None:
        for id, ops in product.items():
            path = id.partition("::")[2]
            if not ops:
                for gate in self.tests:
                    if self.policy.is_gate(gate):
                        self.add(gate, Tier.REACHED, f"R11: {path} changed and names no op")
                continue
            for test in self.tests.values():
                called = self._ops_of(test)
                hit = ops if test.tables else tuple(op for op in ops if op in called)
                if hit and self._may_run(test):
                    limit = hit if test.tables else ()
                    why = f"R11: {path} names {', '.join(hit[:4])}"
                    self.add(test.id, Tier.REACHED, why, limit)

    def _may_run(self, test: Test) -> bool:
        if self.policy.of(test.id):
            return True
        world, change = World(self.capability, self.policy), Change(test.id, ())
        return not any(rule(change, test, world) for rule in (not_generic, other_device))

    def always(self) -> None:
        for id in self.tests:
            if self.history.of(id).last == "failed":
                self.add(id, Tier.ALWAYS, "it failed when it ran last")
            for rule in self.policy.of(id):
                if self._expires(rule.expires):
                    self.add(id, Tier.ALWAYS, f"rule {rule.id} expires on {rule.expires}", rule.ops)

    def _expires(self, day: datetime.date | None) -> bool:
        today = self.wishes.today
        if day is None or today is None:
            return False
        return (day - today).days <= _EXPIRING_DAYS

    def sample(self, commit: str) -> None:
        """Every so many-th unchanged gate; which, the head commit decides."""
        turn = int(digest([commit]), 16) % _ROTATION
        for id in self.tests:
            unchanged = id not in self.found and self.policy.is_gate(id)
            if unchanged and int(digest([id]), 16) % _ROTATION == turn:
                self.add(id, Tier.SAMPLE, "its turn among the unchanged gates")


def plan_text(plan: Plan) -> str:
    """`plan.json`."""
    return json.dumps({"schema": SCHEMA, **asdict(plan)}, indent=1, sort_keys=True) + "\n"


def plan_from(text: str, name: str = "plan") -> Plan:
    """Reads `plan.json`.

    Raises:
        SelectionError: it is none.
    """
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        chosen = tuple(record_of(Chosen, one) for one in found.pop("chosen"))
        out = tuple(record_of(LeftOut, one) for one in found.pop("left_out"))
        return Plan(**found, chosen=chosen, left_out=out)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SelectionError(f"{name} is no plan", why=repr(error), hint="plan again") from None


def label_text(labels: Iterable[Judged]) -> str:
    """The lines of `relevance.jsonl`."""
    lines = [to_json({**asdict(one), "label": one.label.value}) for one in labels]
    return "\n".join([to_json({"schema": SCHEMA}), *lines]) + "\n"


def labels_from(text: str, name: str = "relevance") -> list[Judged]:
    """Reads `relevance.jsonl`.

    Raises:
        SelectionError: it is none.
    """
    try:
        head, *lines = map(json.loads, text.splitlines())
        if head["schema"] != SCHEMA:
            raise ValueError("another schema")
        return [replace(record_of(Judged, line), label=Label(line["label"])) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SelectionError(
            f"{name} holds no labels", why=repr(error), hint="relevance again"
        ) from None
