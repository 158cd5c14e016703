"""Whether the hooks did what the plan says: tests with all hooks off against those with them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from openspyre.ci.native.identity import Identity
from openspyre.ci.reuse.ledger import Bucket
from openspyre.ci.reuse.planning import Collected, FilePlan, Planned

_SKIPPED = (Bucket.EXCLUDED_RULE, Bucket.QUARANTINED)


def reconciled(
    plan: FilePlan, on: Iterable[Collected], plan_one: Callable[[Collected], Planned]
) -> tuple[FilePlan, list[str]]:
    """The plan with what the hooks changed by right, and every difference that has no reason.

    Args:
        on: what was collected with the hooks on.
        plan_one: what becomes of a test that only exists with them.
    """
    there = {item.id: item for item in on if item.generic}
    classes = {item.test.cls for item in there.values()}
    problems = []
    tests = []
    for test in plan.tests:
        if test.bucket is None and test.id not in there:
            if test.test.cls in classes:
                problems.append(f"{test.id}: the hooks dropped it, and nothing says why")
            tests.append(_guarded(test))
        else:
            tests.append(test)
            if test.bucket is not None and test.id in there and not _by_decorator(test):
                problems.append(f"{test.id}: it was generated, but is {test.bucket.value}")
    known = {test.id for test in plan.tests}
    moved = {_without_dtype(t.test) for t in plan.tests if t.bucket is Bucket.EXCLUDED_DTYPE}
    for id_, item in there.items():
        if id_ in known:
            continue
        # Tests of any one dtype take another where their first choice is none of the device's.
        if _without_dtype(item.test) not in moved:
            problems.append(f"{id_}: it exists with the hooks on alone")
        tests.append(plan_one(item))
    ordered = tuple(sorted(tests, key=lambda test: test.id))
    return replace(plan, tests=ordered), problems


def _guarded(test: Planned) -> Planned:
    reason = f"its file generates {test.test.cls} for other devices alone"
    return replace(test, bucket=Bucket.EXCLUDED_GUARD, reason=reason, source="guard")


def _by_decorator(test: Planned) -> bool:
    """Whether a decorator of an op skips it, which is how native hooks leave out some of it."""
    return test.bucket in _SKIPPED and test.rule is not None and bool(test.rule.ops)


def _without_dtype(test: Identity) -> Identity:
    return replace(test, params=tuple(pair for pair in test.params if pair[0] != "dtype"))
