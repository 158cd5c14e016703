"""A callback is sent once: no second try is blind, since the first may have taken its state."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode, urlsplit

import httpx2

from openspyre.ci.relay.message import InvalidMessage, read_message
from openspyre.ci.relay.wire import AUDIENCE, CLIENT_SECONDS, is_address
from openspyre.errors import SpyreError

_ANSWER_LIMIT = 64 * 1024
_TOKEN_SECONDS = 20.0
_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # what a header may hold


class NoToken(SpyreError):
    """The runner gives this job no token."""


class Delivery(StrEnum):
    """What became of a callback."""

    DELIVERED = "delivered"
    IGNORED = "ignored"  # the relay does not take reports of this repository
    REFUSED = "refused"  # nothing was taken
    DASHBOARD_REFUSED = "dashboard refused"  # the relay took the state, the dashboard not the row
    UNKNOWN = "unknown"  # the relay may have taken the state
    STATE_TAKEN = "state taken, dashboard unknown"
    UNREACHED = "unreached"  # nothing was sent


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a callback, and what to try. `status` is 0 where there was no answer."""

    delivery: Delivery
    status: int
    why: str
    hint: str


_RERUN = "re-run all jobs of the workflow (attempt + 1); sent again, the callback is refused"
_OUT_OF_ORDER = f"it was taken before, or the announcement was not: {_RERUN}"
_HINTS: dict[Delivery, str] = {
    Delivery.DELIVERED: "",
    Delivery.IGNORED: "the repository must be in upstream's allowlist at level 2 or above",
    Delivery.REFUSED: "mend what it names, then send it again",
    Delivery.DASHBOARD_REFUSED: f"mend what it names, then {_RERUN}",
    Delivery.UNKNOWN: f"{_RERUN}; or send it once more with --resend to see whether it was taken",
    Delivery.STATE_TAKEN: _RERUN,
    Delivery.UNREACHED: "nothing was taken: it may be sent again",
}


def send(
    url: str, body: bytes, token: str, *, resent: bool = False, seconds: float = CLIENT_SECONDS
) -> Sent:
    """Sends a callback, once.

    Args:
        url: of the relay's endpoint.
        body: the callback.
        token: that proves who sends it.
        resent: that the callback was sent before with an outcome that nobody knows.
        seconds: in which an answer must be there, whole.

    Raises:
        InvalidMessage: the address is none, or the token would travel in the clear.
    """
    _check_address(url, "relay")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        status, answer = _answer("POST", url, headers, body, seconds)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol) as error:
        return _sent(Delivery.UNREACHED, 0, type(error).__name__)
    except httpx2.HTTPError as error:
        return _sent(Delivery.UNKNOWN, 0, f"no answer ({type(error).__name__})")
    said = _said(answer)
    return _sent(_outcome(status, said, resent), status, said)


def _outcome(status: int, said: str, resent: bool) -> Delivery:
    if 200 <= status < 300:
        return Delivery.IGNORED if said == "ignored" else Delivery.DELIVERED
    if not 400 <= status < 500:
        return Delivery.UNKNOWN
    if said.startswith("HUD"):
        return Delivery.DASHBOARD_REFUSED
    # The state that the first sending may have taken is what makes the second one illegal.
    taken = resent and status == 400 and "dispatch record" not in said
    return Delivery.STATE_TAKEN if taken else Delivery.REFUSED


def _sent(delivery: Delivery, status: int, why: str) -> Sent:
    out_of_order = delivery is Delivery.REFUSED and "state transition" in why
    return Sent(delivery, status, why, _OUT_OF_ORDER if out_of_order else _HINTS[delivery])


def _said(answer: bytes) -> str:
    """The relay's word, shortened and on one line: it may repeat what was sent."""
    try:
        found = json.loads(answer)
        text = str(found.get("detail", found.get("status", ""))) if isinstance(found, dict) else ""
    except (ValueError, RecursionError):
        text = ""
    return "".join(c if c.isprintable() else " " for c in text)[:300].replace("::", ": :")


def fetch_token(url: str, password: str) -> str:
    """A token of this job, from the runner's service; only jobs with `id-token: write` have one.

    Raises:
        NoToken: there is none.
        InvalidMessage: the address is none, or the password would travel in the clear.
    """
    hint = "give the job `permissions: id-token: write`"
    if not url or not password:
        raise NoToken("this job may not have a token", hint=hint)
    if not _HEADER.fullmatch(password):
        raise NoToken(
            "the password for the token service is none",
            why="it has characters that a header cannot hold",
            hint="export ACTIONS_ID_TOKEN_REQUEST_TOKEN as it was given",
        )
    _check_address(url, "token service")
    address = f"{url}{'&' if '?' in url else '?'}{urlencode({'audience': AUDIENCE})}"
    headers = {"Authorization": f"Bearer {password}"}
    try:
        status, answer = _answer("GET", address, headers, None, _TOKEN_SECONDS)
    except httpx2.HTTPError as error:
        raise NoToken("the token service does not answer", why=type(error).__name__) from None
    if status != 200:
        raise NoToken("the token service refuses", why=f"HTTP {status}", hint=hint)
    given = read_message(answer, "the token", _ANSWER_LIMIT).field("value")
    token = given.text(16_384)
    return token if _HEADER.fullmatch(token) else given.wrong("no header can hold it")


def _answer(
    method: str, url: str, headers: dict[str, str], body: bytes | None, seconds: float
) -> tuple[int, bytes]:
    end = time.monotonic() + seconds
    found = bytearray()
    with (
        httpx2.Client(timeout=seconds, follow_redirects=False) as client,
        client.stream(method, url, headers=headers, content=body) as response,
    ):
        for part in response.iter_bytes():
            found += part
            if len(found) > _ANSWER_LIMIT:
                break
            if time.monotonic() > end:
                raise httpx2.ReadTimeout("the answer took too long")
        return response.status_code, bytes(found)


def _check_address(url: str, whose: str) -> None:
    scheme = url.partition(":")[0].lower() if ":" in url else "nothing"
    if scheme in ("http", "https") and not is_address(url):
        raise InvalidMessage(
            f"the address of the {whose} is none",
            why="it must have a host, a port that is a number, no blanks and no account",
            hint="write it as https://HOST/PATH",
        )
    if scheme != "https" and not (scheme == "http" and _is_loopback(urlsplit(url).hostname)):
        raise InvalidMessage(
            "a token must not travel in the clear",
            why=f"the address of the {whose} begins with {scheme}:",
            hint="use an https address; http is for this machine",
        )


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
