"""How long the ring is busy when cores fetch parts of a tensor from each other, link by link.

The engine's mechanism (docs/decisions/0013.md) without its events: every message goes the shorter
way round from the core that holds its points to all that read them, and each of its contiguous runs
holds the links on the way for the latency of LX and a cycle per 128 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, repeat
from math import ceil

from openspyre.compiler.addressing import pitches
from openspyre.compiler.axes import largest_part
from openspyre.ir.kernel import Part
from openspyre.spec import CardSpec

Range = tuple[int, int]  # of indices: the first, and the one behind the last
_Steps = Mapping[int, int]
Parts = tuple[Part | None, ...]  # how each dim of a tensor is spread over cores


@dataclass(frozen=True, slots=True)
class Reach:
    """What a core needs of a tensor's dim: so many indices from where its part begins."""

    part: Part | None
    span: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """What cores fetch from each other at one instruction.

    Attributes:
        shape: of the tensor; `order`: its dims as they lie in LX, outermost first.
        element: bytes.
        held: how the tensor is spread over those that hold it, the cores [0, holders).
        wanted: what each of those needs that fetch it, the cores [0, readers); digits of the number
            of a core that `held` does not give are the reader's own.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    element: int
    held: Parts
    holders: int
    wanted: tuple[Reach, ...]
    readers: int


@dataclass(slots=True)
class _Message:
    """Points of one core for all that read them; the farthest of these, both ways round."""

    cycles: int
    readers: int = 0
    forth: int = 0
    back: int = 0


@lru_cache(maxsize=1024)
def busiest_link(exchange: Exchange, card: CardSpec) -> float:
    """Cycles until the last link is free, if all are at the beginning."""
    links = [0.0] * (2 * card.cores)
    farthest = 0
    for holder, message in _messages(exchange, card):
        many = max(1, message.readers) / card.multicast_free
        cycles = message.cycles * max(1.0, many**card.multicast_exponent)
        for at in range(message.forth):
            links[2 * ((holder + at) % card.cores)] += cycles
        for at in range(message.back):
            links[2 * ((holder - at) % card.cores) + 1] += cycles
        farthest = max(farthest, message.forth, message.back)
    return max(links) + card.lx_latency_cycles + farthest * card.ring_hop_cycles


def _messages(exchange: Exchange, card: CardSpec) -> Iterator[tuple[int, _Message]]:
    """The messages of every core."""
    found: dict[tuple[int, tuple[Range, ...]], _Message] = {}
    parts = zip(exchange.shape, exchange.held, strict=True)
    at = _steps(exchange, [largest_part(extent, part) for extent, part in parts])
    for reader in range(exchange.readers):
        wanted = tuple(map(_needed, exchange.wanted, exchange.shape, repeat(reader)))
        for holder, piece in _pieces(exchange, wanted, reader):
            key = holder, piece
            if key not in found:
                found[key] = _Message(_cycles(exchange, piece, wanted, at, card))
            if holder == reader:
                continue
            message = found[key]
            message.readers += 1
            up = (reader - holder) % card.cores
            down = card.cores - up
            if up < down or (up == down and holder % 2 == 0):
                message.forth = max(message.forth, up)
            else:
                message.back = max(message.back, down)
    for (holder, _), message in found.items():
        yield holder, message


def _pieces(
    exchange: Exchange, wanted: tuple[Range, ...], reader: int
) -> Iterator[tuple[int, tuple[Range, ...]]]:
    """The core that holds each piece of what a reader wants, and the piece."""
    choices = []
    for part, extent, (low, high) in zip(exchange.held, exchange.shape, wanted, strict=True):
        if part is None:
            choices.append([(0, (low, high))])
            continue
        here = ((p, _range(part, extent, p)) for p in range(part.parts))
        choices.append(
            [
                (p * part.stride, (max(low, a), min(high, b)))
                for p, (a, b) in here
                if max(low, a) < min(high, b)
            ]
        )
    given = [p for p in exchange.held if p is not None]
    own = reader - sum(reader // p.stride % p.parts * p.stride for p in given)
    for chosen in product(*choices):
        holder = own + sum(number for number, _ in chosen)
        yield holder % exchange.holders, tuple(ranges for _, ranges in chosen)


def _needed(reach: Reach, extent: int, core: int) -> Range:
    part, low, high = reach.part, 0, extent
    if part is not None:
        low, high = _range(part, extent, core // part.stride % part.parts)
    return low, min(low + reach.span, high)


def _range(part: Part, extent: int, number: int) -> Range:
    """Part `number` of an axis, in whole granules."""
    granules = -(-extent // part.granule)
    low = number * granules // part.parts * part.granule
    high = (number + 1) * granules // part.parts * part.granule
    return min(low, extent), min(high, extent)


def _cycles(exchange: Exchange, piece: tuple[Range, ...], wanted: tuple[Range, ...], at: _Steps,
            card: CardSpec) -> int:  # fmt: skip
    """Of a link that a message passes. Points join a run while no stick lies between them."""
    source = target = exchange.element
    runs, open_ = 1, True
    to = _steps(exchange, [high - low for low, high in wanted])
    for dim in reversed(exchange.order):
        count = piece[dim][1] - piece[dim][0]
        if count == 1:
            continue
        if open_ and max(at[dim] - source, to[dim] - target) < card.stick_bytes:
            source += at[dim] * (count - 1)
            target += to[dim] * (count - 1)
        else:
            runs, open_ = runs * count, False
    return runs * (card.lx_latency_cycles + ceil(source / card.ring_bytes_per_cycle))


def _steps(exchange: Exchange, counts: Sequence[int]) -> _Steps:
    """Bytes between neighbours along every dim of a part of the tensor."""
    ordered, _ = pitches([counts[dim] for dim in exchange.order], exchange.element)
    return dict(zip(exchange.order, ordered, strict=True))
