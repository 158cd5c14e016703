"""What the relay dispatches, read strictly: `read_envelope` gives an Envelope with its Job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openspyre.ci.relay.message import InvalidMessage, Node, read_message
from openspyre.ci.relay.wire import DELIVERY, EVENTS, NO_SHA, REF, REPOSITORY, SHA

RECEIVED_LIMIT = 4 * 1024 * 1024  # the whole event in GitHub's file, indented, with our repository
ACTIONS = ("opened", "reopened", "synchronize", "closed")
ACTION_NAMES = (*ACTIONS, "synchronized")  # the other spelling of upstream's ci.md


@dataclass(frozen=True, slots=True)
class Job:
    """What a dispatch asks for.

    Attributes:
        delivery_id: names the dispatch; the same for its repetitions.
        kind: pull_request or push.
        repository: of upstream, owner/name.
        pr: number of the pull request; None for a push.
        sha: 40 hex digits: the pull request's head, or what was pushed (NO_SHA: deleted).
        base_ref: branch that the pull request goes to, or the ref pushed to (refs/heads/main);
            "" for a push to a name with characters that git allows and this does not.
        labels: of the pull request. They may hold any characters.
        action: of the pull request; "" for a push.
        updated: when the pull request last changed, in seconds since 1970; 0 where it is not said.
    """

    delivery_id: str
    kind: str
    repository: str
    pr: int | None
    sha: str
    base_ref: str
    labels: tuple[str, ...]
    action: str
    updated: float

    @property
    def concurrency(self) -> str:
        """Names what may run only once at a time: the pull request, or the ref pushed to."""
        return f"pr-{self.pr}" if self.pr is not None else f"push-{self.base_ref}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A dispatch: the Job, and the three fields as they came, which a callback sends back."""

    job: Job
    fields: Mapping[str, object]


def read_envelope(raw: bytes, upstream: str) -> Envelope:
    """The dispatch in `raw`: a client_payload, or the event in which GitHub hands it over.

    Raises:
        InvalidMessage: it is no dispatch of `upstream` (owner/name) in the published form.
    """
    message = read_message(raw, "the dispatch", RECEIVED_LIMIT)
    inner = message.optional("client_payload")
    node = message if inner is None else Node(inner.value, "client_payload")
    extra = sorted(node.mapping().keys() - {"event_type", "delivery_id", "payload"})
    if extra:
        node.wrong(f"it has {len(extra)} other fields than event_type, delivery_id and payload")
    kind = node.field("event_type").one_of(EVENTS)
    delivery = node.field("delivery_id").matching(DELIVERY, "the id of a delivery")
    payload = node.field("payload")
    repository = payload.field("repository").field("full_name")
    if repository.matching(REPOSITORY, "owner/name") != upstream:
        raise InvalidMessage(
            f"{repository.path} is another repository than upstream",
            why=f"{repository.value}, not {upstream}",
            hint="name upstream with --upstream",
        )
    read = _pull_request if kind == "pull_request" else _push
    return Envelope(read(payload, delivery, upstream), node.mapping())


def _pull_request(payload: Node, delivery: str, upstream: str) -> Job:
    pull = payload.field("pull_request")
    labels = pull.optional("labels")
    updated = pull.optional("updated_at")
    action = payload.field("action").one_of(ACTION_NAMES)
    return Job(
        delivery_id=delivery,
        kind="pull_request",
        repository=upstream,
        pr=pull.field("number").number(1, 2**31 - 1),
        sha=_sha(pull.field("head").field("sha")),
        base_ref=_ref(pull.field("base").field("ref")),
        labels=tuple(n.field("name").text(200) for n in labels.items(200)) if labels else (),
        action="synchronize" if action == "synchronized" else action,
        updated=updated.moment() if updated else 0.0,
    )


def _push(payload: Node, delivery: str, upstream: str) -> Job:
    deleted = payload.optional("deleted")
    sha = _sha(payload.field("after"))
    if (deleted is not None and deleted.flag()) != (sha == NO_SHA):
        payload.wrong("deleted and after contradict each other")
    return Job(
        delivery_id=delivery,
        kind="push",
        repository=upstream,
        pr=None,
        sha=sha,
        base_ref=pushed if _is_ref(pushed := payload.field("ref").text(1000)) else "",
        labels=(),
        action="",
        updated=0.0,
    )


def _sha(node: Node) -> str:
    return node.matching(SHA, "40 hex digits")


def _ref(node: Node) -> str:
    return ref if _is_ref(ref := node.text()) else node.wrong("it is not the name of a branch")


def _is_ref(text: str) -> bool:
    plain = REF.fullmatch(text) and len(text) <= 250
    return bool(plain) and ".." not in text and not text.endswith((".lock", "."))
