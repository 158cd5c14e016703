"""How long moves on the ring take, and whether a tensor is fetched or goes through device memory.

The estimates are the engine's mechanism (docs/decisions/0013.md): every contiguous run of a message
holds each link on its way for the latency of LX and a cycle per 128 bytes. Which link is the
busiest they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from openspyre.spec import CardSpec

_UNEVEN = 8  # how much more the busiest link carries than the mean one, if few messages pass


@dataclass(frozen=True, slots=True)
class Move:
    """What cores fetch from the LX of others.

    Attributes:
        bytes: of one core.
        run: contiguous bytes.
        apart: how many different parts there are; cores that fetch the same share messages.
        cores: that fetch.
    """

    bytes: int
    run: int
    apart: int
    cores: int


def exchange_cycles(move: Move, card: CardSpec, *, beside: bool) -> float:
    """Cycles until all have what they fetch, when the core that holds a part lies anywhere.

    A message goes a quarter of the way round to one reader, and on to its neighbours; to many
    readers that lie anywhere it goes nearly all of the way.

    Args:
        beside: whether those that fetch the same are neighbours.
    """
    fan = max(1.0, move.cores / move.apart)
    passed = fan / (fan + 3) * card.cores
    if beside:
        passed = min(passed, card.cores / 4 + fan / 2)
    uneven = 1 + _UNEVEN / sqrt(move.apart * passed)
    latency = card.lx_latency_cycles + passed / 2 * card.ring_hop_cycles
    return _busiest(move, card, passed, uneven) + latency


def ring_cycles(move: Move, card: CardSpec) -> float:
    """What the mean link carries when messages go a quarter of the way: latencies hide behind
    other trips.
    """
    return _busiest(move, card, card.cores / 4)


def by_ring_is_sooner(move: Move, card: CardSpec, *, copies: int = 2) -> bool:
    """Whether the ring takes less time than to store the tensor and to load it again.

    Args:
        copies: 1 where it need not be stored.
    """
    requests = copies * ceil(move.bytes / max(move.run, 1)) * move.apart
    each = max(card.dram_request_ns, move.run / card.dram_oneway)
    return ring_cycles(move, card) < requests * each * card.clock_ghz


def _busiest(move: Move, card: CardSpec, passed: float, uneven: float = 1.0) -> float:
    """Cycles of the busiest link or port.

    Args:
        passed: links that a message passes.
        uneven: what the busiest link carries, over the mean.
    """
    fan = max(1.0, move.cores / move.apart)
    slower: float = max(1.0, (fan / card.multicast_free) ** card.multicast_exponent)
    runs = ceil(move.bytes / max(move.run, 1)) * move.apart
    each = card.lx_latency_cycles + ceil(move.run / card.ring_bytes_per_cycle)
    links = runs * each * passed / (2 * card.cores) * uneven
    ports = move.bytes / (card.lx_bytes_per_cycle * card.corelets)
    return max(links, ports) * slower
