"""What the relay and its downstreams agree on: names, limits, states, what an address is.

From RFC-0050 and RFC-0054 of pytorch/rfcs and from the relay in pytorch/test-infra; where document
and code disagree, the code's form is sent and both are accepted.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from urllib.parse import urlsplit

AUDIENCE = "pytorch-cross-repo-ci-relay"
GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
BUILDKITE_ISSUER = "https://agent.buildkite.com"
WEBHOOK_PATH = "/github/webhook"
CALLBACK_PATH = "/github/callback"
LABEL_PREFIXES = ("ciflow/crcr/", "ciflow/oot/")  # the relay's own, and that of RFC-0050
MERGED_LABEL = "Merged"  # pull requests land by being closed, so `merged` stays false
SCHEMA_VERSION = "1"
FAILED_TESTS_KEY = "failed_tests"  # not in the texts read: sent only where it is asked for

DISPATCH_LIMIT = 65_535  # bytes of a client_payload that GitHub takes
HUD_LIMIT = 2 * 1024 * 1024  # bytes that the dashboard takes
RATE_LIMIT = 100  # callbacks of one repository ...
RATE_WINDOW = 60.0  # ... in so many seconds
STATE_SECONDS = 259_200.0  # that the relay remembers a delivery
ZOMBIE_SECONDS = 6 * 3600.0  # in progress, after which a job counts as timed out
TOKEN_SECONDS = 300.0
CLIENT_SECONDS = 60.0  # the relay may take 47: four tries of 10 at the dashboard, and its pauses

EVENTS = ("pull_request", "push")  # that are dispatched
NIGHTLY_EVENTS = ("nightly", "periodic")  # that a downstream reports by itself
CONCLUSIONS = ("success", "failure", "cancelled", "timed_out")

SHA = re.compile(r"[0-9a-f]{40}")
NO_SHA = "0" * 40  # GitHub's name for the commit of a deleted ref
DELIVERY = re.compile(r"[A-Za-z0-9._-]{1,128}")
REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,64}/[A-Za-z0-9._-]{1,100}")
REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/,-]{0,127}")


def is_address(text: str) -> bool:
    """Whether it is a plain http(s) address: a host, no account in it, no blanks."""
    try:
        parts = urlsplit(text)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # half a bracket, a port that is no number, a part of a name too long
        return False
    plain = text.isprintable() and " " not in text and "@" not in parts.netloc
    return plain and parts.scheme in ("http", "https") and bool(host)


class Level(IntEnum):
    """How far the relay trusts a repository."""

    L1 = 1
    L2 = 2
    L3 = 3
    L4 = 4


class State(StrEnum):
    """Where a delivery, or a job that it started, stands at the relay."""

    DISPATCHED = "dispatched"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


# A step from one to the other is legal; None is what the relay has not heard of.
LEGAL_STEPS: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.DISPATCHED),
        (None, State.IN_PROGRESS),
        (State.IN_PROGRESS, State.COMPLETED),
    }
)
