"""CardSpec: every hardware number, written once, with its source and grade.

Grades: M measured on silicon and published, D public documentation, C constant of a public
compiler or cost model, I inferred, G a guess (a round number, swept, never tuned).
`spyre-card-v1` is frozen, with the scores of docs/decisions/0008.md (`./dev bench calibration`):
another value is another version, with its reason and the change of every score.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _fact(value: float, unit: str, grade: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "grade": grade, "source": source})


@dataclass(frozen=True, slots=True)
class CardSpec:
    """The numbers of one card. Fields carry `unit`, `grade` and `source` as metadata."""

    cores: int = _fact(32, "", "D", "torch-spyre docs")
    corelets: int = _fact(2, "per core", "D", "torch-spyre docs")
    clock_ghz: float = _fact(1.5, "GHz", "C", "work-division planner (#2407)")
    mac_per_core_cycle: float = _fact(
        1024, "fp16 MAC/cycle/core", "I", "98.304 TF = 32 cores x 2 corelets x 64 PE x 8 x 2 x 1.5"
    )
    pt_sustain: float = _fact(0.742, "", "M", "cost model fit: 1140 MAC/ns/core (#3572)")
    pt_fill_rows: int = _fact(64, "rows", "M", "cost model fit (#3572)")
    pt_fill_exponent: float = _fact(0.35, "", "M", "cost model fit (#3572)")
    pt_rows_per_pass: int = _fact(8, "rows", "C", "work-division planner")
    pt_weight_passes: float = _fact(
        1.06,
        "passes to change the weights",
        "I",
        "with the next, pt_fill within 10 % for 8-512 rows",
    )
    pt_sustain_rows: int = _fact(256, "rows at which pt_sustain holds", "I", "see pt_weight_passes")
    pt_f32_rate: float = _fact(0.25, "of the fp16 rate", "G", "no fp32 matmul is documented")
    pt_fp8_rate: float = _fact(2, "of the fp16 rate", "D", "RaPiD ratio; 120 TF seen, PF")
    ksplit_corelets: int = _fact(
        1, "corelets that multiply when cores share K", "C", "work-division planner (#2407)"
    )
    psum_rate: float = _fact(
        1e3 / 140, "output elements/ns/core", "C", "planner, June 2026: 1.4e-4 us per element"
    )
    sfu_lanes: int = _fact(
        64, "fp16 per corelet and cycle", "G", "dataflow-scheduler sample device"
    )
    sfu_reduce_rate: float = _fact(1.5, "elements/ns/core", "M", "softmax ladder (#3572)")
    sfu_transcendental_rate: float = _fact(
        1.76, "elements/ns/core", "M", "silu sweep, public planner"
    )
    lx_bytes: int = _fact(2 << 20, "B per core", "D", "torch-spyre docs")
    lx_usable: int = _fact(1_625_344, "B per core", "M", "#3266, confirmed on device in #3216")
    lx_granule: int = _fact(128, "B", "D", "torch-spyre docs")
    lx_bytes_per_cycle: float = _fact(128, "B/cycle/corelet each way", "I", "RaPiD width")
    lx_latency_cycles: int = _fact(8, "cycles", "G", "guessed")
    ring_bytes_per_cycle: float = _fact(128, "B/cycle/direction", "D", "torch-spyre docs")
    ring_hop_cycles: int = _fact(1, "cycles", "G", "guessed")
    multicast_free: int = _fact(8, "consumers at full rate", "C", "work-division planner")
    multicast_exponent: float = _fact(0.75, "", "C", "work-division planner")
    dram_peak: float = _fact(204.8, "B/ns", "C", "work-division planner; bound P only")
    dram_oneway: float = _fact(150.0, "B/ns", "M", "cost model (#3572)")
    dram_turnaround: float = _fact(
        0.00574, "ns per byte of min(read, write)", "M", "cost model (#3572)"
    )
    dram_per_core: float = _fact(16.5, "B/ns/core", "M", "cost model: reductions on 1-4 cores")
    dram_few_cores: float = _fact(81.0, "B/ns", "M", "cost model: reductions on 8 and 16 cores")
    dram_partitioned_per_core: float = _fact(
        4.69, "B/ns/core", "M", "cost model: M=1 weights on 22 and 25 cores"
    )
    dram_latency_ns: float = _fact(200, "ns", "G", "nothing public")
    dram_burst: int = _fact(4096, "B", "C", "32 words of 128 B")
    dram_request_ns: float = _fact(
        3.75, "ns per request, card-wide, 32 cores", "M", "cost model (#3572)"
    )
    transpose_rate: float = _fact(40.0, "B/ns/core", "M", "on-chip transpose (#3572)")
    memory_bytes: int = _fact(112 << 30, "B", "D", "torch-spyre docs: about 112 GB usable")
    stick_bytes: int = _fact(128, "B", "D", "interface-specs")
    host_link: float = _fact(25.0, "B/ns", "G", "PCIe Gen5 x16, achieved rate guessed")
    launch_host_us: float = _fact(100.0, "us, never inside kernel time", "G", "#1728 components")

    def elements_per_stick(self, element_bytes: int) -> int:
        """How many elements of a size fill one stick."""
        return self.stick_bytes // element_bytes

    def numbers(self) -> dict[str, float]:
        """Every number by name, as the card's C API takes them."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}

    def microseconds(self, cycles: float) -> float:
        """Card time of a number of core clock cycles."""
        return cycles / self.clock_ghz / 1000


SPYRE_CARD_V1 = CardSpec()


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far the clock was off on measured matmuls; shares of the measured time.

    Attributes:
        fitted: mean absolute error on the measurements that were fitted.
        held_out: on shapes that the fit had not seen.
    """

    version: str
    fitted: float
    held_out: float
    source: str


CALIBRATED = Calibration("spyre-card-v1", 0.084, 0.087, "docs/decisions/0008.md")
BOARD_POWER_W = 75.0  # D, torch-spyre docs: the whole card's limit, so energy is an upper bound
