"""Every model type tried in a process of its own, which may crash, hang or fill the memory."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from openspyre.hf.outcomes import LANES, Failure, Lane, Outcome, State, read
from openspyre.runtime.whole_file import write_whole

_WORKER = "openspyre.hf.tiny_worker"
_START = "start"  # nothing was said yet: what fails is ours
_LEAVE_SECONDS = 10.0  # for a process that has said all


@dataclass(frozen=True, slots=True)
class Plan:
    """How to try.

    Attributes:
        seconds: that a type may take.
        jobs: processes at once.
        kept: folder of outcomes, one file a type; None keeps none.
        resume: takes what is kept for this version of the code instead of trying again.
        commit: to write into the outcomes.
        lanes: of eager and compiled those to run; with none, models are built and not run.
        fault: `module:function` that spoils the card's model, for tests of the trial itself.
    """

    seconds: float
    jobs: int = 1
    kept: Path | None = None
    resume: bool = False
    commit: str = ""
    lanes: tuple[str, ...] = LANES
    fault: str = ""


def surveyed(types: Sequence[str], plan: Plan) -> Iterator[Outcome]:
    """The outcome of every type, as they are found."""
    left = []
    for name in types:
        if plan.resume and (found := _kept(name, plan)) is not None:
            yield found
        else:
            left.append(name)
    if not left:
        return
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WORKER])
    with ThreadPoolExecutor(plan.jobs) as pool:
        futures = [pool.submit(_tried, context, name, plan) for name in left]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                _keep(outcome, plan)
                yield outcome
        finally:
            for future in futures:
                future.cancel()


def code_version() -> str:
    """Stands for the code that decides outcomes: of this package, and of what it runs on."""
    import torch
    import transformers

    digest = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".toml", ".so"):
            digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _tried(context: Any, name: str, plan: Plan) -> Outcome:
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(name, theirs, plan.lanes, plan.fault), daemon=True
    )
    process.start()
    theirs.close()
    try:
        return replace(answer(mine, process, name, plan.seconds), commit=plan.commit)
    finally:
        process.kill()
        process.join()
        mine.close()


def _work(name: str, pipe: Connection, lanes: tuple[str, ...], fault: str) -> None:
    from openspyre.hf.tiny_worker import work  # loaded by the fork server, never by the parent

    work(name, pipe, lanes, fault)


def answer(pipe: Connection, process: Any, name: str, seconds: float) -> Outcome:
    """What a process says over its pipe within its time; if it does not, that is its outcome."""
    end = time.monotonic() + seconds
    found, stage = Outcome(name), _START
    while pipe.poll(max(end - time.monotonic(), 0)):
        try:
            message = json.loads(pipe.recv_bytes())
        except EOFError:
            process.join()
            return _ended(found, stage, _how(process.exitcode))
        if "stage" in message:
            stage, found = message["stage"], read(message["so far"])
        else:
            process.join(_LEAVE_SECONDS)
            return read(message["outcome"])
    return _ended(found, stage, f"it did not end within {seconds:g} s")


def _how(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended with {code}"


def _ended(found: Outcome, stage: str, why: str) -> Outcome:
    """The outcome of a type whose process is gone: of the lane that it was in, else skipped."""
    lane, colon, _ = stage.partition(":")
    if not colon and stage != _START:
        return replace(found, reason=f"{stage}: {why}")
    failed = Lane(State.RAISED, f"{stage}: {why}", Failure(stage, "", "", why))
    return replace(found, compiled=failed) if lane == "compiled" else replace(found, eager=failed)


def _kept(name: str, plan: Plan) -> Outcome | None:
    """What is kept of a type, if it says all that the plan asks."""
    found = _read(name, plan)
    if found is None or found.state is State.SKIPPED:
        return found
    asked = [getattr(found, lane) for lane in plan.lanes]
    # Where a run has died, the one behind it never began.
    died = any(lane is not None and lane.state is State.RAISED for lane in asked)
    return found if died or None not in asked else None


def _keep(outcome: Outcome, plan: Plan) -> None:
    """Keeps an outcome beside what other plans have found of the type's other lanes."""
    if plan.kept is None:
        return
    if (before := _read(outcome.type, plan)) is not None:
        if not plan.lanes:
            return
        others = {lane: getattr(before, lane) for lane in LANES if lane not in plan.lanes}
        outcome = replace(outcome, **others)
    os.makedirs(plan.kept, exist_ok=True)
    write_whole(plan.kept / f"{outcome.type}.json", json.dumps(outcome.as_dict()).encode())


def _read(name: str, plan: Plan) -> Outcome | None:
    if plan.kept is None:
        return None
    try:
        return read(json.loads((plan.kept / f"{name}.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or of another version
        return None
