"""Stage 8: operands that are loaded during an earlier step.

A step loads, computes and stores; between its last load and the first of the next step device
memory has nothing to bring. An operand of a later step that no step writes in the meantime can be
loaded then, behind what the earlier step loads for itself, where LX holds both: the later step
finds it there. It must be an operand that is loaded whole; a step that loads it in parts may get
other tile loops for that.

Operands queue up as steps need them. After every step a part of the queue has been loaded; which
part gives the least time of all steps together is found step by step, for every part that may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from types import MappingProxyType

from openspyre.compiler.axes import step_ops
from openspyre.compiler.cost import AS_FAST, Loads, Pace
from openspyre.compiler.lx_room import Room
from openspyre.compiler.step_forms import Form, Forms
from openspyre.compiler.tiles import Content
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Kernel
from openspyre.spec import CardSpec

_REACH = 4  # steps that an operand may lie in LX before its own
_FAR = 8  # the same for what is wanted behind others
_SAVES = 16.0  # cycles that an operand loaded early must save
_TRIED = 8  # choices, until all that is early has room
_SMALL = 100.0  # cycles of device memory or of the ring: what takes less goes with its neighbour


def load_early(
    kernel: Kernel, card: CardSpec, *, fixed: Collection[str] = (), works: Works | None = None
) -> Kernel:
    """Gives operands an earlier step to be loaded in, where that is sooner.

    Changes loops of steps, and the rows of their tiles: `first` of what is loaded early, offsets.

    Args:
        fixed: steps whose loops stay.
        works: see `work.works_of`.
    """
    if len(kernel.steps) < 2:
        return kernel
    stops = _stops(kernel, Forms(kernel, card, fixed, works))
    for _ in range(_TRIED):
        found, without_room = _with_room(kernel, soonest(stops, card), card)
        if not without_room:
            break
        stops = [_fewer(stop, without_room.get(n, {}), n) for n, stop in enumerate(stops)]
    return found


def _with_room(
    kernel: Kernel, chosen: Sequence[tuple[Form, dict[str, int]]], card: CardSpec
) -> tuple[Kernel, dict[int, dict[str, int]]]:
    """The kernel with steps in the chosen forms that find what is loaded early; and what had no
    room in LX, by step: these stay as they were.
    """
    room, steps = Room(kernel, card), list(kernel.steps)
    without_room = {}
    for number, (form, early) in enumerate(chosen):
        if not early and form.step == steps[number]:
            continue
        rows = room.with_early(number, form.tiles, early)
        if rows is None:
            without_room[number] = early
        else:
            room.replace_tiles(number, rows)
            steps[number] = form.step
    placed = MappingProxyType(room.rows)
    return replace(kernel, steps=tuple(steps), residency=placed), without_room


@dataclass(frozen=True, slots=True)
class Item:
    """Operands of a step that are loaded together.

    Attributes:
        since: the first step during which they can be loaded.
    """

    tensors: tuple[str, ...]
    bytes: int
    loads: Loads
    since: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A step and its part of the queue.

    Attributes:
        paces: for every form how it goes if the first so many of its items are in LX already; None
            if the form does not load these whole.
        handicaps: cycles by which forms would be ahead of the first one, which was chosen, if they
            loaded all there is: these are not for loading early to win.
    """

    forms: tuple[Form, ...]
    items: tuple[Item, ...]
    paces: tuple[tuple[Pace | None, ...], ...]
    handicaps: tuple[float, ...]

    def soonest(self, there: int, held: int, more: Loads, card: CardSpec) -> _Best | None:
        """The fastest form in which it finds its first items in LX and loads more.

        Args:
            held: bytes of LX that are for later steps.
        """
        best: _Best | None = None
        for form, paces, handicap in zip(self.forms, self.paces, self.handicaps, strict=True):
            pace = paces[there]
            if pace is None or (held and form.peak + held > card.lx_usable):
                continue
            time = pace.cycles_with(more) + handicap
            if best is None or time < best[0]:
                best = time, form
        return best


