"""Which commits and dispatches of upstream never arrived here: the relay promises no delivery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openspyre.ci.relay.envelope import Job
from openspyre.ci.relay.journal import Entry
from openspyre.ci.relay.message import Node
from openspyre.ci.relay.receive import Step
from openspyre.ci.relay.wire import REF, SHA, ZOMBIE_SECONDS

_PAGES = 100_000  # entries of a list of GitHub's, all pages together


@dataclass(frozen=True, slots=True)
class Seen:
    """A commit that upstream shows.

    Attributes:
        sha: of the commit.
        pr: whose head it is; None for the head of a branch.
        base_ref: the branch, or the one that the pull request goes to.
        since: when it came there at the latest, in seconds since 1970.
    """

    sha: str
    pr: int | None
    base_ref: str
    since: float

    def job(self) -> Job:
        """What tests it: the delivery has the commit's name, as a nightly report wants."""
        return Job(
            delivery_id=self.sha,
            kind="pull_request" if self.pr is not None else "push",
            repository="",
            pr=self.pr,
            sha=self.sha,
            base_ref=self.base_ref if self.pr is not None else f"refs/heads/{self.base_ref}",
            labels=(),
            action="",
            updated=0.0,
        )


@dataclass(frozen=True, slots=True)
class Gaps:
    """What is missing.

    Attributes:
        missed: commits that upstream shows and no delivery led to anything for, each once, the
            latest first.
        unfinished: deliveries that run for longer than any run may.
        unreceived: files of dispatches that were never received, by the id of the delivery.
    """

    missed: tuple[Seen, ...]
    unfinished: tuple[Entry, ...]
    unreceived: Mapping[str, Path]


def read_pulls(node: Node) -> Iterator[Seen]:
    """The heads of pull requests, from GitHub's list of them.

    Raises:
        InvalidMessage: it is no such list.
    """
    for pull in node.items(_PAGES):
        yield Seen(
            sha=pull.field("head").field("sha").matching(SHA, "40 hex digits"),
            pr=pull.field("number").number(1, 2**31 - 1),
            base_ref=pull.field("base").field("ref").matching(REF, "the name of a branch"),
            since=pull.field("updated_at").moment(),
        )


def read_head(node: Node, branch: str) -> Iterator[Seen]:
    """A branch's head, from GitHub's list of its commits, which begins with the latest.

    Only the head counts: a push of several commits is one dispatch, which names the last.

    Raises:
        InvalidMessage: it is no such list.
    """
    for commit in list(node.items(_PAGES))[:1]:
        yield Seen(
            sha=commit.field("sha").matching(SHA, "40 hex digits"),
            pr=None,
            base_ref=branch,
            since=commit.field("commit").field("committer").field("date").moment(),
        )


def gaps(
    seen: Sequence[Seen],
    sent: Mapping[str, Path],
    entries: Sequence[Entry],
    now: float,
    *,
    window: float,
    patience: float,
) -> Gaps:
    """What is missing in the journal.

    Args:
        seen: what upstream shows.
        sent: files with what the relay sent, by the id of the delivery.
        entries: of the journal.
        now: seconds since 1970.
        window: seconds back from now; what is older is let be.
        patience: seconds in which a dispatch may still arrive.
    """
    # A push that is ignored (a tag, a branch of ghstack's) may name a pull request's head too.
    known = {entry.sha for entry in entries if entry.decision != Step.IGNORE}
    late = {
        s.sha: s
        for s in sorted(seen, key=lambda s: (s.since, s.pr or 0))
        if now - window <= s.since <= now - patience and s.sha not in known
    }
    taken = {entry.delivery_id for entry in entries}
    unfinished = (
        entry
        for entry in entries
        if entry.decision == Step.RUN
        and entry.conclusion is None
        and now - window <= entry.claimed <= now - ZOMBIE_SECONDS
    )
    return Gaps(
        missed=tuple(sorted(late.values(), key=lambda s: (-s.since, s.sha))),
        unfinished=tuple(unfinished),
        unreceived={name: path for name, path in sorted(sent.items()) if name not in taken},
    )
