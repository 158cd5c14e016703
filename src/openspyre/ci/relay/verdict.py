"""Why a run failed, in the relay's form: what is too long is cut, what is wrong drops it whole."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from openspyre.ci.relay.message import Node, read_message
from openspyre.ci.relay.wire import is_address

CATEGORIES = ("upstream", "backend", "infra", "flake", "unknown")
CONFIDENCES = ("high", "medium", "low")
VERSION = 1
BYTES = 16 * 1024
SUMMARY, EXCERPT, REASON, WORDS, URL = 1000, 1000, 300, 200, 500  # characters
EVIDENCE = 10  # entries
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")


def read_verdict(raw: bytes) -> Mapping[str, object]:
    """The verdict as it is sent: known fields only, and those not too long.

    Raises:
        InvalidMessage: the relay would drop it.
    """
    return cut_verdict(read_message(raw, "the verdict", 64 * BYTES))


def cut_verdict(node: Node) -> Mapping[str, object]:
    """The verdict in a message, as `read_verdict` gives it."""
    size = len(json.dumps(node.mapping()).encode())
    if size > BYTES:
        node.wrong(f"it has {size} bytes, more than {BYTES}")
    version = node.field("schema_version").value
    if version not in (VERSION, str(VERSION)) or isinstance(version, bool | float):
        node.wrong(f"its schema_version is not {VERSION}")
    category = node.field("category").one_of(CATEGORIES)
    found: dict[str, object] = {
        "schema_version": VERSION,
        "category": category,
        "confidence": node.field("confidence").one_of(CONFIDENCES),
        "summary": _cut(node.field("summary"), SUMMARY),
    }
    if (suspect := node.optional("suspected_upstream")) is not None:
        if category != "upstream":
            suspect.wrong("it is for the category upstream only")
        found["suspected_upstream"] = _suspect(suspect)
    if (evidence := node.optional("evidence")) is not None:
        items = list(evidence.items(BYTES))[:EVIDENCE]
        found["evidence"] = [entry for item in items if (entry := _evidence(item))]
    if (reproduced := node.optional("reproduced_on_retry")) is not None:
        found["reproduced_on_retry"] = reproduced.flag()
    if (analyzer := node.optional("analyzer")) is not None:
        found["analyzer"] = _words(analyzer, ("name", "version", "model", "prompt_version"))
    if (moment := node.optional("analyzed_at")) is not None:
        moment.moment()
        found["analyzed_at"] = moment.text()
    return {name: value for name, value in found.items() if value not in ([], {})}


def _suspect(node: Node) -> Mapping[str, object]:
    found: dict[str, object] = {}
    if (pr := node.optional("pr")) is not None:
        found["pr"] = pr.number(1, 2**31 - 1)
    if (commit := node.optional("commit")) is not None:
        found["commit"] = commit.matching(_COMMIT, "7 to 40 hex digits")
    if not found:
        node.wrong("it names neither a pull request nor a commit")
    if (reason := node.optional("reason")) is not None:
        found["reason"] = _cut(reason, REASON)
    return found


def _evidence(node: Node) -> Mapping[str, object]:
    found: dict[str, object] = {**_words(node, ("job", "test"))}
    if (excerpt := node.optional("excerpt")) is not None:
        found["excerpt"] = _cut(excerpt, EXCERPT)
    if (link := node.optional("log_url")) is not None:
        found["log_url"] = _plain_url(link)
    return found


def _plain_url(node: Node) -> str:
    text = _cut(node, URL)
    return text if is_address(text) else node.wrong("it is no plain http(s) address")


def _words(node: Node, names: tuple[str, ...]) -> Mapping[str, str]:
    fields = {name: node.optional(name) for name in names}
    return {name: _cut(field, WORDS) for name, field in fields.items() if field is not None}


def _cut(node: Node, limit: int) -> str:
    text = node.text(BYTES).strip()
    return text[:limit] if text else node.wrong("it is empty")