_Best = tuple[float, Form]


def _fewer(stop: Stop, early: Mapping[str, int], number: int) -> Stop:
    """A step the last of whose operands that were to be loaded early are not."""
    last = max((n for n, x in enumerate(stop.items) if x.tensors[0] in early), default=-1)
    items = (replace(x, since=number) if n == last else x for n, x in enumerate(stop.items))
    return replace(stop, items=tuple(items))


def _stops(kernel: Kernel, forms: Forms) -> list[Stop]:
    written: dict[str, int] = {}  # tensors, with the last step so far that writes them
    found = []
    for number, step in enumerate(kernel.steps):
        ways = tuple(forms.of(number))
        items = tuple(_items(number, ways[-1], written, forms))
        gone = [tuple(t for item in items[:n] for t in item.tensors) for n in range(len(items) + 1)]
        paces = tuple(
            tuple(
                forms.pace(number, form, some) if set(some) <= set(form.whole) else None
                for some in gone
            )
            for form in ways
        )
        times = [forms.time(number, form.step)[0].time for form in ways]
        equal = (AS_FAST - 1) * times[0]
        handicaps = (0.0, *(max(0.0, times[0] - time) + equal for time in times[1:]))
        found.append(Stop(ways, items, paces, handicaps))
        written |= {op.out.tensor: number for op in step_ops(kernel, step)}
    return found


def _items(number: int, form: Form, written: Mapping[str, int], forms: Forms) -> Iterator[Item]:
    """What could be loaded early for a form of a step, in the order of its use."""
    last: Item | None = None
    for tensor in form.whole:
        since = max(written.get(tensor, -1) + 1, forms.kernel.prologue)
        if since >= number:
            continue
        tiles = (t for t in form.tiles if t.content is Content.OPERAND and t.tensor == tensor)
        loads = forms.loads(number, form, (tensor,))
        item = Item((tensor,), sum(t.bytes for t in tiles), loads, since)
        if last is None:
            last = item
        elif last.since == since and min(_shared(last.loads), _shared(loads)) < _SMALL:
            both = (*last.tensors, tensor)
            last = Item(both, last.bytes + item.bytes, last.loads + loads, since)
        else:
            yield last
            last = item
    if last is not None:
        yield last


def _shared(loads: Loads) -> float:
    return max(loads.server, loads.ring)


def soonest(stops: list[Stop], card: CardSpec) -> list[tuple[Form, dict[str, int]]]:
    """For every step its form, and when which of its operands are loaded early."""
    queue = [item for stop in stops for item in stop.items]
    begins = [0, *accumulate(len(stop.items) for stop in stops)]
    best = {0: 0.0}  # the time of the steps so far, by how many items have been loaded
    ways: list[dict[int, tuple[int, Form]]] = []
    for number, stop in enumerate(stops):
        end, top = begins[number + 1], begins[min(number + _REACH, len(stops) - 1) + 1]
        times: dict[int, float] = {}
        way: dict[int, tuple[int, Form]] = {}
        for before, time in best.items():
            more, first = Loads(), max(before, end)
            held = sum(item.bytes for item in queue[end:first])
            for loaded in range(first, top + 1):
                if loaded > first:
                    item = queue[loaded - 1]
                    if item.since > number:
                        break
                    more, held = more + item.loads, held + item.bytes
                found = stop.soonest(min(before, end) - begins[number], held, more, card)
                if found is None:
                    break
                cycles = time + found[0] + _SAVES * (loaded - first)
                if cycles < times.get(loaded, inf):
                    times[loaded], way[loaded] = cycles, (before, found[1])
        best = times
        ways.append(way)
    forms, during = _followed(stops, queue, begins, ways)
    _Gaps(stops, queue, begins, forms, during, card).fill()
    names = [
        {t: during[n] for n in range(*begins[s : s + 2]) if n in during for t in queue[n].tensors}
        for s in range(len(stops))
    ]
    return list(zip(forms, names, strict=True))


