"""The page of `spyre models`: what runs, weighted by downloads, and what does not and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from openspyre.hf.outcomes import LANES, RAN, Lane, Outcome, State
from openspyre.hf.shares import shares, uses


def page(found: Sequence[Outcome]) -> str:
    """Markdown."""
    return "\n".join(
        [*_head(found), *_weighted(found), *_failures(found), *_types(found), *_not_run(found)]
    )


def _head(found: Sequence[Outcome]) -> Iterator[str]:
    ran = [one for one in found if one.state in RAN]
    counted = Counter(one.state for one in found)
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
        f"{len(found)} types: {len(ran)} ran, {counted[State.SKIPPED]} cannot run here (each with"
        f" its reason below), {counted[State.BUILT]} were only built. What is not listed was not"
        " looked at; configs that are only parts of others, without a model class, are no types."
        " `results/models.json` has the commit of each that ran."
    )
    yield ""
    yield "| | " + " | ".join(state.value for state in RAN) + " |"
    yield "|---|---|---|---|---|"
    for name in LANES:
        counts = Counter(lane.state for one in ran if (lane := _lane(one, name)) is not None)
        cells = (f"{counts[state]}" for state in RAN)
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
        if one.state in RAN:
            graphs = one.compiled.graphs if one.compiled else ""
            cells = (one.type, one.kind, one.dtype, *map(_state, (one.eager, one.compiled)))
            yield f"| {' | '.join(cells)} | {graphs} |"
    yield ""


def _not_run(found: Sequence[Outcome]) -> Iterator[str]:
    """Types that did not run, by the kind of reason."""
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        if one.state not in RAN:
            kinds[_why_not(one)][one.reason].append(one.type)
    if not kinds:
        return
    yield "## What did not run"
    yield ""
    for kind, reasons in sorted(kinds.items()):
        yield f"{kind} ({sum(map(len, reasons.values()))}):"
        yield ""
        for reason, types in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
            yield f"- {_plain(reason) + ': ' if reason else ''}{', '.join(types)}"
        yield ""


def _why_not(one: Outcome) -> str:
    if one.state is State.BUILT:
        return "Only built: a tiny model can be made, and none was asked to run"
    if "requires the" in one.reason or "ModuleNotFoundError" in one.reason:
        return "Needs a package that is absent"
    if one.reason.startswith("CannotBuild: "):
        return "Cannot be built tiny, as its recipe says"
    if one.model:
        return "The CPU's run does not end well, or decides nothing"
    return "Cannot be built tiny: transformers refuses the sizes that the rules give it"


def _lane(one: Outcome, name: str) -> Lane | None:
    lane: Lane | None = getattr(one, name)
    return lane


def _state(lane: Lane | None) -> str:
    return lane.state.value if lane is not None else ""


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())
