"""Late transfers and poison change nothing for right programs, and show wrong ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openspyre.card.native import NO_DEBUG, DebugMode, SoftwareCard, debug_mode
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import compile_kernel
from openspyre.compiler.residency import place
from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Buffer, Copy, Program, Pt, TileLoop
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import checked_spans
from openspyre.spec import SPYRE_CARD_V1
from tests.card.checking import Instr, edited, instructions, problem, with_buffer, with_section
from tests.card.hand_programs import copies
from tests.card.test_check import in_place, planned
from tests.card_runner import as_stored, random_inputs, run_program
from tests.execute_programs import run
from tests.planned_kernels import ALL, given, replanned
from tests.regions import load_region

LATE, POISON = DebugMode.LATE, DebugMode.POISON
MODES = (LATE, POISON, LATE | POISON)


def bits(
    program: Program, kernel: Kernel, inputs: Mapping[str, Any], debug: DebugMode
) -> dict[str, bytes]:
    found, _ = run_program(program, kernel, inputs, debug=debug)
    return {name: np.ascontiguousarray(values).tobytes() for name, values in found.items()}


def arguments(name: str, kernel: Kernel) -> dict[str, Any]:
    return as_stored(kernel, {**random_inputs(kernel), **given(name)}, {})


def test_names_of_modes() -> None:
    assert debug_mode(()) == NO_DEBUG
    assert debug_mode(("late", "poison")) == LATE | POISON


@pytest.mark.parametrize("name", ALL)
def test_planned_kernels_give_the_same_bits(name: str) -> None:
    kernel = parse_kernel("kernel k\n" + ALL[name])
    for plan in (kernel, replanned(kernel, 1)):
        placed = place(plan, SPYRE_CARD_V1)
        program, inputs = emit(placed, SPYRE_CARD_V1), arguments(name, placed)
        right = bits(program, placed, inputs, NO_DEBUG)
        for debug in MODES:
            assert bits(program, placed, inputs, debug) == right


@pytest.mark.parametrize("name", ["gpt2_captured", "whisper_captured"])
def test_real_regions_give_the_same_bits(name: str) -> None:
    kernel = load_region(name)
    program = compile_kernel(kernel, SPYRE_CARD_V1)
    inputs = {
        n: v * 0.02 if v.dtype.kind == "f" else v % 2 for n, v in random_inputs(kernel).items()
    }
    right = bits(program, kernel, inputs, NO_DEBUG)
    assert bits(program, kernel, inputs, LATE | POISON) == right


@pytest.mark.parametrize("threads", [1, 2])
def test_late_loads_see_what_a_late_store_has_not_written(threads: int) -> None:
    """x[i + 16] <- x[i] by tiles of 16: right only if every store ends before the next load."""
    x = np.arange(512, dtype=np.float16)
    results = {}
    for debug in (NO_DEBUG, LATE):
        with SoftwareCard(memory=1 << 24, threads=threads, debug=debug) as card:
            results[debug] = run(card, in_place(16, tile=16), [x])[0]
            np.testing.assert_array_equal(run(card, in_place(0, tile=16), [x])[0], x)
    assert (results[NO_DEBUG][:272] == np.tile(x[:16], 17)).all()
    assert (results[LATE][16:272] == x[:256]).all()


def test_bytes_without_contents_are_poison() -> None:
    unwritten = edited(copies(8, 64, 1), lambda n, i: None if n == 0 else i)
    zeros = np.zeros((8, 64), np.float16)
    for debug in MODES:
        with SoftwareCard(memory=1 << 24, threads=1, debug=debug) as card:
            run(card, copies(8, 64, 1), [zeros, zeros])
            stored = run(card, unwritten, [zeros, zeros])[1]
            assert np.isnan(stored).all() == (POISON in debug)
            address = card.allocate(5000)
            fresh = b"\xcb" * 5000 if POISON in debug else bytes(5000)
            assert card.read(address, 5000) == fresh
            card.write(address, b"\x07" * 5000)
            card.release(address, 5000)
            assert card.read(address, 5000) == fresh


# --- whatever the checker accepts is right in every mode --------------------------------------


def moved_buffer(program: Program, choice: random.Random) -> Program:
    """One buffer elsewhere, over another one, smaller, or with another number of slots."""
    number = choice.randrange(len(program.buffers))
    end = max(b.offset + b.bytes * b.slots for b in program.buffers)

    def change(buffer: Buffer) -> Buffer:
        match choice.randrange(4):
            case 0:
                return replace(buffer, offset=choice.choice(program.buffers).offset)
            case 1:
                by = 128 * choice.choice((-2, -1, 1, 2))
                return replace(buffer, offset=max(0, buffer.offset + by))
            case 2:
                return replace(buffer, bytes=max(0, buffer.bytes - 128))
            case _:
                return replace(buffer, slots=3 - buffer.slots, offset=-(-end // 128) * 128)

    return with_buffer(program, number, change)


def changed_instruction(program: Program, choice: random.Random) -> Program:
    """One instruction dropped, or one of its LX operands shifted by an element."""
    body = list(instructions(program))
    number = choice.randrange(len(body))
    drop = choice.random() < 0.5 and not _is_store(body[number])
    by = choice.choice((-1, 1))

    def change(position: int, instr: Instr) -> Instr | None:
        if position != number:
            return instr
        if drop:
            return None
        if isinstance(instr, Copy) and not _is_store(instr):
            return replace(instr, target=replace(instr.target, base=instr.target.dtype.bytes * by))
        if isinstance(instr, Pt):
            return replace(instr, c=replace(instr.c, base=instr.c.dtype.bytes * by))
        return instr

    return edited(program, change)


def swapped_nodes(program: Program, choice: random.Random) -> Program:
    """Two neighbours in a body have changed places."""

    def swapped(body: tuple[Any, ...]) -> tuple[Any, ...]:
        nodes = list(body)
        loops = [n for n, node in enumerate(nodes) if isinstance(node, TileLoop)]
        if loops and (len(nodes) == 1 or choice.random() < 0.6):
            at = choice.choice(loops)
            nodes[at] = replace(nodes[at], body=swapped(nodes[at].body))
        elif len(nodes) > 1:
            at = choice.randrange(len(nodes) - 1)
            nodes[at : at + 2] = nodes[at + 1], nodes[at]
        return tuple(nodes)

    number = choice.randrange(len(program.sections))
    return with_section(program, number, lambda s: replace(s, body=swapped(s.body)))


def _is_store(instr: Instr) -> bool:
    return isinstance(instr, Copy) and instr.target.buffer < 0


@pytest.mark.parametrize("seed", range(4))
def test_what_the_checker_accepts_is_right(seed: int) -> None:
    choice = random.Random(seed)
    counts = {"refused": 0, "accepted": 0}
    for name in choice.sample([n for n in ALL if "no dims" not in n], 12):
        kernel = replanned(parse_kernel("kernel k\n" + ALL[name]), choice.randrange(1000))
        kernel = place(kernel, SPYRE_CARD_V1)
        right, inputs = planned(kernel), arguments(name, kernel)
        wanted = bits(right, kernel, inputs, NO_DEBUG)
        for _ in range(10):
            change = choice.choice((moved_buffer, changed_instruction, swapped_nodes))
            other = change(right, choice)
            try:
                found = problem(other, checked_spans(kernel, {}))
            except InvalidProgram:
                continue
            counts["refused" if found else "accepted"] += 1
            if found:
                continue
            for debug in (NO_DEBUG, LATE | POISON):
                try:
                    assert bits(other, kernel, inputs, debug) == wanted
                except CardError as error:
                    pytest.fail(f"{name}, {change.__name__}, seed {seed}: {error}")
    assert min(counts.values()) > 3
