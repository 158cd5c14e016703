"""Why a selected run is red, out of what the selection knows: the relay's `triage_verdict`.

A red test that upstream changed is upstream's first of all; one that nothing of the change reaches
is the backend's. Nobody has looked at the code: no confidence is higher than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from openspyre.ci.reuse.ledger import Bucket, Entry, Ledger
from openspyre.ci.reuse.running import AGAIN
from openspyre.ci.select.stages.diff import Change, Diff
from openspyre.ci.select.stages.plan import Plan, Tier

_EVIDENCE, _WORDS, _EXCERPT, _REASON, _SUMMARY = 10, 200, 1000, 300, 1000  # the relay's limits
_CONFIDENCE = {
    "upstream": "medium", "backend": "medium", "infra": "high", "flake": "high", "unknown": "low",
}  # fmt: skip


def triage(ledger: Ledger, changes: Diff, plan: Plan) -> Mapping[str, Any] | None:
    """The verdict on a run of a plan; None if nothing is red and all was reached."""
    bad = [e for e in ledger.entries if e.red or e.bucket is Bucket.NOT_REACHED]
    if not bad:
        return None
    known = _Selection(changes, plan)
    found = {entry.id: known.category(entry) for entry in bad}
    categories = sorted(set(found.values()))
    category = categories[0] if len(categories) == 1 else "unknown"
    by_kind = ", ".join(f"{list(found.values()).count(c)} {c}" for c in categories)
    first = bad[0]
    verdict: dict[str, Any] = {
        "schema_version": 1,
        "category": category,
        "confidence": _CONFIDENCE[category],
        "summary": f"{len(bad)} of {len(ledger.entries)} tests ({by_kind}); first {first.id}:"
        f" {first.bucket.value}: {first.reason}"[:_SUMMARY],
        "evidence": [_evidence(entry, known) for entry in bad[:_EVIDENCE]],
        "analyzer": {"name": "spyre-ci run-plan", "version": version("openspyre")},
    }
    if category == "upstream":
        if all(known.change(entry) is None for entry in bad):
            verdict["confidence"] = "low"  # reached by a change, and not changed itself
        reason = known.why(first)[:_REASON]
        verdict["suspected_upstream"] = {"commit": plan.head, "reason": reason}
    if (again := _reproduced(bad)) is not None:
        verdict["reproduced_on_retry"] = again
    return verdict


class _Selection:
    """What the selection says of a test."""

    def __init__(self, changes: Diff, plan: Plan) -> None:
        self._changes = {change.id: change for change in changes.changes}
        self._chosen = {one.id: one for one in plan.chosen}

    def change(self, entry: Entry) -> Change | None:
        """The change of the test itself, or of all tests of its class or file."""
        method = entry.id.partition("[")[0]
        file, _, rest = method.partition("::")
        names = (method, f"{file}::{rest.partition('::')[0]}::*", f"{file}::*")
        return next((self._changes[name] for name in names if name in self._changes), None)

    def category(self, entry: Entry) -> str:
        if entry.bucket is Bucket.NOT_REACHED:
            return "infra"
        if entry.bucket is Bucket.FLAKY:
            return "flake"
        return "upstream" if self.change(entry) is not None or self._reached(entry) else "backend"

    def why(self, entry: Entry) -> str:
        """Why the test was chosen, in the words of the stage that chose it."""
        change, chosen = self.change(entry), self._chosen.get(entry.id.partition("[")[0])
        if change is not None:
            return "; ".join(change.why) or f"changed: {', '.join(change.kinds)}"
        return chosen.why if chosen is not None else "no change reaches it"

    def _reached(self, entry: Entry) -> bool:
        chosen = self._chosen.get(entry.id.partition("[")[0])
        return chosen is not None and chosen.tier in (Tier.CHANGED, Tier.REACHED, Tier.UNSURE)


def _evidence(entry: Entry, known: _Selection) -> Mapping[str, str]:
    said = f"{entry.bucket.value}: {entry.reason}\nchosen: {known.why(entry)}"
    return {"test": entry.id[:_WORDS], "excerpt": said[:_EXCERPT]}


def _reproduced(bad: Iterable[Entry]) -> bool | None:
    """Whether what failed did so again alone; None if nothing was run twice."""
    twice = [entry.reason.startswith(AGAIN) for entry in bad if entry.bucket is not Bucket.FLAKY]
    if any(twice):
        return all(twice)
    return False if any(entry.bucket is Bucket.FLAKY for entry in bad) else None