def _followed(
    stops: list[Stop], queue: list[Item], begins: list[int],
    ways: list[dict[int, tuple[int, Form]]],
) -> tuple[list[Form], dict[int, int]]:  # fmt: skip
    """The forms of the steps, and of the queue what is loaded early, and when."""
    during: dict[int, int] = {}
    forms = []
    loaded = len(queue)
    for number in range(len(stops) - 1, -1, -1):
        before, form = ways[number][loaded]
        during |= dict.fromkeys(range(max(before, begins[number + 1]), loaded), number)
        forms.append(form)
        loaded = before
    return forms[::-1], during


class _Gaps:
    """Fills what time of device memory the queue leaves: steps load what is wanted further on.

    Of the queue every step loads the next part. What is too large for the time that is left waits
    for a later step; something smaller from behind it may still be loaded then.
    """

    def __init__(
        self, stops: list[Stop], queue: list[Item], begins: list[int], forms: list[Form],
        during: dict[int, int], card: CardSpec,
    ) -> None:  # fmt: skip
        self.stops, self.queue, self.begins, self.forms = stops, queue, begins, forms
        self.during, self.card = during, card
        self.step_of = [n for n, stop in enumerate(stops) for _ in stop.items]
        self.there = [
            sum(n in during for n in range(*begins[s : s + 2])) for s in range(len(stops))
        ]
        self.more = [Loads() for _ in stops]
        self.held = [0 for _ in stops]
        for item, step in during.items():
            self._load(item, step)

    def fill(self) -> None:
        for step in range(len(self.stops)):
            end = self.begins[min(step + _FAR, len(self.stops) - 1) + 1]
            while True:
                saved = {n: self._saved(n, step) for n in range(self.begins[step + 1], end)}
                best = max(saved, key=lambda n: saved[n], default=None)
                if best is None or saved[best] <= _SAVES:
                    break
                self._move(best, step)

    def _saved(self, item: int, step: int) -> float:
        """Cycles that are saved if a step loads an item, and not the one that does now."""
        own = self.step_of[item]
        now = self.during.get(item, own)
        first = item == self.begins[own] + self.there[own]  # of those that are not early
        if now <= step or self.queue[item].since > step or (now == own and not first):
            return 0.0
        size = self.queue[item].bytes
        between = range(step, now)
        if any(self.forms[n].peak + self.held[n] + size > self.card.lx_usable for n in between):
            return 0.0
        loads = self.queue[item].loads
        here = self._time(step, self.more[step] + loads) - self._time(step, self.more[step])
        if now == own:
            there = self._time(own, self.more[own], self.there[own] + 1)
        else:
            there = self._time(now, self.more[now] - loads)
        return self._time(now, self.more[now]) - there - here

    def _time(self, step: int, more: Loads, there: int | None = None) -> float:
        """Of a step in its form; endless if that does not load so many operands whole."""
        stop = self.stops[step]
        paces = stop.paces[stop.forms.index(self.forms[step])]
        pace = paces[self.there[step] if there is None else there]
        return inf if pace is None else pace.cycles_with(more)

    def _move(self, item: int, step: int) -> None:
        own = self.step_of[item]
        if item in self.during:
            self._load(item, self.during[item], -1)
        else:
            self.there[own] += 1
        self.during[item] = step
        self._load(item, step)

    def _load(self, item: int, step: int, sign: int = 1) -> None:
        """Enters an item that a step loads, or takes it back."""
        loads, size = self.queue[item].loads, self.queue[item].bytes
        self.more[step] = self.more[step] + loads if sign > 0 else self.more[step] - loads
        for number in range(step, self.step_of[item]):
            self.held[number] += sign * size
