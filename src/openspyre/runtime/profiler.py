"""What ran, and what it cost: `with profile() as p: ...`, then `p.kernels`.

Card time is computed by the card's time engine for the sizes that were launched, when it is asked
for; profiling does not slow the launches down.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property

from openspyre import _C
from openspyre.runtime.launch import Kernel, kernels
from openspyre.spec import SPYRE_CARD_V1


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All launches of the kernels of one name. Counts are sums over launches.

    Attributes:
        cycles: core clock cycles of the card, from start to end of each launch.
        bound_p_cycles: what peak arithmetic and peak memory rates alone would need.
        pt_busy, sfu_busy: cycles, summed over cores.
        lx_peak: bytes of the fullest core, of the launch that needs most.
        kept: launches that found their weights in LX (`torch.spyre.lx_residents`).
        host_seconds: of this machine, inside the software card.
    """

    name: str
    launches: int
    cycles: int
    bound_p_cycles: int
    pt_busy: int
    sfu_busy: int
    device_read_bytes: int
    device_write_bytes: int
    ring_bytes: int
    flop: int
    sfu_ops: int
    lx_peak: int
    host_seconds: float
    kept: int

    @property
    def microseconds(self) -> float:
        """Card time."""
        return SPYRE_CARD_V1.microseconds(self.cycles)

    @property
    def pt_use(self) -> float:
        """The share of all cores' time in which their PT was busy."""
        return _share(self.pt_busy, self.cycles * SPYRE_CARD_V1.cores)

    @property
    def sfu_use(self) -> float:
        """The share of all cores' time in which their SFU was busy."""
        return _share(self.sfu_busy, self.cycles * SPYRE_CARD_V1.cores)

    @property
    def times_bound(self) -> float:
        """Cycles over bound P: 1 is the best that the card's peaks allow."""
        return _share(self.cycles, self.bound_p_cycles)

    def as_dict(self) -> dict[str, str | float]:
        """Every field and every derived number, for JSON."""
        derived = ("microseconds", "pt_use", "sfu_use", "times_bound")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class _Launches:
    """Launches of one kernel with one set of sizes."""

    kernel: Kernel
    variant: int
    sizes: tuple[int, ...]
    count: int
    seconds: float
    kept: int


@dataclass
class Profile:
    """What happened inside a `profile()` block; complete when the block has ended.

    Attributes:
        fallbacks: calls that ran on the CPU instead of the card, by op.
        host_seconds: wall time of the block.
    """

    fallbacks: Mapping[str, int] = field(default_factory=dict)
    host_seconds: float = 0.0
    _launches: tuple[_Launches, ...] = ()

    @cached_property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The kernels that ran, longest card time first."""
        by_name: dict[str, list[_Launches]] = {}
        for launches in self._launches:
            by_name.setdefault(launches.kernel.name, []).append(launches)
        uses = (_use(name, launches) for name, launches in by_name.items())
        return tuple(sorted(uses, key=lambda use: -use.cycles))

    @property
    def launches(self) -> int:
        """How many programs ran."""
        return sum(launches.count for launches in self._launches)

    @property
    def emulation_seconds(self) -> float:
        """Host time inside the software card."""
        return sum(launches.seconds for launches in self._launches)


@contextmanager
def profile() -> Iterator[Profile]:
    """Measures everything that this process runs on its cards inside the block."""
    result = Profile()
    _C.drain()  # what was launched before does not count
    before, fallbacks = _snapshot(), Counter(_C.fallbacks())
    start = time.perf_counter()
    try:
        yield result
    finally:
        _C.drain()
        result.host_seconds = time.perf_counter() - start
        result.fallbacks = dict(Counter(_C.fallbacks()) - fallbacks)
        result._launches = tuple(_since(before))


_Key = tuple[Kernel, int, tuple[int, ...]]


_Counts = tuple[int, float, int]


def _snapshot() -> dict[_Key, _Counts]:
    return {
        (kernel, variant, sizes): (count, seconds, kept)
        for kernel in kernels()
        for variant, sizes, count, seconds, _, kept in kernel.records()
    }


def _since(before: Mapping[_Key, _Counts]) -> Iterator[_Launches]:
    for key, (count, seconds, kept) in _snapshot().items():
        earlier, spent, found = before.get(key, (0, 0.0, 0))
        if count > earlier:
            yield _Launches(*key, count - earlier, seconds - spent, kept - found)


def _use(name: str, launches: list[_Launches]) -> KernelUse:
    reports = [
        (count, one.kernel.report(one.variant, one.sizes, kept))
        for one in launches
        for kept, count in ((False, one.count - one.kept), (True, one.kept))
        if count
    ]

    def total(field_name: str) -> int:
        return sum(count * report[field_name] for count, report in reports)

    return KernelUse(
        name=name,
        launches=sum(one.count for one in launches),
        cycles=total("cycles"),
        bound_p_cycles=total("bound_p_cycles"),
        pt_busy=total("pt_busy"),
        sfu_busy=total("sfu_busy"),
        device_read_bytes=total("device_read_bytes"),
        device_write_bytes=total("device_write_bytes"),
        ring_bytes=total("ring_bytes"),
        flop=total("flop"),
        sfu_ops=total("sfu_ops"),
        lx_peak=max(report["lx_peak"] for _, report in reports),
        host_seconds=sum(one.seconds for one in launches),
        kept=sum(one.kept for one in launches),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
