"""Ops that walk a row with one dim and with two share its tile."""

from __future__ import annotations

import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.tiles import Content, step_tiles
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Copy, Node, Program, TileLoop
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted


def centred(rows: int, width: int, read: str = "x[i0, r0]") -> Kernel:
    return plan_kernel(
        parse_kernel(f"""
kernel centred
arguments x y
input x: f16[{rows}, {width}]
output y: f16[{rows}, {width}]
local s: f32[{rows}]
op s reduce i0:{rows} | r0:{width}
  s[i0] <- sum: {read}
op y map i0:{rows} i1:{width}
  y[i0, i1] <- f16(x[i0, i1] - s[i0] * 0.5)
"""),
        SPYRE_CARD_V1,
    )


def loads(program: Program) -> int:
    def count(nodes: tuple[Node, ...]) -> int:
        total = 0
        for node in nodes:
            if isinstance(node, TileLoop):
                total += count(node.body)
            else:
                total += isinstance(node, Copy) and node.source.argument == 0
        return total

    return sum(count(s.body) for s in program.sections)


@pytest.mark.parametrize("width", [384, 1000, 129, 4096])
def test_a_row_that_is_summed_in_parts_is_loaded_once(width: int) -> None:
    kernel = centred(64, width)
    assert loads(emit(kernel, SPYRE_CARD_V1)) == 1
    check_interpreted(kernel)


def test_other_elements_are_loaded_apart() -> None:
    kernel = centred(64, 384, "x[i0, 383 - r0]")
    assert loads(emit(kernel, SPYRE_CARD_V1)) == 2
    check_interpreted(kernel)


def test_the_tile_is_as_the_first_reader_walks_it() -> None:
    kernel = centred(64, 384)
    (step,) = kernel.steps
    plan = step_tiles(kernel, step, kernel.divisions[step.name], SPYRE_CARD_V1)
    (tile,) = (t for t in plan.tiles if t.content is Content.OPERAND)
    (view,) = plan.views.values()
    assert len(tile.dims) == len(view) + 1
    assert view[-1].pitch == tile.dims[-1].pitch


def parted(order: tuple[int, int], rows: int = 64) -> Kernel:
    """Two products with more and fewer columns of one right operand, in that order."""
    ops = "\n".join(
        f"op dot{n} contract i0:{rows} i1:{n} | r0:64\n  y{n}[i0, i1] <- sum: x[i0, r0] * w[i1, r0]"
        for n in order
    )
    return plan_kernel(
        parse_kernel(f"""
kernel parted
arguments w x y128 y256
input w: f16[256, 64]
input x: f16[{rows}, 64]
output y128: f16[{rows}, 128]
output y256: f16[{rows}, 256]
{ops}
"""),
        SPYRE_CARD_V1,
    )


def test_fewer_columns_are_found_in_the_tile_of_more() -> None:
    kernel = parted((256, 128))
    assert len(kernel.steps) == 1
    assert loads(emit(kernel, SPYRE_CARD_V1)) == 1
    check_interpreted(kernel)


def test_more_columns_than_were_loaded_are_loaded() -> None:
    kernel = parted((128, 256))
    assert loads(emit(kernel, SPYRE_CARD_V1)) == 2
    check_interpreted(kernel)
