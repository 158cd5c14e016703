"""What the units of a card did during one launch, from the events of its time engine.

`lines` says what each of the user's lines cost, `use_over_time` how busy each unit was,
`traffic_over_time` how many bytes moved, `lx_lifetimes` which buffers held something, where and
when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openspyre.card.native import EVENT, UNITS, Events
from openspyre.ir.kernel import Space
from openspyre.ir.program import Copy, Instr, Node, Place, Program, Pt, Ring, TileLoop, Vec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_SOURCE = "(no line of the user's)"
TRAFFIC = ("read_bytes", "write_bytes", "ring_bytes")


@dataclass(frozen=True, slots=True)
class LineCost:
    """What the instructions of one source cost a launch.

    Attributes:
        cycles: its share of the launch's cycles: sources share them in proportion to the time of
            the unit that each keeps busy longest.
        busy: cycles by unit, summed over cores.
        limiting: the unit that it keeps busy longest.
    """

    source: str
    cycles: float
    busy: Mapping[str, float]
    read_bytes: int
    write_bytes: int
    ring_bytes: int
    limiting: str


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of one core held something: from its first write to its last use, in cycles."""

    buffer: str
    offset: int
    bytes: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One instruction of a program: where it came from, and the buffers it touches."""

    origin: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def lines(program: Program, events: Events, cycles: int) -> tuple[LineCost, ...]:
    """What every source cost, the most expensive first; `cycles` are the launch's."""
    touched = _instructions(program)
    found = {
        key: program.sources[i.origin] if i.origin >= 0 else NO_SOURCE for key, i in touched.items()
    }
    names = tuple(dict.fromkeys(found.values()))
    which = _by_event(events, {key: names.index(name) for key, name in found.items()})
    costs = [_line(name, events[which == n]) for n, name in enumerate(names)]
    total = sum(max(cost.busy.values()) for cost in costs)
    shares = [max(cost.busy.values()) / total if total else 0.0 for cost in costs]
    shared = [replace(c, cycles=cycles * share) for c, share in zip(costs, shares, strict=True)]
    return tuple(sorted(shared, key=lambda cost: -cost.cycles))


def _line(name: str, events: Events) -> LineCost:
    spent = events["end"] - events["begin"]
    busy = {unit: float(spent[events["unit"] == n].sum()) for n, unit in enumerate(UNITS)}
    read, write, ring = (int(events[kind].sum()) for kind in TRAFFIC)
    return LineCost(name, 0.0, busy, read, write, ring, max(busy, key=busy.__getitem__))


def use_over_time(events: Events, cycles: int, cores: int, bins: int) -> Floats:
    """The share of every bin in which a unit was busy: an array [unit, core, bin]."""
    edges = np.linspace(0, cycles, bins + 1)
    result = np.zeros((len(UNITS), cores, bins))
    for unit, core, own in _by_unit(events):
        result[unit, core] = np.diff(_grown(own, own["end"] - own["begin"], edges))
    return result / (cycles / bins) if cycles else result


def traffic_over_time(events: Events, cycles: int, bins: int) -> Floats:
    """Bytes that moved in every bin: an array [read, write, ring; bin]. Sums are the report's."""
    edges = np.linspace(0, cycles, bins + 1)
    result = np.zeros((len(TRAFFIC), bins))
    for unit, _, own in _by_unit(events):
        if UNITS[unit] in ("load", "store", "ring"):
            for n, kind in enumerate(TRAFFIC):
                result[n] += np.diff(_grown(own, own[kind].astype(np.float64), edges))
    return result


def lx_lifetimes(program: Program, events: Events, core: int, gap: float) -> tuple[Lifetime, ...]:
    """What the LX of a core held, by buffer; breaks shorter than `gap` cycles do not count."""
    touched = _instructions(program)
    own = np.sort(events[events["core"] == core], order="begin")
    open_: dict[int, tuple[float, float, bool]] = {}  # begin, end, was read
    found: list[tuple[int, float, float]] = []
    for event in own:
        instruction = touched[int(event["section"]), int(event["node"])]
        begin, end = float(event["begin"]), float(event["end"])
        for number in instruction.reads:
            first, last, _ = open_.get(number, (begin, end, True))
            open_[number] = (first, max(last, end), True)
        for number in instruction.writes:
            first, last, was_read = open_.get(number, (begin, end, False))
            if was_read and begin - last > gap:
                found.append((number, first, last))
                first = begin
            open_[number] = (first, max(last, end), False)
    found += [(number, first, last) for number, (first, last, _) in open_.items()]
    buffers = program.buffers
    return tuple(
        Lifetime(buffers[n].name, buffers[n].offset, buffers[n].bytes * buffers[n].slots, b, e)
        for n, b, e in sorted(found, key=lambda item: (item[1], item[0]))
    )


