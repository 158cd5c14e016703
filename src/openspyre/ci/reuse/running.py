"""A run: collect with hooks off and on, plan, check, run in isolation, repeat, and account."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from openspyre.ci.native.hooks import Hooks
from openspyre.ci.reuse.capability_table import Capability
from openspyre.ci.reuse.compiling import compiled, hooks_file
from openspyre.ci.reuse.isolation import Broken, Ended, HookedFile, Place, collected, run
from openspyre.ci.reuse.journal import Journal, journal_key
from openspyre.ci.reuse.ledger import Bucket, Entry, Ledger, ledger_of
from openspyre.ci.reuse.planning import Collected, FilePlan, Planned, planned
from openspyre.ci.reuse.reconciling import reconciled
from openspyre.ci.reuse.schema import RuleSet, TestFile, Verdict
from openspyre.errors import SpyreError

Tell = Callable[[str, float], None]
_BAD = ("failed", "xpass", "xfail-mismatch", "crashed", "hung")
AGAIN = "twice: "
"""How the reason of a failure begins that was run once more, and failed again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the tests run.

    Attributes:
        ids: None means all; others are `not-selected`.
        shard: (i, n) runs the i-th of n parts, from 1, which do not depend on each other.
        canary: run what is in quarantine instead, each test in a process of its own.
        budget_s: once over, what is left is `over-budget`.
        repeat: which failures run once more alone: "red" ones, "all" or "none".
    """

    ids: frozenset[str] | None = None
    shard: tuple[int, int] = (1, 1)
    canary: bool = False
    budget_s: float | None = None
    repeat: str = "red"
    workers: int = 1
    resume: bool = False

    def why_not(self, id_: str) -> str:
        """Why a test does not run; empty if it does."""
        part, parts = self.shard
        if self.ids is not None and id_ not in self.ids:
            return "it is not among the ids that were asked for"
        if crc32(id_.encode()) % parts != part - 1:
            return f"it is not in part {part} of {parts}"
        return ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file that is ready to run, or broken."""

    file: TestFile
    plan: FilePlan
    hooked: HookedFile
    key: str
    broken: Broken | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a run.

    Attributes:
        problems: where the account does not add up.
    """

    ledger: Ledger
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Clock:
    """The budget of a run."""

    seconds: float | None
    begun: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.begun > self.seconds


def prepare(
    rules: RuleSet, file: TestFile, capability: Capability | None, place: Place,
    *, canary: bool = False, check_hits: bool = True,
) -> Prepared:  # fmt: skip
    """Collects a file's tests with hooks off and on, and plans what becomes of each.

    Problems of the rules are in the plan; those of the account are in `problems`.

    Raises:
        SpyreError: there is no such file.
    """
    path = place.tests / file.path
    if not path.is_file():
        raise SpyreError(
            f"there is no {file.path} in {place.tests}", hint="--tests names PyTorch's test/ folder"
        )
    hooks = compiled(file, capability, canary=canary)
    off = _hooked(place, file, Hooks(), "off", for_custom=True)
    on = _hooked(place, file, hooks, "on", for_custom=file.guards.for_custom)
    digest = journal_key(place, path.read_bytes() + on.hooks.read_bytes())
    every = collected(place, off)
    if isinstance(every, Broken):
        return _broken(file, on, digest, every)
    unlisted = rules.defaults.unlisted
    plan = planned(file, every, capability, unlisted, check_hits=check_hits)
    if plan.problems:
        return Prepared(file, plan, on, digest)
    generated = collected(place, on)
    if isinstance(generated, Broken):
        return _broken(file, on, digest, generated)

    def plan_one(item: Collected) -> Planned:
        return planned(file, [item], capability, unlisted, check_hits=False).tests[0]

    plan = _in_canary(plan) if canary else plan
    plan, problems = reconciled(plan, generated, plan_one)
    return Prepared(file, plan, on, digest, problems=tuple(problems))


def _hooked(
    place: Place, file: TestFile, hooks: Hooks, name: str, *, for_custom: bool
) -> HookedFile:
    path = place.work / "hooks" / f"{file.path.removesuffix('.py')}_{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(hooks_file(file.path, place.device, hooks), encoding="utf-8")
    return HookedFile(file.path, path, for_custom)


def _broken(file: TestFile, hooked: HookedFile, key: str, broken: Broken) -> Prepared:
    return Prepared(file, FilePlan(file, (), (), {}), hooked, key, broken)


def _in_canary(plan: FilePlan) -> FilePlan:
    """What is in quarantine runs, and nothing else."""
    why = "the canary lane runs what is in quarantine"
    tests = [
        replace(t, bucket=None) if t.bucket is Bucket.QUARANTINED
        else replace(t, bucket=Bucket.NOT_SELECTED, reason=why, source="canary")
        if t.bucket is None
        else t
        for t in plan.tests
    ]  # fmt: skip
    return replace(plan, tests=tuple(tests))


def run_prepared(
    files: Sequence[Prepared], place: Place, choice: Choice, tell: Tell = lambda *_: None
) -> Run:
    """Runs what is chosen of prepared files, and accounts for all of their tests.

    Args:
        tell: is told what was run and which share of all is done.
    """
    clock = _Clock(choice.budget_s)
    total = max(sum(len(_chosen(file, choice)) for file in files), 1)
    done = 0
    lock = threading.Lock()

    def step(id_: str) -> None:
        nonlocal done
        with lock:
            done += 1
            tell(id_, min(done / total, 1.0))

    entries: list[Entry] = []
    problems = [problem for file in files for problem in file.problems]
    with ThreadPoolExecutor(choice.workers) as pool:
        runs = [pool.submit(_run_file, file, place, choice, clock, step) for file in files]
        for future in runs:
            entries += future.result()
    ledger = ledger_of(entries)
    return Run(ledger, (*problems, *ledger.problems(universe(files))))


def universe(files: Sequence[Prepared]) -> Collection[str]:
    """The ids that a ledger must hold."""
    broken = {f"{file.file.path}::*" for file in files if file.broken}
    return broken | {test.id for file in files for test in file.plan.tests}


def _chosen(file: Prepared, choice: Choice) -> list[Planned]:
    return [test for test in file.plan.scheduled() if not choice.why_not(test.id)]


def _run_file(
    file: Prepared, place: Place, choice: Choice, clock: _Clock, step: Callable[[str], None]
) -> list[Entry]:
    if file.broken:
        why = file.broken
        return [
            Entry(
                f"{file.file.path}::*", Bucket.IMPORT_ERROR, Verdict.GATE, why.reason, "import",
                trace=why.trace,
            )
        ]  # fmt: skip
    ended = _ended(file, place, choice, clock, step)
    return [_entry(test, ended, choice) for test in file.plan.tests]


def _ended(
    file: Prepared, place: Place, choice: Choice, clock: _Clock, step: Callable[[str], None]
) -> dict[str, Ended]:
    chosen = _chosen(file, choice)
    known = {test.id for test in chosen}
    path = place.work / "journal" / f"{file.file.path.removesuffix('.py')}.jsonl"
    with Journal(path, file.key, choice.resume) as journal:
        found = {id_: ended for id_, ended in journal.earlier.items() if id_ in known}
        for id_ in found:
            step(id_)
        left = [test for test in chosen if test.id not in found]
        for ended in _first_runs(file, place, left, choice, clock):
            found[ended.id] = ended
            journal.add(ended)
            step(ended.id)
        for test in chosen:
            again = test.id in found and _is_repeated(test, found[test.id], choice)
            if again and not clock.over():
                found[test.id] = _repeated(file, place, found[test.id])
                journal.add(found[test.id])
    return found


def _first_runs(
    file: Prepared, place: Place, tests: Sequence[Planned], choice: Choice, clock: _Clock
) -> Iterator[Ended]:
    alone = [t.id for t in tests if choice.canary or (t.rule is not None and t.rule.isolate)]
    together = [t.id for t in tests if t.id not in set(alone)]
    yield from run(place, file.hooked, together, clock.over)
    for id_ in alone:
        yield from run(place, file.hooked, [id_], clock.over)


def _is_repeated(test: Planned, ended: Ended, choice: Choice) -> bool:
    if ended.outcome not in _BAD or choice.repeat == "none" or ended.reason.startswith(AGAIN):
        return False
    return choice.repeat == "all" or test.verdict is not Verdict.OBSERVE


def _repeated(file: Prepared, place: Place, first: Ended) -> Ended:
    """A failure run once more alone: it stays one, or is flaky."""
    second = next(run(place, file.hooked, [first.id]), None)
    if second is None or second.outcome in _BAD or second.outcome == "not-reached":
        return replace(first, reason=f"{AGAIN}{first.reason}")
    trace = f"first: {first.outcome}: {first.trace}\nthen: {second.outcome}: {second.trace}"
    reason = f"{first.outcome} ({first.reason}), then {second.outcome} alone"
    return Ended(first.id, "flaky", reason, trace, first.seconds + second.seconds)


_BUCKETS = {
    "passed": Bucket.PASSED, "failed": Bucket.FAILED, "skipped": Bucket.SKIPPED_UPSTREAM,
    "xfailed": Bucket.XFAILED, "xpass": Bucket.XPASS, "xfail-mismatch": Bucket.XFAIL_MISMATCH,
    "crashed": Bucket.CRASHED, "hung": Bucket.HUNG, "flaky": Bucket.FLAKY,
    "not-reached": Bucket.NOT_REACHED,
}  # fmt: skip


def _entry(test: Planned, ended: dict[str, Ended], choice: Choice) -> Entry:
    if test.bucket is not None:
        return Entry(test.id, test.bucket, test.verdict, test.reason, test.source)
    if why := choice.why_not(test.id):
        return Entry(test.id, Bucket.NOT_SELECTED, test.verdict, why, "choice")
    found = ended.get(test.id)
    if found is None:
        said = f"the run's {choice.budget_s or 0:g} s were over"
        bucket = Bucket.OVER_BUDGET if choice.budget_s is not None else Bucket.NOT_REACHED
        return Entry(test.id, bucket, test.verdict, said, "budget")
    bucket = _BUCKETS[found.outcome]
    source = "process" if bucket is Bucket.NOT_REACHED else test.source
    return Entry(
        test.id, bucket, test.verdict, found.reason, source, found.seconds, found.trace
    )  # fmt: skip


def place_of(rules: RuleSet, tests: Path, work: Path) -> Place:
    return Place(tests, work, rules.device, rules.bootstrap, rules.defaults.timeout_s)
