"""Tile loops that are offered for a step: they fit LX, and splits that have none come last."""

from __future__ import annotations

import pytest

from openspyre.compiler import choices
from openspyre.compiler.capacity import fits, fitting, with_loops
from openspyre.compiler.choices import division_along, divisions
from openspyre.compiler.cost import Work, least_of_units, splits
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.compiler.step_work import StepWorks
from openspyre.compiler.tiles import Buffering, lx_peak
from openspyre.compiler.tilings import least_cycles, tilings
from openspyre.ir.kernel import Division, Kernel, Step
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1, CardSpec

Divided = tuple[Kernel, Step, Work]


def blocks(heads: int = 32, rows: int = 512, count: int = 4, keys: int = 4096) -> str:
    """Means over blocks of the rows of v, which fill LX one by one and do not fit together."""
    head = ["kernel blocks", "arguments p v y"]
    head += [f"input p: f16[{heads}, {rows}, 64]", f"input v: f16[{heads}, {count * keys}, 64]"]
    head += [f"output y: f32[{heads}, {rows}, 64]"]
    ops = []
    for n in range(count):
        last = n == count - 1
        head += [
            f"local e{n}: f16[{heads}, {rows}, {keys}]",
            f"local l{n}: f32[{heads}, {rows}, 1]",
        ]
        head += [f"local m{n}: f32[{heads}, {rows}, 64]"]
        head += [] if last else [f"local t{n}: f32[{heads}, {rows}, 64]"]
        out, sums = ("y" if last else f"t{n}"), f"t{n - 1}[i0, i1, i2]" if n else "1.0"
        ops += [
            f"op e{n} map i0:{heads} i1:{rows} i2:{keys}",
            f"  e{n}[i0, i1, i2] <- f16(exp(p[i0, i1, 0] * {n}.0))",
            f"op l{n} reduce i0:{heads} i1:{rows} | r0:{keys}",
            f"  l{n}[i0, i1, 0] <- sum: e{n}[i0, i1, r0]",
            f"op m{n} contract i0:{heads} i1:{rows} i2:64 | r0:{keys}",
            f"  m{n}[i0, i1, i2] <- e{n}[i0, i1, r0] * v[i0, r0 + {n * keys}, i2]",
            f"op {out} map i0:{heads} i1:{rows} i2:64",
            f"  {out}[i0, i1, i2] <- (m{n}[i0, i1, i2] / l{n}[i0, i1, 0] + {sums})",
        ]
    return "\n".join([*head, *ops]) + "\n"


@pytest.fixture(scope="module")
def divided() -> Divided:
    """The one step of the blocks, and its work."""
    forming = [name for name, _, _ in STAGES].index("divide") + 1
    kernel = plan_kernel(parse_kernel(blocks()), SPYRE_CARD_V1, stages=STAGES[:forming])
    (step,) = kernel.steps
    return kernel, step, StepWorks(kernel, SPYRE_CARD_V1).whole[0]


@pytest.mark.parametrize("split", [(32, 1), (4, 8), (1, 32)])
def test_what_stands_before_the_loops_is_counted_once_for_each_part(
    divided: Divided, split: tuple[int, ...]
) -> None:
    kernel, step, work = divided
    whole = division_along(step, work, split)
    for found in tilings(work, split, SPYRE_CARD_V1):
        looped = with_loops(step, work, found.loops, found.inner)
        peak = lx_peak(kernel, looped, whole, SPYRE_CARD_V1, Buffering.NONE)
        assert peak <= SPYRE_CARD_V1.lx_usable, (found.loops, found.inner)


def test_splits_without_room_for_any_tiles_come_after_all_that_have_it(divided: Divided) -> None:
    _, _, work = divided
    card = SPYRE_CARD_V1
    every = [(32, 1), (16, 2), (8, 4), (4, 8), (2, 16), (1, 32), (1, 1)]
    have = [split for split in every if tilings(work, split, card)]
    none = [split for split in every if split not in have]
    assert have
    assert none
    times = {split: least_cycles(work, split, card) for split in every}
    assert max(times[split] for split in have) < min(times[split] for split in none)


def test_the_step_fits_with_its_division(divided: Divided) -> None:
    kernel, step, work = divided
    assert fits(kernel, SPYRE_CARD_V1, step, work, kernel.divisions[step.name])
    assert next(fitting(kernel, StepWorks(kernel, SPYRE_CARD_V1).of(0)), None) is not None


def test_the_division_that_is_taken_is_the_first_with_a_real_fit(
    divided: Divided, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, step, work = divided
    first, second, *others = divisions(kernel, step, work, SPYRE_CARD_V1)

    def refused(kernel: Kernel, card: CardSpec, step: Step, work: Work, division: Division) -> bool:
        return division != first

    monkeypatch.setattr(choices, "fits", refused)
    assert divisions(kernel, step, work, SPYRE_CARD_V1) == [second, first, *others]


def test_no_unit_takes_longer_than_the_step(divided: Divided) -> None:
    _, _, work = divided
    card = SPYRE_CARD_V1
    for split in splits(work, card):
        for tiled in tilings(work, split, card):
            least = least_of_units(work, split, card, tiled.loops, tiled.inner)
            assert 0 < least <= tiled.cycles
