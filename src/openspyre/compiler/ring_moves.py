"""Whether a tensor that lies in LX is fetched from other cores, or goes through device memory.

The estimate is the engine's mechanism (docs/decisions/0013.md): every contiguous run of a message
holds each link on its way for the latency of LX and a cycle per 128 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from openspyre.spec import CardSpec


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


def ring_cycles(move: Move, card: CardSpec) -> float:
    """Cycles of the busiest links, when messages go a quarter of the way round on average."""
    fan = max(1.0, move.cores / move.apart)
    slower: float = max(1.0, (fan / card.multicast_free) ** card.multicast_exponent)
    runs = ceil(move.bytes / max(move.run, 1)) * move.apart
    each = card.lx_latency_cycles + ceil(move.run / card.ring_bytes_per_cycle)
    links = runs * each * (card.cores / 4) / (2 * card.cores)
    ports = move.bytes / (card.lx_bytes_per_cycle * card.corelets)
    return max(links, ports) * slower


def by_ring_is_sooner(move: Move, card: CardSpec, *, copies: int = 2) -> bool:
    """Whether the ring takes less time than to store the tensor and to load it again.

    Args:
        copies: 1 where it need not be stored.
    """
    requests = copies * ceil(move.bytes / max(move.run, 1)) * move.apart
    each = max(card.dram_request_ns, move.run / card.dram_oneway)
    return ring_cycles(move, card) < requests * each * card.clock_ghz
