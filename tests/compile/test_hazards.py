"""What the checker says of compiled programs that were damaged on purpose, in the user's words.

Every message names the instructions, the bytes, the cores, and the line of the user's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from openspyre.compiler.timed import Timer
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Copy, Program, TileLoop, Vec
from openspyre.runtime import programs
from openspyre.spec import CardSpec
from tests.card.checking import with_buffer, without
from tests.card.mutants import mutants

Damage = Callable[[Program], Program]


def attention(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.T, -1) @ x


def doubled(x: torch.Tensor) -> torch.Tensor:
    x[:-64].mul_(2)
    return x


LINES = {
    attention: r"return torch\.softmax\(x @ x\.T, -1\) @ x",
    doubled: r"x\[:-64\]\.mul_\(2\)",
}


def mutant(kind: str, what: str) -> Damage:
    """The last mutant of a kind whose name matches."""

    def damage(program: Program) -> Program:
        found = [m for m in mutants(program) if m.kind == kind and re.search(what, m.what)]
        return found[-1].program

    return damage


def without_the_first_load(program: Program) -> Program:
    return without(program, 0)


def second_input_over_the_first(program: Program) -> Program:
    return with_buffer(program, 1, lambda b: replace(b, offset=program.buffers[0].offset))


def whole_tensor_in_two_slots(program: Program) -> Program:
    """Parts of it are written by several trips."""
    end = max(b.offset + b.bytes * b.slots for b in program.buffers)
    return with_buffer(program, 0, lambda b: replace(b, slots=2, offset=end))


def in_one_loop(program: Program) -> Program:
    """Loads and stores by turns, on one core, and stores 64 elements ahead of the loads."""
    ahead = mutant("shift on the device", "operand 1 by 128")(program)
    ahead = mutant("shift on the device", "operand 1 by 128")(ahead)
    first, second = ahead.sections
    (loads,), (stores,) = first.body, second.body
    assert isinstance(loads, TileLoop)
    assert isinstance(stores, TileLoop)
    load, double = loads.body
    move, store = stores.body
    assert isinstance(double, Vec)
    assert isinstance(move, Vec)
    assert isinstance(store, Copy)
    body = (load, replace(double, outputs=(replace(move.outputs[0], value=2),)), store)
    axes = tuple(replace(axis, parts=1) for axis in first.axes)
    end = max(b.offset + b.bytes * b.slots for b in program.buffers)
    apart = with_buffer(ahead, 2, lambda b: replace(b, offset=end))
    section = replace(first, axes=axes, body=(replace(loads, body=body),))
    return replace(apart, sections=(section,))


CASES: dict[str, tuple[Callable[..., torch.Tensor], Damage, str]] = {
    "unwritten bytes": (
        attention,
        without_the_first_load,
        r"PT instruction \d+ (LINE) on core 0 reads byte 0 of LX buffer \S+, "
        "which nothing has written",
    ),
    "a missing wait": (
        attention,
        mutant("token", "Pt .* operand 0"),
        r"PT instruction \d+ (LINE) on core 0 reads byte 0 of LX buffer (\S+)_alias, but section "
        r"s0, SFU instruction \d+ (LINE) wrote there last, through buffer \1",
    ),
    "a wait for the wrong trip": (
        doubled,
        whole_tensor_in_two_slots,
        r"SFU instruction \d+ (LINE) on core 0 reads byte \d+ of LX buffer \S+ in slot \d, but "
        r"section s0, SFU instruction \d+ (LINE) wrote it last in slot \d",
    ),
    "live tiles that overlap": (
        attention,
        second_input_over_the_first,
        r"PT instruction \d+ (LINE) on core 0 reads byte 0 of LX buffer \S+, but section s0, LOAD "
        r"instruction \d+ (LINE) wrote there last, through buffer \S+",
    ),
    "an operand over another": (
        attention,
        lambda p: with_buffer(p, 2, lambda b: replace(b, offset=p.buffers[1].offset)),
        r"PT instruction \d+ (LINE) on core 0 writes byte \d+ of LX buffer \S+ while it reads the "
        r"same byte as another operand in buffer \S+",
    ),
    "an address out of range": (
        attention,
        mutant("shift on the device", "operand 1 by 128"),
        r"STORE instruction \d+ (LINE) on core 31 moves bytes 12032 to 12416 of argument 1 \(\S+\)"
        r", which has bytes 0 to 12288",
    ),
    "an address out of LX": (
        attention,
        lambda p: with_buffer(p, 0, lambda b: replace(b, bytes=128)),
        r"LOAD instruction \d+ (LINE) on core 0 writes bytes 0 to 384 of LX buffer \S+, which has "
        "128",
    ),
    "a race between cores": (
        attention,
        mutant("weaken", "Copy .* axis 0"),
        r"STORE instruction (\d+) (LINE) and section s0, STORE instruction \1 (LINE) touch byte 0 "
        r"of argument 1 \(\S+\) on cores 0 and 1 in no order, and one of them writes",
    ),
    "a race between units": (
        doubled,
        in_one_loop,
        r"STORE instruction \d+ (LINE) and section s0, LOAD instruction \d+ (LINE) touch byte \d+ "
        r"of argument 0 \(\S+\) on core 0 in no order, and one of them writes",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hazards_are_told_in_the_users_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, damage, message = CASES[name]
    right = programs.compile_kernel

    def damaged(kernel: Kernel, card: CardSpec, *, timer: Timer) -> Program:
        return damage(right(kernel, card, timer=timer))

    monkeypatch.setattr(programs, "compile_kernel", damaged)
    torch._dynamo.reset()
    x = torch.randn(96, 64).half() if function is attention else torch.randn(200_000)
    with pytest.raises(BrokenInvariant) as raised:
        torch.compile(function)(x.to("spyre"))
    wanted = message.replace(
        "(LINE)", rf"\((?:\S+/)?test_hazards\.py:\d+ {LINES[function]} [^)]*\)"
    )
    assert re.search(wanted, str(raised.value)), str(raised.value)
