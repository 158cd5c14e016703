"""The page of `spyre models`: what runs, weighted by downloads, and what does not and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from openspyre.hf.outcomes import LANES, Lane, Outcome, State
from openspyre.hf.shares import shares, uses


def page(found: Sequence[Outcome]) -> str:
    """Markdown."""
    return "\n".join([*_head(found), *_weighted(found), *_failures(found), *_types(found), ""])


def _head(found: Sequence[Outcome]) -> Iterator[str]:
    ran = [one for one in found if one.state is not State.SKIPPED]
    yield "# Which Hugging Face models run"
    yield ""
    yield (
        "Written by `spyre models --page`; do not edit. A tiny random model of each type of"
        " transformers runs on the CPU, eagerly on the card and through `torch.compile`: a forward"
        " pass and, where it generates, a prefill and four decode steps of stock `generate`. What"
        " *right* and *wrong* mean: `docs/decisions/0032.md`."
    )
    yield ""
    yield (
        f"{len(found)} types tried; the CPU ran {len(ran)} of them. What is not listed was not"
        " tried. `results/models.json` has the commit of each."
    )
    yield ""
    yield "| | " + " | ".join(s.value for s in State if s is not State.SKIPPED) + " |"
    yield "|---|---|---|---|---|"
    for name in LANES:
        counts = Counter(lane.state for one in ran if (lane := _lane(one, name)) is not None)
        cells = (f"{counts[s]}" for s in State if s is not State.SKIPPED)
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def _weighted(found: Sequence[Outcome]) -> Iterator[str]:
    yield "## By downloads"
    yield ""
    yield "| use | tried | right | without the CPU | wanted |"
    yield "|---|---|---|---|---|"
    for share in shares(found):
        yield (
            f"| {share.use} | {share.tried:g} % | {share.right:g} % | {share.alone:g} %"
            f" | {share.need:g} % |"
        )
    yield ""
    states = {one.type: one for one in found}
    for use in uses():
        words = (
            f"{name} {percent:g} ({states[name].state.value if name in states else 'not tried'})"
            for name, percent in use.shares.items()
        )
        yield f"{use.name.capitalize()}, %: {', '.join(words)}."
        yield ""


def _failures(found: Sequence[Outcome]) -> Iterator[str]:
    """Types by what went wrong, the most frequent first."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in found:
        for name in LANES:
            lane = _lane(one, name)
            if lane is not None and lane.state in (State.WRONG, State.RAISED, State.SKIPPED):
                by_reason[f"{lane.state.value}: {lane.reason}"].append(f"{one.type} ({name})")
            elif lane is not None and lane.state is State.FALLBACKS:
                for op in lane.fallbacks:
                    by_reason[f"on the CPU: {op}"].append(f"{one.type} ({name})")
    if not by_reason:
        return
    yield "## What is not right, or not without the CPU"
    yield ""
    for reason, types in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"- {_plain(reason)}: {', '.join(types)}"
    yield ""


def _types(found: Sequence[Outcome]) -> Iterator[str]:
    yield "## Every type"
    yield ""
    yield "| type | kind | compared in | eager | compiled | graphs |"
    yield "|---|---|---|---|---|---|"
    for one in sorted(found, key=lambda one: one.type):
        if one.state is not State.SKIPPED:
            graphs = one.compiled.graphs if one.compiled else ""
            cells = (one.type, one.kind, one.dtype, *map(_state, (one.eager, one.compiled)))
            yield f"| {' | '.join(cells)} | {graphs} |"
    yield ""
    skipped: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if one.state is State.SKIPPED:
            skipped[one.reason].append(one.type)
    if skipped:
        yield "## Skipped: the CPU does not run them here"
        yield ""
        for reason, types in sorted(skipped.items(), key=lambda item: (-len(item[1]), item[0])):
            yield f"- {_plain(reason)}: {', '.join(types)}"


def _lane(one: Outcome, name: str) -> Lane | None:
    lane: Lane | None = getattr(one, name)
    return lane


def _state(lane: Lane | None) -> str:
    return lane.state.value if lane is not None else ""


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())
