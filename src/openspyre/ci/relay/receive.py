"""What a dispatch leads to: a run in some lane, a cancellation, or nothing, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from openspyre.ci.relay.envelope import Envelope, Job
from openspyre.ci.relay.journal import Claim, Journal, Run
from openspyre.ci.relay.wire import MERGED_LABEL, NO_SHA


class Step(StrEnum):
    """What follows from a dispatch."""

    RUN = "run"
    CANCEL = "cancel"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and where.

    Attributes:
        step: run, cancel what runs under the same concurrency key, or ignore.
        lane: pull-request, post-merge or push; "" where nothing runs.
        ref: what to check out of upstream: a commit; after a merge the branch, since no payload
            names the commit that landed.
        reason: in words, without text of the payload.
    """

    step: Step
    lane: str
    ref: str
    reason: str


def decision(job: Job, branches: frozenset[str]) -> Decision:
    """What a dispatch leads to that is neither repeated nor out of date.

    Args:
        job: the dispatch.
        branches: of upstream, to which a push is tested.
    """
    if job.kind == "push":
        return _of_push(job, branches)
    if job.action != "closed":
        return Decision(Step.RUN, "pull-request", job.sha, f"the pull request was {job.action}")
    if MERGED_LABEL in job.labels:
        return Decision(Step.RUN, "post-merge", job.base_ref, "the pull request has landed")
    return Decision(Step.CANCEL, "", "", "the pull request was closed without landing")


def _of_push(job: Job, branches: frozenset[str]) -> Decision:
    if job.sha == NO_SHA:
        return Decision(Step.IGNORE, "", "", "the ref was deleted")
    if job.base_ref.removeprefix("refs/heads/") not in branches:
        return Decision(Step.IGNORE, "", "", "pushes are tested on chosen branches only")
    return Decision(Step.RUN, "push", job.sha, "a chosen branch was pushed to")


def received(
    envelope: Envelope, run: Run, journal: Journal, branches: frozenset[str], now: float
) -> Decision:
    """What a dispatch leads to, once: the journal drops what is repeated or out of date."""
    fresh = decision(envelope.job, branches)
    match journal.claim(envelope.job, run, str(fresh.step), now):
        case Claim.DUPLICATE:
            return Decision(Step.IGNORE, "", "", "the delivery was taken before")
        case Claim.SUPERSEDED:
            return Decision(Step.IGNORE, "", "", "a later state of the pull request was taken")
        case Claim.RERUN:
            return replace(fresh, reason=f"{fresh.reason}; attempt {run.attempt}")
        case _:
            return fresh


def outputs(job: Job, chosen: Decision) -> Mapping[str, str]:
    """What the jobs of a workflow may use: values of known alphabets, safe in any context."""
    return {
        "step": str(chosen.step),
        "lane": chosen.lane,
        "ref": chosen.ref,
        "sha": job.sha,
        "repository": job.repository,
        "pr": "" if job.pr is None else str(job.pr),
        "delivery_id": job.delivery_id,
        "concurrency": job.concurrency,
    }
