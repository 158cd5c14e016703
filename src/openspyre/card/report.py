"""How people read what the card's time engine says: derived numbers, and a table of kernels.

PT use is the share of all cores' time in which their PT was busy; "x bound P" is cycles over what
peak arithmetic and peak memory rates alone would need (card.md 4), 1 at best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

from rich.table import Table

from openspyre.card.native import Report
from openspyre.spec import SPYRE_CARD_V1, CardSpec


class Cost(Protocol):
    """What a launch, or many, cost; the fields mean what they mean in `Report`."""

    @property
    def cycles(self) -> int: ...
    @property
    def bound_p_cycles(self) -> int: ...
    @property
    def pt_busy(self) -> int: ...
    @property
    def sfu_busy(self) -> int: ...
    @property
    def device_read_bytes(self) -> int: ...
    @property
    def device_write_bytes(self) -> int: ...
    @property
    def lx_peak(self) -> int: ...


class KernelCost(Cost, Protocol):
    """A kernel's launches and what they cost together."""

    @property
    def name(self) -> str: ...
    @property
    def launches(self) -> int: ...


class LeastWork(Protocol):
    """What must be done whatever the plan; the fields mean what they do in `least_work.Work`."""

    @property
    def flop(self) -> float: ...
    @property
    def filled_flop(self) -> float: ...
    @property
    def transcendentals(self) -> float: ...
    @property
    def read_bytes(self) -> float: ...
    @property
    def written_bytes(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Card times in microseconds, all work overlapped (card.md 4).

    Attributes:
        p: at peak rates; cannot be beaten.
        s: at sustained rates of PT and device memory.
        s2: like `s`, with PT filled by the rows there are and the SFU's transcendentals.
    """

    p: float
    s: float
    s2: float


def bounds(work: LeastWork, spec: CardSpec = SPYRE_CARD_V1) -> Bounds:
    """Bounds P, S and S2 of some work on a card."""
    peak = 2 * spec.mac_per_core_cycle * spec.clock_ghz * spec.cores  # FLOP/ns
    read, written = work.read_bytes, work.written_bytes
    memory = (read + written) / spec.dram_oneway + spec.dram_turnaround * min(read, written)
    sfu = work.transcendentals / (spec.sfu_transcendental_rate * spec.cores)
    p = max(work.flop / peak, (read + written) / spec.dram_peak)
    s = max(work.flop / (peak * spec.pt_sustain), memory)
    s2 = max(s, sfu, work.filled_flop / (peak * spec.pt_sustain))
    return Bounds(p / 1000, s / 1000, s2 / 1000)


def pt_use(cost: Cost, spec: CardSpec = SPYRE_CARD_V1) -> float:
    """The share of all cores' time in which their PT was busy; 0 without work."""
    return _share(cost.pt_busy, cost.cycles * spec.cores)


def sfu_use(cost: Cost, spec: CardSpec = SPYRE_CARD_V1) -> float:
    """The share of all cores' time in which their SFU was busy; 0 without work."""
    return _share(cost.sfu_busy, cost.cycles * spec.cores)


def times_bound(cost: Cost) -> float:
    """Cycles over bound P: 1 is the best that the card's peaks allow; 0 without work."""
    return _share(cost.cycles, cost.bound_p_cycles)


def summary(report: Report, spec: CardSpec = SPYRE_CARD_V1) -> dict[str, float]:
    """Every field of a report and every derived number, for JSON."""
    return asdict(report) | {
        "microseconds": spec.microseconds(report.cycles),
        "pt_use": pt_use(report, spec),
        "sfu_use": sfu_use(report, spec),
        "times_bound": times_bound(report),
    }


def kernel_table(kernels: Iterable[KernelCost], spec: CardSpec = SPYRE_CARD_V1) -> Table:
    """What ran on the card: a row per kernel in the given order, and their total."""
    rows = tuple(kernels)
    table = Table(
        title="On the card",
        title_justify="left",
        show_footer=len(rows) > 1,
        padding=(0, 0, 0, 1),
        box=None,
    )
    table.add_column("kernel", "total", overflow="fold", min_width=16)
    totals = _cells(sum(k.launches for k in rows), rows, spec)
    for (header, _), footer in zip(_cells(0, (), spec), totals, strict=True):
        table.add_column(header, footer[1], justify="right", no_wrap=True)
    for kernel in rows:
        table.add_row(kernel.name, *(text for _, text in _cells(kernel.launches, [kernel], spec)))
    return table


def _cells(launches: int, costs: Iterable[Cost], spec: CardSpec) -> tuple[tuple[str, str], ...]:
    """Header and text of every column for kernels that ran one after another."""
    found = tuple(costs)
    cycles = sum(c.cycles for c in found)
    moved = sum(c.device_read_bytes + c.device_write_bytes for c in found)
    core_cycles = cycles * spec.cores
    bound = _share(cycles, sum(c.bound_p_cycles for c in found))
    return (
        ("launches", f"{launches}"),
        ("cycles", f"{cycles:,}"),
        ("us", f"{spec.microseconds(cycles):,.1f}"),
        ("MB moved", f"{moved / 1e6:,.2f}"),
        ("LX peak", f"{max((c.lx_peak for c in found), default=0) / 1024:,.0f} KiB"),
        ("PT use", f"{_share(sum(c.pt_busy for c in found), core_cycles):.1%}"),
        ("SFU use", f"{_share(sum(c.sfu_busy for c in found), core_cycles):.1%}"),
        ("x bound P", f"{bound:,.2f}" if bound else "-"),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
