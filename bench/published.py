"""Published measurements beside what the card's clock says (data/published.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measurement import Measurement
from ring_moves import Regroup, regroup, shift
from split_matmul import Split, split_matmul
from split_scores import Clock
from streams import SOFTMAX, stream

from openspyre.ir.program import Program

DATA = Path(__file__).with_name("data") / "published.toml"
GAIN_TARGET = 20.0  # % that a gain may be off
MOVE_TARGET = 30.0  # % that a move may be off; the vendor's law is good for 25
_MATRIX = 512 * 1024 * 2  # bytes of the softmax
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """One published number and ours. `predicted` is None where no program says the same thing."""

    case: str
    measured: float
    predicted: float | None
    unit: str
    target: float | None = None
    remark: str = ""

    def measurement(self) -> Measurement:
        if self.predicted is None:
            detail = f"measured {self.measured:g}, not predicted: {self.remark}"
            return Measurement("calibration", self.case, 100.0, "% off", None, detail)
        error = 100 * (self.predicted / self.measured - 1)
        detail = f"measured {self.measured:.4g} {self.unit}, predicted {self.predicted:.4g}, "
        detail += f"error {error:+.1f} %" + (f"; {self.remark}" if self.remark else "")
        return Measurement("calibration", self.case, abs(error), "% off", self.target, detail)


def published(timer: Clock) -> Iterator[Published]:
    """Every row, in the order of the file."""
    groups = tomllib.loads(DATA.read_text())
    kinds = {
        "layout": _layout, "softmax": _softmax, "split_gain": _split_gain,
        "relayout_gain": _relayout_gain, "time": _times, "stream": _stream, "pt_use": _pt_use,
        "move": _moves, "moved_chain": _moved_chain, "ring_bound": _ring_bounds,
        "silent": _silent,
    }  # fmt: skip
    for kind, groups_of_kind in groups.items():
        for group in groups_of_kind:
            yield from kinds[kind](group, timer)


def _layout(group: Row, timer: Clock) -> Iterator[Published]:
    for b, n, before, after in group["rows"]:
        split = Split(b, 512, n, 4096, 1, 4, 8, 1)
        slow = timer.us(split_matmul(split, batch_inside=True))
        fast = timer.us(split_matmul(split))
        case = f"4.1 [{b},512,4096] @ [4096,{n}]"
        yield Published(f"{case}, [x,in,mb]", before, slow, "us")
        yield Published(f"{case}, [mb,in,x]", after, fast, "us")
        yield Published(f"{case}, gain", before / after, slow / fast, "x", GAIN_TARGET)


def _softmax(group: Row, timer: Clock) -> Iterator[Published]:
    base: tuple[float, float] | None = None
    for name, sections, us, *cores in group["stages"]:
        passes = [(_MATRIX * r, _MATRIX * w) for r, w in sections]
        used = cores[0] if cores else timer.spec.cores
        predicted = timer.us(stream(passes, SOFTMAX[len(passes)], used))
        base = base or (us, predicted)
        ratio = us / base[0]
        yield Published(f"4.2 softmax, {name}", ratio, predicted / base[1], "of baseline")


def _split_gain(group: Row, timer: Clock) -> Iterator[Published]:
    def total(division: list[int]) -> float:
        return sum(timer.us(split_matmul(Split(*m, *division))) for m in group["matmuls"])

    predicted = total(group["before"]) / total(group["after"])
    yield Published(f"gain of {group['case']}", group["gain"], predicted, "x", GAIN_TARGET)


def _relayout_gain(group: Row, timer: Clock) -> Iterator[Published]:
    split = Split(*group["matmul"], *group["split"])
    matmul = timer.us(split_matmul(split))
    weights = split.n * split.k * 2
    copied = timer.us(stream([(weights, weights)], [()], timer.spec.cores))
    case = f"gain of {group['case']}"
    yield Published(case, group["gain"], (matmul + copied) / matmul, "x", GAIN_TARGET)


def _times(group: Row, timer: Clock) -> Iterator[Published]:
    each = group.get("weights") == "each"
    for b, m, n, k, division, us in group["rows"]:
        predicted = timer.us(split_matmul(Split(b, m, n, k, *division), batched_weights=each))
        case = f"4.6 [{b},{m},{k}] @ [{f'{b},' if each else ''}{k},{n}], split {division}"
        yield Published(case, us, predicted, "us")


def _stream(group: Row, timer: Clock) -> Iterator[Published]:
    passes = [(group["bytes"], group["bytes"])] * group["sections"]
    predicted = timer.us(stream(passes, [("neg",)] * len(passes), group["cores"]))
    yield Published(f"4.4 {group['case']}", group["us"], predicted, "us", None, group["remark"])


def _pt_use(group: Row, timer: Clock) -> Iterator[Published]:
    for division, least, most in group["rows"]:
        reports = [timer.report(split_matmul(Split(*m, *division))) for m in group["matmuls"]]
        time = sum(r.cycles for r in reports) * timer.spec.cores
        use = sum(r.pt_busy for r in reports) / time
        nearest = min(max(use, least), most)  # of what was published
        case = f"4.3 SwiGLU MLP 512 x 4096, d_ff 12800, PT use, split {division}"
        yield Published(case, nearest, use, "of the time", None, f"{least:.0%} to {most:.0%}")


def _moves(group: Row, timer: Clock) -> Iterator[Published]:
    for case, us, *geometry, remark in group["rows"]:
        predicted = _move_us(regroup(Regroup(*geometry)), timer)
        yield Published(f"4.4 {case}", us, predicted, "us", MOVE_TARGET, remark)


def _moved_chain(group: Row, timer: Clock) -> Iterator[Published]:
    ops = (("neg",), ("abs",))  # abs for relu: the card has no op of one operand for that
    predicted = timer.us(regroup(Regroup(*group["move"]), ops))
    yield Published(f"4.4 {group['case']}", group["us"], predicted, "us", None, group["remark"])


def _ring_bounds(group: Row, timer: Clock) -> Iterator[Published]:
    size, cores, run = 1 << 22, 32, 4096
    for case, us, split in group["rows"]:
        program = (
            regroup(Regroup(size, cores, split, run)) if split else shift(size // cores, cores)
        )
        remark = "a bound: every link busy all the time"
        yield Published(f"4.4 ring bound, {case}", us, _move_us(program, timer), "us", None, remark)


def _move_us(program: Program, timer: Clock) -> float:
    """The section that moves, alone."""
    alone = tuple(s for s in program.sections if s.name == "move")
    return timer.us(replace(program, sections=alone))


def _silent(group: Row, timer: Clock) -> Iterator[Published]:
    for case, measured, why in group["rows"]:
        yield Published(case, measured, None, "", None, why)
