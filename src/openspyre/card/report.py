"""What the card's time engine says about a launch, and how people read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Protocol

from rich.table import Table

from openspyre.spec import SPYRE_CARD_V1, CardSpec


@dataclass(frozen=True, slots=True)
class Report:
    """One launch, or several added up; the fields of `spyre_report` in csrc/card/card.h.

    Attributes:
        cycles: core clock cycles from start to end.
        bound_p_cycles: what peak arithmetic and peak memory rates alone would need.
        pt_busy, sfu_busy, load_busy, store_busy: cycles, summed over cores.
        device_read_bytes, device_write_bytes: whole sticks; what several cores share counts once.
        ring_bytes: bytes that one core handed to another, once per receiver.
        flop: of PT, two per multiply-add.
        sfu_ops: scalar ops of SFU.
        lx_peak: bytes of the fullest core.
        cores: how many had work.
        instructions: dynamic, of all cores.
    """

    cycles: int = 0
    bound_p_cycles: int = 0
    pt_busy: int = 0
    sfu_busy: int = 0
    load_busy: int = 0
    store_busy: int = 0
    device_read_bytes: int = 0
    device_write_bytes: int = 0
    ring_bytes: int = 0
    flop: int = 0
    sfu_ops: int = 0
    lx_peak: int = 0
    cores: int = 0
    instructions: int = 0

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Report:
        """From the fields of `spyre_report` by name; all of them must be there."""
        return cls(**{f.name: numbers[f.name] for f in fields(cls)})

    def __add__(self, other: Report) -> Report:
        """One after the other: sums, and the larger of what is a peak."""
        return Report(
            **{
                f.name: (max if f.name in ("lx_peak", "cores") else int.__add__)(
                    getattr(self, f.name), getattr(other, f.name)
                )
                for f in fields(Report)
            }
        )

    def microseconds(self, spec: CardSpec = SPYRE_CARD_V1) -> float:
        """Card time."""
        return spec.microseconds(self.cycles)

    def pt_use(self, spec: CardSpec = SPYRE_CARD_V1) -> float:
        """The share of all cores' time in which their PT was busy (card.md 4)."""
        return share(self.pt_busy, self.cycles * spec.cores)

    def sfu_use(self, spec: CardSpec = SPYRE_CARD_V1) -> float:
        """The share of all cores' time in which their SFU was busy."""
        return share(self.sfu_busy, self.cycles * spec.cores)

    def times_bound(self) -> float:
        """Cycles over bound P: 1 is the best that the card's peaks allow; 0 without work."""
        return share(self.cycles, self.bound_p_cycles)

    def as_dict(self, spec: CardSpec = SPYRE_CARD_V1) -> dict[str, float]:
        """Every field and every derived number, for JSON."""
        return asdict(self) | {
            "microseconds": self.microseconds(spec),
            "pt_use": self.pt_use(spec),
            "sfu_use": self.sfu_use(spec),
            "times_bound": self.times_bound(),
        }


class KernelCost(Protocol):
    """A row of the table: a kernel's launches and what they cost together."""

    @property
    def name(self) -> str: ...
    @property
    def launches(self) -> int: ...
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


_NUMBERS = ("launches", "cycles", "us", "MB moved", "LX peak", "PT use", "SFU use", "x bound P")


def kernel_table(kernels: Iterable[KernelCost], spec: CardSpec = SPYRE_CARD_V1) -> Table:
    """What ran on the card, a row per kernel in the given order and a total."""
    rows = tuple(kernels)
    table = Table(title="On the card", title_justify="left", show_footer=len(rows) > 1)
    total = _cells(
        sum(k.launches for k in rows), sum((_report(k) for k in rows), start=Report()), spec
    )
    table.add_column("kernel", "total", overflow="fold")
    for header, footer in zip(_NUMBERS, total, strict=True):
        table.add_column(header, footer, justify="right", no_wrap=True)
    for kernel in rows:
        table.add_row(kernel.name, *_cells(kernel.launches, _report(kernel), spec))
    return table


def _report(kernel: KernelCost) -> Report:
    return Report(
        cycles=kernel.cycles,
        bound_p_cycles=kernel.bound_p_cycles,
        pt_busy=kernel.pt_busy,
        sfu_busy=kernel.sfu_busy,
        device_read_bytes=kernel.device_read_bytes,
        device_write_bytes=kernel.device_write_bytes,
        lx_peak=kernel.lx_peak,
    )


def _cells(launches: int, report: Report, spec: CardSpec) -> tuple[str, ...]:
    moved = report.device_read_bytes + report.device_write_bytes
    bound = report.times_bound()
    return (
        f"{launches}",
        f"{report.cycles:,}",
        f"{report.microseconds(spec):,.1f}",
        f"{moved / 1e6:,.2f}",
        f"{report.lx_peak / 1024:,.0f} KiB",
        f"{report.pt_use(spec):.1%}",
        f"{report.sfu_use(spec):.1%}",
        f"{bound:,.2f}" if bound else "-",
    )


def share(part: float, whole: float) -> float:
    """`part / whole`, 0 where there is nothing to share."""
    return part / whole if whole else 0.0
