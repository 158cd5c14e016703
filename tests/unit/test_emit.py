"""Planned kernels written by hand: the Program, interpreted, gives what the reference gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.residency import place
from openspyre.compiler.tiles import lx_peak
from openspyre.errors import BrokenInvariant, CardError
from openspyre.ir.binary import decode, encode
from openspyre.ir.program import Copy, Pt, TileLoop, Vec
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted
from tests.planned_kernels import ALL, CROSSING, FUSED, SIZES, SYMBOLIC, given


def kernel(text: str):
    return parse_kernel("kernel k\n" + text)


@pytest.mark.parametrize("name", ALL)
def test_the_program_means_what_the_kernel_means(name: str) -> None:
    check_interpreted(kernel(ALL[name]), **given(name))


@pytest.mark.parametrize("name", ALL)
def test_programs_survive_their_binary_form(name: str) -> None:
    program = emit(place(kernel(ALL[name]), SPYRE_CARD_V1), SPYRE_CARD_V1)
    assert decode(encode(program)) == program


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_one_program_serves_many_sizes(n: int, k: int) -> None:
    text = SYMBOLIC.format(n="0..16", k="0..40")
    check_interpreted(kernel(text), {"n": n, "k": k})


def test_an_index_out_of_range_names_the_users_line() -> None:
    bad = kernel(CROSSING["gather of an embedding"])
    bad = replace(bad, ops=(replace(bad.ops[0], source="model.py:7 embedding"),))
    with pytest.raises(CardError, match=r"model.py:7 embedding: index out of range"):
        check_interpreted(bad, ids=np.full((3, 4), 50))


def test_a_small_lx_gives_up_double_buffers_first() -> None:
    softmax = kernel(FUSED["softmax"])
    (step,) = softmax.steps
    none = replace(SPYRE_CARD_V1, lx_usable=0)
    least = lx_peak(softmax, step, softmax.divisions[step.name], none)
    assert least < lx_peak(softmax, step, softmax.divisions[step.name], SPYRE_CARD_V1)
    tight = replace(SPYRE_CARD_V1, lx_usable=least)
    planned = place(softmax, tight)
    assert {b.slots for b in emit(planned, tight).buffers} == {1}
    check_interpreted(planned, card=tight)
    with pytest.raises(BrokenInvariant, match=f"step s0 needs .* a core has {least - 1}"):
        place(softmax, replace(tight, lx_usable=least - 1))


def test_weights_are_loaded_outside_of_the_row_loop() -> None:
    (name,) = (n for n in FUSED if n.startswith("linear"))
    planned = place(kernel(FUSED[name]), SPYRE_CARD_V1)
    (section,) = emit(planned, SPYRE_CARD_V1).sections
    outside = [n for n in section.body if isinstance(n, Copy)]
    assert len(outside) == 1  # the bias: the weights are streamed by the loop over n
    (loop,) = (n for n in section.body if isinstance(n, TileLoop))
    inner = next(n for n in loop.body if isinstance(n, TileLoop))
    assert [type(n) for n in inner.body] == [Copy, Pt]
    assert [type(n) for n in loop.body] == [Copy, TileLoop, Vec, Copy]
