"""How long bytes between cards take, in card time (docs/decisions/0038.md).

A card reaches another one through its host link, both directions at once; what all cards send and
receive overlaps, so the busiest direction of the busiest card decides. Reductions stream their
operands through the memory of the card that makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.device.distributed.calls import Call
from openspyre.spec import SPYRE_CARD_V1, CardSpec


def link_picoseconds(calls: Sequence[Call], *, shared: bool, card: CardSpec = SPYRE_CARD_V1) -> int:
    """Card time in ps of one exchange.

    Args:
        calls: of all ranks.
        shared: every rank gets the same bytes from a rank, which leave its card once.
    """
    out = (max(call.sends) if shared else sum(call.sends) for call in calls)
    taken = (sum(call.takes) for call in calls)
    return round(max(*out, *taken) * 1000 / card.host_link)


def reduction_picoseconds(ranks: int, count: int, card: CardSpec = SPYRE_CARD_V1) -> int:
    """Card time in ps of reducing `ranks` operands of `count` bytes to one."""
    nanoseconds = (ranks + 1) * count / card.dram_oneway + count * card.dram_turnaround
    return round(nanoseconds * 1000)


def message_picoseconds(count: int, card: CardSpec = SPYRE_CARD_V1) -> int:
    """Card time in ps of so many bytes on the link."""
    return round(count * 1000 / card.host_link)
