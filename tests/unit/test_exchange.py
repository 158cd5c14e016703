"""Estimates of what cores fetch from each other, against the card's clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.card.native import UNITS, SoftwareCard
from openspyre.compiler.emit import emit
from openspyre.compiler.residency import far_tensors, place
from openspyre.compiler.step_forms import Forms
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

# Step s0 makes t, step s1 reads its rows, or columns of heads of 32.
FETCHES = """kernel fetches
arguments x y
input x: f16[{rows}, {columns}]
output y: f16[{out}]
local t: f16[{rows}, {columns}]
op a map i0:{rows} i1:{columns}
  t[i0, i1] <- x[i0, i1] + 1.0
op b map {dims}
  y[{own}] <- t[{index}] * 2.0
layout t: 0 1
step s0: a
  axes i0:{rows} i1:{columns}
  bind a: i0=i0 i1=i1
step s1: b
  axes {dims}
  bind b: {bind}
  {loops}
division s0: {made}
division s1: {read}
"""


def fetches(
    shape: tuple[int, int],
    made: tuple[int, int],
    read: tuple[int, int],
    loops: str = "",
    grain: int = 1,
    *,
    heads: bool = False,
) -> str:
    rows, columns = shape
    if heads:
        dims = {"i0": columns // 32, "i1": rows, "i2": 32}
        index, split = "i1, 32*i0 + i2", dict(zip(("i0", "i1"), read, strict=True))
    else:
        dims, index = {"i0": rows, "i1": columns}, "i0, i1"
        split = dict(zip(dims, read, strict=True))
    return FETCHES.format(
        rows=rows,
        columns=columns,
        out=", ".join(map(str, dims.values())),
        dims=" ".join(f"{n}:{size}" for n, size in dims.items()),
        own=", ".join(dims),
        index=index,
        bind=" ".join(f"{n}={n}" for n in dims),
        loops=f"loops {loops}" if loops else "",
        made=divided(dict(zip(("i0", "i1"), made, strict=True)), grain),
        read=divided(split, 1),
    )


def divided(parts: dict[str, int], grain: int) -> str:
    stride, found = 1, []
    for axis, count in reversed(parts.items()):
        if count > 1:
            granule = grain if axis == "i1" else 1
            found.append(f"{axis} parts {count} stride {stride} granule {granule}")
        stride *= count
    return ", ".join(reversed(found))


@pytest.mark.parametrize(
    "text",
    [
        fetches((128, 384), (32, 1), (5, 6)),
        fetches((128, 384), (5, 6), (32, 1), grain=64),
        fetches((128, 1536), (8, 4), (1, 32), grain=64),
        fetches((128, 1536), (8, 4), (1, 1)),
        fetches((100, 300), (7, 4), (3, 9)),
        fetches((128, 384), (5, 6), (4, 8), grain=64, heads=True),
        fetches((128, 384), (5, 6), (4, 8), "i0/1", grain=64, heads=True),
        fetches((256, 256), (32, 1), (2, 16), "i0/32"),
        fetches((1, 4096), (1, 32), (1, 3), grain=128),
    ],
)
def test_the_busiest_link_is_as_the_clock_says(text: str) -> None:
    kernel = place(parse_kernel(text), SPYRE_CARD_V1)
    assert far_tensors(kernel)["t"] == {1}
    said = Forms(kernel, SPYRE_CARD_V1, ()).of(1)[0].ring["t"]
    program = emit(kernel, SPYRE_CARD_V1)
    alone = replace(program, sections=program.sections[1:])
    with SoftwareCard(memory=1 << 24, threads=1, spec=SPYRE_CARD_V1) as card:
        loaded = card.load_program(alone)
        _, events = card.trace(loaded, card.fill(loaded, [0] * program.arguments[0]))
    moves = events[(events["unit"] == UNITS.index("ring")) & (events["core"] == 0)]
    assert len(moves) == said.trips
    took = (moves["end"] - moves["begin"]).max()
    latency = SPYRE_CARD_V1.lx_latency_cycles
    way = SPYRE_CARD_V1.cores // 2 * SPYRE_CARD_V1.ring_hop_cycles
    # Heads lie apart where they arrive, which makes shorter runs than a row of the tensor.
    least = took * 0.85 if "32*i0" in text else took
    assert least <= said.all / said.trips <= took * 1.02 + latency + way
