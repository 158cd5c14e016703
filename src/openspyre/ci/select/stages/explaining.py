"""Why a test was chosen or not: what each stage said of it, with rules and lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .diff import Diff
from .errors import SelectionError
from .knowledge import Policy
from .plan import Plan, Tier
from .records import Enumeration
from .relevance import Judged


@dataclass(frozen=True, slots=True)
class Known:
    """The output of the stages that have run."""

    base: Enumeration
    head: Enumeration
    diff: Diff
    labels: tuple[Judged, ...] = ()
    plan: Plan | None = None
    policy: Policy = field(default_factory=Policy)


def method_of(id: str) -> str:
    """`file::Class::method` of an id of any test generated from it."""
    return id.partition("[")[0]


def explained(id: str, known: Known) -> list[str]:
    """What each stage said of a test, one line after the other.

    Raises:
        SelectionError: neither ref has it.
    """
    method = method_of(id)
    found = list(_lines(method, known))
    if not found:
        raise SelectionError(
            f"neither ref has {id}", hint=f"near it: {', '.join(_near(method, known)) or 'nothing'}"
        )
    return found


def _lines(id: str, known: Known) -> Iterator[str]:
    seen = False
    for which, one in (("base", known.base), ("head", known.head)):
        test = one.by_id().get(id)
        if test is not None:
            seen = True
            made = "for each device type" if test.generic else "once"
            inherited = f", inherited by {test.cls}" if test.inherited else ""
            yield f"{which} {one.commit[:12]}: {test.at}:{test.line}{inherited}, made {made}"
        for broken in one.broken:
            if id.partition("::")[0] == broken.path or broken.path.endswith(
                "/" + id.split("::")[0]
            ):
                seen = True
                yield f"{which} {one.commit[:12]}: {broken.path} does not parse: {broken.error}"
    changes = [c for c in known.diff.changes if c.id == id]
    if not changes and not seen:
        return
    for change in changes:
        yield f"changed: {', '.join(change.kinds)}"
        yield from (f"  {line}" for line in change.why)
    if not changes:
        yield "unchanged: no hash of it differs"
    for label in known.labels:
        if label.id == id:
            yield f"{label.label.value} by {label.rule} ({label.decided_by})"
            yield from (f"  {line}" for line in label.evidence)
    for rule in known.policy.of(id):
        yield f"rule {rule.id}: {rule.verdict}"
    yield from _planned(id, known.plan, bool(changes))


def _planned(id: str, plan: Plan | None, changed: bool) -> Iterator[str]:
    if plan is None:
        return
    for rank, chosen in enumerate(plan.chosen, 1):
        if chosen.id == id:
            only = f", for {', '.join(chosen.ops)}" if chosen.ops else ""
            yield (
                f"runs: rank {rank} of {len(plan.chosen)}, tier {chosen.tier}"
                f" ({Tier(chosen.tier).name.lower()}), score {chosen.score:g}{only}"
            )
            yield f"  {chosen.why}"
            return
    for out in plan.left_out:
        if out.id == id:
            yield f"does not run: {out.bucket}: {out.reason}"
            return
    why = "no rule chose it" if changed else "it did not change, and it was not its turn as a gate"
    yield f"does not run: not-selected: {why}"


def _near(id: str, known: Known) -> Iterable[str]:
    last = id.rpartition("::")[2]
    ids = {t.id for one in (known.base, known.head) for t in one.tests if t.method == last}
    return sorted(ids)[:3]