def busiest_core(events: Events) -> int:
    """The core with most instructions; the first of several, 0 without any."""
    return int(np.bincount(events["core"]).argmax()) if len(events) else 0


def busy_spans(events: Events, gap: float) -> Events:
    """The events with those of one instruction on one core joined over breaks up to `gap`."""
    order = np.lexsort((events["begin"], events["node"], events["section"], events["core"]))
    sorted_ = events[order]
    if not len(sorted_):
        return sorted_
    same = np.ones(len(sorted_) - 1, bool)
    for name in ("core", "section", "node"):
        same &= sorted_[name][1:] == sorted_[name][:-1]
    starts = np.flatnonzero(np.r_[True, ~same | (sorted_["begin"][1:] > sorted_["end"][:-1] + gap)])
    joined = np.zeros(len(starts), EVENT)
    for name in ("section", "node", "core", "unit", "begin"):
        joined[name] = sorted_[name][starts]
    joined["end"] = np.maximum.reduceat(sorted_["end"], starts)
    for name in TRAFFIC:
        joined[name] = np.add.reduceat(sorted_[name], starts)
    return np.sort(joined, order="begin")


# --- events -----------------------------------------------------------------------------------


def _by_unit(events: Events) -> Iterator[tuple[int, int, Events]]:
    """Unit, core and the events of the two in order: a unit does one thing at a time."""
    order = np.lexsort((events["begin"], events["core"], events["unit"]))
    sorted_ = events[order]
    key = sorted_["unit"].astype(np.int64) << 32 | sorted_["core"]
    for own in np.split(sorted_, np.flatnonzero(np.diff(key)) + 1) if len(sorted_) else []:
        yield int(own["unit"][0]), int(own["core"][0]), own


def _grown(own: Events, amounts: Floats, edges: Floats) -> Floats:
    """How much of the amounts, each spread evenly over its event, has come by every edge."""
    so_far = np.r_[0.0, np.cumsum(amounts)]
    times = np.column_stack((own["begin"], own["end"])).ravel()
    values = np.column_stack((so_far[:-1], so_far[1:])).ravel()
    return np.asarray(np.interp(edges, times, values, left=0.0, right=so_far[-1]))


def _by_event(events: Events, values: Mapping[tuple[int, int], int]) -> Ints:
    """A value of every event's instruction."""
    width = 1 + max((node for _, node in values), default=0)
    table = np.full((1 + max((section for section, _ in values), default=0)) * width, -1)
    for (section, node), value in values.items():
        table[section * width + node] = value
    return np.asarray(table[events["section"].astype(np.int64) * width + events["node"]])


# --- instructions of a program ------------------------------------------------------------------


def instruction_names(program: Program) -> dict[tuple[int, int], tuple[str, str]]:
    """What every instruction is (copy, pt or vec) and its source, by section and number."""
    names = {}
    for section, number, node in _numbered(program):
        origin = node.origin
        source = program.sources[origin] if origin >= 0 else NO_SOURCE
        names[section, number] = (type(node).__name__.lower(), source)
    return names


def _instructions(program: Program) -> dict[tuple[int, int], _Instruction]:
    """Every instruction by section and number in it, as the card counts them."""
    return {
        (section, number): _Instruction(node.origin, *_buffers(node))
        for section, number, node in _numbered(program)
    }


def _numbered(program: Program) -> Iterator[tuple[int, int, Instr]]:
    for n, section in enumerate(program.sections):
        for number, node in enumerate(_flat(section.body)):
            if not isinstance(node, TileLoop):
                yield n, number, node


def _flat(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        yield node
        if isinstance(node, TileLoop):
            yield from _flat(node.body)


def _buffers(node: Instr) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that an instruction reads and those it writes."""
    match node:
        case Copy():
            reads, writes = [i.place for i in node.indirect] + [node.source], [node.target]
        case Pt():
            reads, writes = [node.a, node.b], [node.c]
        case Vec():
            reads, writes = list(node.inputs), [out.place for out in node.outputs]
        case Ring():
            reads, writes = [node.source], [node.target]
    return _in_lx(reads), _in_lx(writes)


def _in_lx(places: list[Any]) -> tuple[int, ...]:
    found: list[Place] = [place for place in places if place.space is Space.LX]
    return tuple(dict.fromkeys(place.buffer for place in found))
