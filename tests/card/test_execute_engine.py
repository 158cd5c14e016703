"""The engine around the instructions: threads, forks, failures, corrupted programs."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard, isa, op_name
from openspyre.errors import BrokenInvariant, CardError, InvalidProgram
from openspyre.ir.binary import HEADER_WORDS, encode
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST, TABLE
from openspyre.ir.program import Axis, Buffer, Copy, Program, VecOp
from openspyre.runtime.driver import Driver
from tests.card.test_execute_copy import gather
from tests.card.test_execute_matmul import matmul
from tests.card.test_execute_vec import F32, load, op, softmax_program, vector_program
from tests.execute_programs import Array, buffers, lx, program, run


@pytest.fixture
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 24, threads=2) as opened:
        yield opened


def plus_one(extent: int, parts: int) -> Program:
    ops = [load(0, F32), VecOp(CONST, F32, (), 1.0), op("add", F32, 0, 1)]
    outputs = [(2, F32, (0,), None, False)]
    return vector_program((extent,), [(F32, (0,))], ops, outputs, parts={0: parts})


def test_the_card_is_a_driver(card: SoftwareCard) -> None:
    assert isinstance(card, Driver)
    assert isa() in ("avx512", "avx2", "portable")
    assert {op_name(row.code) for row in TABLE.values()} == set(TABLE)
    assert op_name(127) is None


@pytest.mark.parametrize("threads", [1, 2, 7, 40])
def test_any_number_of_threads(threads: int) -> None:
    x = np.arange(1000, dtype=np.float32)
    with SoftwareCard(memory=1 << 24, threads=threads) as card:
        for parts in (1, 3, 32):
            got = run(card, plus_one(1000, parts), [x, np.zeros_like(x)])[1]
            np.testing.assert_array_equal(got, x + 1)


def test_a_forked_process_starts_threads_of_its_own(card: SoftwareCard) -> None:
    x = np.arange(500, dtype=np.float32)
    prog = plus_one(500, 32)
    run(card, prog, [x, np.zeros_like(x)])
    child = os.fork()
    if child == 0:
        try:
            got = run(card, prog, [x * 2, np.zeros_like(x)])[1]
            card.close()
            os._exit(0 if (got == x * 2 + 1).all() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(run(card, prog, [x, np.zeros_like(x)])[1], x + 1)


def test_the_first_core_that_fails_is_named(card: SoftwareCard) -> None:
    """Rows 20 and 33 hold bad indices, on different cores; later cores may run or not."""
    rows = np.arange(40, dtype=np.int64) % 9
    rows[20], rows[33] = 77, 88
    tile, index = lx(1, F32, {0: 20, 1: 4}), lx(0, DType.I64, {0: 8})
    body = gather(DType.I64)
    assert isinstance(body[1], Copy)
    assert (body[1].target, body[1].indirect[0].place) == (tile, index)
    prog = program([Axis("t", 40, 32), Axis("h", 5)], body, buffers(320, 800), 3)
    for _ in range(20):
        with pytest.raises(CardError, match="index 77 "):
            run(card, prog, [np.zeros((9, 5), np.float32), rows, np.zeros((40, 5), np.float32)])
    rows[[20, 33]] = 0
    table = np.arange(45, dtype=np.float32).reshape(9, 5)
    got = run(card, prog, [table, rows, np.zeros((40, 5), np.float32)])[2]
    np.testing.assert_array_equal(got, table[rows])


def test_absurd_extents_are_refused(card: SoftwareCard) -> None:
    prog = program([Axis("i", 1 << 50)], [], buffers(), 0)
    with pytest.raises(CardError, match="points"):
        run(card, prog, [])


def test_misuse_is_refused(card: SoftwareCard) -> None:
    loaded = card.load_program(plus_one(4, 1))
    for block in (0, card.memory_base - 8, card.memory_base + card.memory_bytes - 8):
        with pytest.raises(BrokenInvariant, match="symbol block"):
            card.run(loaded, block)
    card.unload(loaded)
    with pytest.raises(BrokenInvariant, match="the card's memory"):
        card.load(card.memory_base + card.memory_bytes - 8, 64)
    with pytest.raises(BrokenInvariant, match="ISA sparc"):
        SoftwareCard(memory=1 << 20, isa="sparc")
    with pytest.raises(MemoryError, match="reserve"):
        SoftwareCard(memory=1 << 60)
    with pytest.raises(MemoryError, match="do not fit"):
        card.allocate(1 << 30)


def test_released_memory_reads_zero(card: SoftwareCard) -> None:
    address = card.store(b"\x07" * 100_000)
    card.release(address + 10, 90_000)
    got = card.read(address, 100_000)
    assert got == b"\x07" * 10 + bytes(90_000) + b"\x07" * 9990


def test_a_buffer_beyond_lx_is_refused(card: SoftwareCard) -> None:
    room = (Buffer("big", 0, 1_625_344), Buffer("more", 1_625_344, 1))
    with pytest.raises(InvalidProgram, match="buffer more"):
        card.load_program(program([Axis("i", 1)], [], room, 0))


def corrupted(data: bytes, rng: random.Random) -> bytes:
    """A few words changed, with a checksum that fits. (No extents that would only take long.)"""
    words = list(struct.unpack(f"<{len(data) // 8}q", data))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.randrange(HEADER_WORDS, len(words))
        old = words[place]
        choices = [0, 1, -1, 2, old + 1, -old, -(1 << 40), 1 << 62, -(1 << 63)]
        words[place] = rng.choice([*choices, rng.randrange(10)])
    body = struct.pack(f"<{len(words) - HEADER_WORDS}q", *words[HEADER_WORDS:])
    header = (*words[:2], len(words) - HEADER_WORDS, zlib.crc32(body), 0)
    return struct.pack("<5q", *header) + body


@pytest.mark.parametrize("seed", range(5))
def test_corrupted_programs_never_write_outside(seed: int) -> None:
    """Any words with a right checksum: an error or a result, and the card lives on."""
    rng = random.Random(seed)
    sane = [
        matmul((5, 20, 6), DType.F16, F32, tiles=(2, 0, 3), parts=(2, 2), b_is_nk=True),
        softmax_program(6, 70, DType.F16, 3, 2),
        plus_one(40, 4),
        program([Axis("t", 7, 3), Axis("h", 5)], gather(DType.I64, wrap=True), buffers(56, 140), 3),
    ]
    with SoftwareCard(memory=1 << 20, threads=2) as card:
        arguments = [card.allocate(4096) for _ in range(4)]
        place, block = card.allocate(1 << 16), card.allocate(1 << 10)
        outcomes = set()
        for _ in range(300):
            prog = rng.choice(sane)
            data = corrupted(encode(prog), rng)
            card.write(place, data)
            try:
                loaded = card.load(place, len(data))
            except InvalidProgram:
                outcomes.add("refused")
                continue
            try:
                card.write(block, card.fill(loaded, arguments[: prog.arguments[0]]))
                card.run(loaded, block)
                outcomes.add("ran")
            except (CardError, BrokenInvariant):
                outcomes.add("stopped")
            finally:
                card.unload(loaded)
        assert outcomes == {"refused", "ran", "stopped"}
        x: Array = np.arange(40, dtype=np.float32)
        np.testing.assert_array_equal(run(card, sane[2], [x, np.zeros_like(x)])[1], x + 1)
