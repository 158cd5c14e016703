"""What the card accepts as a program: everything else is refused with a message, never a crash."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from openspyre.card.native import library
from openspyre.errors import BrokenInvariant, InvalidProgram
from openspyre.ir.binary import HEADER_WORDS, MAGIC, VERSION, encode
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST, INDEX, LOAD, TABLE
from openspyre.ir.ops import SLOT as SCALAR
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
    Calc,
    Copy,
    Given,
    Indirect,
    Origin,
    Program,
    Pt,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)
from openspyre.spec import SPYRE_CARD_V1
from tests.card.hand_programs import F16, F32, I64, buffers, device, local, program
from tests.card.time_engine import ROOT, accept, card, filled

AXES = (Axis("m", 64, 2), Axis("n", 64, 4, 2), Axis("k", 64))
HELD = buffers((16384, 1), (16384, 1), (16384, 1), (512, 2))
COPY = Copy((0, 1), device(0, ((0, 128), (1, 2))), local(0, ((0, 128), (1, 2))))
STORE = Copy((0, 1), local(0, ((0, 128), (1, 2))), device(1, ((0, 128), (1, 2))))
PT = Pt(
    (), (0,), (1,), (2,),
    local(0, ((0, 128), (2, 2))), local(1, ((2, 128), (1, 2))), local(2, ((0, 256), (1, 4)), F32),
)  # fmt: skip
VEC = Vec(
    (0, 1),
    (local(0, ((0, 128), (1, 2))),),
    (),
    (VecOp(LOAD, F32, (0,)), VecOp(CONST, F32, (), 0.5), VecOp(TABLE["mul"].code, F32, (0, 1))),
    (VecOut(2, local(1, ((0, 128), (1, 2)))),),
)


def whole(*body: object, axes: tuple[Axis, ...] = AXES, held: tuple[Buffer, ...] = HELD) -> Program:
    return program(2, held, Section("s", axes, body), sources=("x * 0.5",))  # type: ignore[arg-type]


GOOD = whole(TileLoop(2, 32, (COPY, PT)), VEC, STORE)


def refusal(one: Program | bytes) -> str:
    data = one if isinstance(one, bytes) else encode(one)
    with pytest.raises(InvalidProgram) as problem:
        accept(data)
    return str(problem.value)


def with_vec(*ops: VecOp, out: VecOut | None = None, **changes: object) -> Program:
    last = VecOut(len(ops) - 1, VEC.outputs[0].place)
    return whole(replace(VEC, ops=ops, outputs=(out or last,), **changes))


def test_a_valid_program_is_accepted() -> None:
    accept(encode(GOOD))
    accept(encode(program(0, ())))


# --- the envelope ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 39, 40, 47, 400])
def test_truncated_bytes_are_refused(length: int) -> None:
    assert "truncated" in (text := refusal(encode(GOOD)[:length])) or "corrupted" in text


def test_another_magic_version_or_checksum_is_refused() -> None:
    data = bytearray(encode(GOOD))
    assert "not a program" in refusal(bytes(8) + bytes(data[8:]))
    version = struct.pack("<q", VERSION + 1)
    assert f"version {VERSION + 1}" in refusal(bytes(data[:8] + version + data[16:]))
    data[100] ^= 1
    assert "corrupted" in refusal(bytes(data))


def sealed(words: list[int]) -> bytes:
    """Words after the header, with a header that fits them."""
    body = struct.pack(f"<{len(words)}q", *words)
    return struct.pack("<5q", MAGIC, VERSION, len(words), zlib.crc32(body), 0) + body


def body_words(one: Program) -> list[int]:
    data = encode(one)
    return list(struct.unpack(f"<{len(data) // 8}q", data))[HEADER_WORDS:]


def test_leftover_and_missing_words_are_refused() -> None:
    words = body_words(GOOD)
    assert "left over" in refusal(sealed([*words, 0]))
    for kept in range(len(words)):
        refusal(sealed(words[:kept]))


def test_huge_counts_are_refused_at_once() -> None:
    words = body_words(GOOD)
    for position in range(len(words)):
        for value in (1 << 62, -1, -(1 << 63)):
            changed = [*words]
            changed[position] = value
            with suppress(InvalidProgram):
                accept(sealed(changed))


# --- the rules ------------------------------------------------------------------------------

_SLOT_CASES: dict[str, tuple[SlotDef, str]] = {
    "address": (SlotDef(Given.ADDRESS, 2), "does not pass"),
    "size": (SlotDef(Given.SIZE, 0), "does not pass"),
    "negative": (SlotDef(Given.ADDRESS, -1), "does not pass"),
    "later": (SlotDef(Given.FORMULA, 0, ((Calc.SLOT, 2),)), "not yet known"),
    "operands": (SlotDef(Given.FORMULA, 0, ((Calc.CONST, 1), (Calc.ADD, 0))), "lacks operands"),
    "values": (SlotDef(Given.FORMULA, 0, ((Calc.CONST, 1), (Calc.CONST, 1))), "one value"),
    "nothing": (SlotDef(Given.FORMULA), "one value"),
    "both": (SlotDef(Given.POOL, 0, ((Calc.CONST, 1),)), "has a formula"),
}


@pytest.mark.parametrize("case", _SLOT_CASES)
def test_bad_slots_are_refused(case: str) -> None:
    slot, message = _SLOT_CASES[case]
    assert message in refusal(replace(GOOD, slots=(*GOOD.slots, slot)))


def _usable() -> int:
    return SPYRE_CARD_V1.lx_usable // 128 * 128


_BUFFER_CASES: dict[str, tuple[Buffer, str]] = {
    "end": (Buffer("big", _usable(), 256), "ends at byte"),
    "second slot": (Buffer("big", _usable() - 128, 128, 2), "ends at byte"),
    "unaligned": (Buffer("odd", 64, 128), "begin at a stick"),
    "unaligned slot": (Buffer("odd", 128, 100, 2), "begin at a stick"),
    "slots": (Buffer("three", 0, 128, 3), "slots of a buffer"),
    "negative": (Buffer("minus", -128, 128), "offset of a buffer"),
}


@pytest.mark.parametrize("case", _BUFFER_CASES)
def test_bad_buffers_are_refused(case: str) -> None:
    buffer, message = _BUFFER_CASES[case]
    assert message in refusal(replace(GOOD, buffers=(*HELD, buffer)))


_AXES_CASES: dict[str, tuple[tuple[Axis, ...], str]] = {
    "too many cores": ((Axis("m", 64, 8), Axis("n", 64, 8, 8), Axis("k", 64)), "more cores"),
    "gap": ((Axis("m", 64, 2), Axis("n", 64, 4, 4), Axis("k", 64)), "gaps or overlaps"),
    "overlap": ((Axis("m", 64, 2), Axis("n", 64, 4), Axis("k", 64)), "gaps or overlaps"),
    "no parts": ((Axis("m", 64, 0), Axis("n", 64), Axis("k", 64)), "parts of an axis"),
    "granule": ((Axis("m", 64, 1, 1, 0), Axis("n", 64), Axis("k", 64)), "granule"),
    "slot": ((Axis("m", Slot(7)), Axis("n", 64), Axis("k", 64)), "slot that does not exist"),
}


@pytest.mark.parametrize("case", _AXES_CASES)
def test_bad_splits_are_refused(case: str) -> None:
    axes, message = _AXES_CASES[case]
    assert message in refusal(whole(VEC, axes=axes))


_INDEX_PLACE = local(3, ((0, 8),), I64)
_NODE_CASES: dict[str, tuple[object, str]] = {
    "loop inside its loop": (TileLoop(0, 8, (TileLoop(0, 4, ()),)), "inside its loop"),
    "tile": (TileLoop(0, 0, ()), "tile"),
    "loop without a body": (TileLoop(0, 1 << 40, ()), "a loop has no body"),
    "loop axis": (TileLoop(3, 1, ()), "axis"),
    "axis": (replace(COPY, axes=(0, 5)), "axis"),
    "axis twice": (replace(COPY, axes=(0, 0)), "walks an axis twice"),
    "spaces": (replace(COPY, target=COPY.source), "between device memory and LX"),
    "dtypes": (replace(COPY, target=local(0, ((0, 256), (1, 4)), F32)), "changes no dtype"),
    "adding load": (replace(COPY, add=True), "only a store adds"),
    "unwalked axis": (replace(COPY, axes=(0,)), "does not walk"),
    "argument": (replace(COPY, source=device(1, ()), axes=()), "does not walk"),
    "no argument": (replace(COPY, source=replace(COPY.source, argument=2)), "argument of a place"),
    "no buffer": (replace(COPY, target=replace(COPY.target, buffer=4)), "buffer of a place"),
    "terms": (
        replace(COPY, source=device(0, ((0, 128), (0, 2)))), "two terms of one axis",
    ),
    "source": (replace(COPY, origin=1), "source of an instruction"),
    "float index": (
        replace(COPY, indirect=(Indirect(local(3, ((0, 4),), F32), 8, 9, True, True),)),
        "an integer in LX",
    ),
    "index axis": (
        replace(COPY, indirect=(Indirect(local(3, ((2, 8),), I64), 8, 9, True, True),)),
        "does not walk",
    ),
    "bound origin": (
        replace(COPY, bounds=(Bound((Term(0, 1, Origin.TILE),), 0, 9),)), "axis' zero",
    ),
    "parts of elements": (
        replace(COPY, target=local(0, ((0, 127), (1, 2)))), "does not name whole elements",
    ),
    "a part of an element": (
        replace(COPY, target=replace(COPY.target, base=1)), "does not name whole elements",
    ),
    "two sizes": (
        replace(VEC, inputs=(local(1, ((0, 128), (1, 4)), F32),)), "elements of two sizes",
    ),
    "matmul dtypes": (replace(PT, b=local(1, ((2, 256), (1, 4)), F32)), "one dtype"),
    "matmul integers": (replace(PT, a=_INDEX_PLACE), "a float in LX"),
    "matmul axis": (replace(PT, a=local(0, ((0, 128), (1, 2)))), "another axis"),
    "stick of b": (replace(PT, b=local(1, ((2, 2), (1, 128)))), "one element"),
    "stick of a": (replace(PT, a=local(0, ((0, 2), (2, 128)))), "one element"),
    "stick of c": (replace(PT, c=local(2, ((0, 4), (1, 256)), F32)), "one element"),
    "narrow continued": (
        TileLoop(2, 32, (replace(PT, c=local(2, ((0, 128), (1, 2)))),)), "keeps c in f32",
    ),
    "nothing stored": (replace(VEC, outputs=()), "stores nothing"),
    "vector device": (replace(VEC, inputs=(COPY.source,)), "SFU reads LX"),
}  # fmt: skip


@pytest.mark.parametrize("case", _NODE_CASES)
def test_bad_instructions_are_refused(case: str) -> None:
    node, message = _NODE_CASES[case]
    assert message in refusal(whole(node))


_F = VecOp(LOAD, F32, (0,))
_OP_CASES: dict[str, tuple[tuple[VecOp, ...], str]] = {
    "code": ((_F, VecOp(99, F32, (0,))), "not in the table"),
    "form": ((VecOp(5, F32, (0,)),), "not in the table"),
    "arity": ((_F, VecOp(TABLE["add"].code, F32, (0,))), "another arity"),
    "forward": ((_F, VecOp(TABLE["neg"].code, F32, (1,))), "not yet known"),
    "class": ((_F, VecOp(TABLE["shl"].code, F32, (0, 0))), "of this class"),
    "mixed": (
        (_F, VecOp(CONST, DType.I64, (), 1), VecOp(TABLE["add"].code, F32, (1, 0))),
        "differ in class",
    ),
    "condition": ((_F, VecOp(TABLE["where"].code, F32, (0, 0, 0))), "differ in class"),
    "result": ((_F, VecOp(TABLE["lt"].code, F32, (0, 0))), "another class"),
    "input": ((VecOp(LOAD, F32, (1,)),), "input that does not exist"),
    "input class": ((VecOp(LOAD, DType.I32, (0,)),), "another class than its input"),
    "narrow": ((VecOp(CONST, F16, (), 1.0),), "not a class"),
    "scalar": ((VecOp(SCALAR, F32, (9,)),), "slot that does not exist"),
    "index": ((VecOp(INDEX, DType.I64, (0,)),), "does not exist"),
}


@pytest.mark.parametrize("case", _OP_CASES)
def test_bad_vector_ops_are_refused(case: str) -> None:
    ops, message = _OP_CASES[case]
    assert message in refusal(with_vec(*ops))


_OUT_CASES: dict[str, tuple[VecOut, str]] = {
    "value": (VecOut(3, VEC.outputs[0].place), "stored value"),
    "integer": (VecOut(2, _INDEX_PLACE), "between floats and integers"),
    "narrow sum": (VecOut(2, local(1, ((0, 2),)), "sum"), "narrow dtype"),
    "any of floats": (VecOut(2, local(1, ((0, 4),), F32), "any"), "of this class"),
    "scan axis": (VecOut(2, local(1, ((0, 4),), F32), "sum", scan=True), "axis to run along"),
    "scan of nothing": (VecOut(2, VEC.outputs[0].place, None, scan=True), "without its op"),
}


@pytest.mark.parametrize("case", _OUT_CASES)
def test_bad_vector_outputs_are_refused(case: str) -> None:
    out, message = _OUT_CASES[case]
    assert message in refusal(whole(replace(VEC, outputs=(out,))))


def test_a_scan_over_trips_is_refused() -> None:
    scan = VecOut(2, local(1, ((0, 256), (1, 4)), F32), "sum", scan=True)
    assert "trips of a loop" in refusal(whole(TileLoop(1, 16, (replace(VEC, outputs=(scan,)),))))
    accept(encode(whole(TileLoop(0, 16, (replace(VEC, outputs=(scan,)),)))))


def test_symbolic_coefficients_are_left_to_the_launch() -> None:
    """A stride that a slot holds cannot be checked here."""
    accept(encode(whole(replace(PT, b=local(1, ((2, 128), (1, Slot(0))))))))


def test_every_operand_form_is_accepted() -> None:
    where = TABLE["where"].code
    ops = (
        VecOp(LOAD, F32, (0,)),
        VecOp(INDEX, DType.I64, (0,)),
        VecOp(CONST, DType.I64, (), 7),
        VecOp(TABLE["lt"].code, DType.BOOL, (1, 2)),
        VecOp(SCALAR, F32, (1,)),
        VecOp(where, F32, (3, 0, 4)),
        VecOp(TABLE["cast"].code, F16, (5,)),
    )
    index = VecIndex((Term(1, 1, Origin.ABSOLUTE),), Slot(0))
    accept(encode(with_vec(*ops, indices=(index,))))


# --- the op table ---------------------------------------------------------------------------


def test_the_card_and_the_compiler_have_one_op_table() -> None:
    text = (ROOT / "csrc" / "card" / "ops.def").read_text()
    row = r'SPYRE_OP\((\w+), (\d+), (\d+), "(\w+)", "(\w+)", "(\w+)"\)'
    rows = [
        (name, int(code), int(arity), classes, result, cost)
        for name, code, arity, classes, result, cost in re.findall(row, text)
    ]
    assert rows == [
        (r.name, r.code, r.arity, r.classes, r.result, r.cost.value) for r in TABLE.values()
    ]


# --- the numbers of a card ------------------------------------------------------------------


def test_every_card_number_is_needed_and_known() -> None:
    card()  # builds the library
    numbers = SPYRE_CARD_V1.numbers()
    assert opened(numbers) == ""
    for name in numbers:
        kept = {n: v for n, v in numbers.items() if n != name}
        assert opened(kept) == f"missing card number {name}"
    assert opened(numbers | {"warp": 9}) == "unknown card number warp"
    assert opened(numbers | {"cores": 0}) == "card number is not positive: cores"


def opened(numbers: dict[str, float]) -> str:
    """The message with which a card refuses its numbers."""
    names = (ctypes.c_char_p * len(numbers))(*(n.encode() for n in numbers))
    values = (ctypes.c_double * len(numbers))(*numbers.values())
    handle, error = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    call = library()["spyre_card_open"]  # a fresh function object: this test's own types
    call.argtypes = None
    count, memory = ctypes.c_size_t(len(numbers)), ctypes.c_uint64(1 << 20)
    code = call(names, values, count, memory, 1, ctypes.byref(handle), error)
    library().spyre_card_close(handle)
    assert (code == 0) == (not error.value)
    return error.value.decode()


# --- the symbol block -----------------------------------------------------------------------


def formula(*steps: tuple[Calc, int]) -> Program:
    slots = (SlotDef(Given.SIZE, 0), SlotDef(Given.SIZE, 1), SlotDef(Given.FORMULA, 0, steps, "f"))
    return Program("f", slots, (), (), 0, (0, 2, 0), ())


_PYTHON: dict[Calc, Callable[[int, int], int]] = {
    Calc.ADD: lambda a, b: a + b,
    Calc.MUL: lambda a, b: a * b,
    Calc.FLOORDIV: lambda a, b: a // b,
    Calc.MOD: lambda a, b: a % b,
    Calc.MIN: min,
    Calc.MAX: max,
}


@pytest.mark.parametrize("calc", _PYTHON)
def test_formulas_compute_what_python_computes(calc: Calc) -> None:
    one = formula((Calc.SLOT, 0), (Calc.SLOT, 1), (calc, 0))
    for a in (-7, -1, 0, 1, 6, 1 << 40):
        for b in (-3, -1, 1, 2, 5):
            assert filled(one, (), (a, b))[2] == _PYTHON[calc](a, b)


@pytest.mark.parametrize(
    ("calc", "a", "b", "message"),
    [
        (Calc.MUL, 1 << 40, 1 << 40, "does not fit"),
        (Calc.ADD, (1 << 63) - 1, 1, "does not fit"),
        (Calc.FLOORDIV, -(1 << 63), -1, "does not fit"),
        (Calc.FLOORDIV, 1, 0, "divides by zero"),
        (Calc.MOD, 1, 0, "divides by zero"),
    ],
)
def test_formulas_that_have_no_value_say_so(calc: Calc, a: int, b: int, message: str) -> None:
    with pytest.raises(BrokenInvariant, match=f"formula of slot f {message}"):
        filled(formula((Calc.SLOT, 0), (Calc.SLOT, 1), (calc, 0)), (), (a, b))


def test_a_block_holds_what_the_launch_passed() -> None:
    doubled = ((Calc.SLOT, 1), (Calc.CONST, 2), (Calc.MUL, 0))
    slots = (
        SlotDef(Given.ADDRESS, 1), SlotDef(Given.SIZE, 0), SlotDef(Given.SCALAR, 0),
        SlotDef(Given.POOL), SlotDef(Given.FORMULA, 0, doubled),
    )  # fmt: skip
    one = Program("f", slots, (), (), 0, (2, 1, 1), ())
    bits = struct.unpack("<q", struct.pack("<d", -0.5))[0]
    assert filled(one, (5, 6), (21,), (-0.5,), pool=99) == [6, 21, bits, 99, 42]
    with pytest.raises(BrokenInvariant, match="passes 1 addresses, the program takes 2"):
        filled(one, (5,), (21,), (-0.5,))


# --- mutations ------------------------------------------------------------------------------


def test_mutated_programs_never_crash() -> None:
    """In a process of its own, so that a crash is a failure and not the end of the tests."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.card.mutate_programs", "2000"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    counts = json.loads(result.stdout)
    assert counts["accepted"] > 50
    assert counts["refused"] > 500
