"""The op table: one row per op, the same rows on the card, meanings that are torch's."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from openspyre.ir.ops import CONST, INDEX, LOAD, SLOT, TABLE, Cost

OPS_DEF = Path(__file__).parents[2] / "csrc" / "card" / "ops.def"
ROW = re.compile(r'^SPYRE_OP\((\w+), (\d+), (\d+), "(\w+)", "(\w+)", "(\w+)"\)$', re.MULTILINE)
CLASSES = {"f": (np.float32,), "i": (np.int64, np.int32), "b": (np.bool_,)}
VALUES = {
    np.float32: [-2.5, -1.0, -0.0, 0.25, 0.5, 3.0, np.inf, np.nan],
    np.int64: [-(2**62), -7, -1, 1, 2, 5, 31, 2**62],
    np.int32: [-(2**30), -7, -1, 1, 2, 5, 31, 2**30],
    np.bool_: [False, True, False, True],
}


def test_the_card_has_the_same_rows() -> None:
    card = [
        (name, int(code), int(arity), classes, result, cost)
        for name, code, arity, classes, result, cost in ROW.findall(OPS_DEF.read_text())
    ]
    table = [
        (row.name, row.code, row.arity, row.classes, row.result, row.cost.value)
        for row in TABLE.values()
    ]
    assert card == table


def test_codes_are_unique_and_leave_room_for_operands() -> None:
    codes = [row.code for row in TABLE.values()]
    assert len(set(codes)) == len(codes)
    assert not {LOAD, CONST, SLOT, INDEX} & set(codes)
    assert all(row.cost is not Cost.FREE for row in TABLE.values())


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"cast"}))
def test_results_keep_their_class(name: str) -> None:
    row = TABLE[name]
    assert row.meaning is not None
    for letter in row.classes:
        for dtype in CLASSES[letter]:
            values = np.asarray(VALUES[dtype], dtype)
            if name in ("pow", "shl", "shr") and letter == "i":
                values = np.abs(values) % 7  # a negative exponent or shift means nothing
            args = [values, np.roll(values, 1), np.roll(values, 2)][: row.arity]
            if name == "where":
                args[0] = np.arange(values.size) % 2 == 0
            with np.errstate(all="ignore"):
                got = row.meaning(*args)
            assert got.shape == values.shape
            assert got.dtype == (np.bool_ if row.result == "b" else dtype)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("floordiv", (-7, 2), -4),
        ("truncdiv", (-7, 2), -3),
        ("truncdiv", (7, -2), -3),
        ("truncdiv", (-8, 2), -4),
        ("remainder", (-7, 3), 2),
        ("remainder", (7, -3), -2),
        ("fmod", (-7, 3), -1),
        ("shr", (-8, 1), -4),
        ("not", (5,), -6),
        ("sign", (-3,), -1),
        ("abs", (-3,), 3),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_integer_meanings(name: str, args: tuple[int, ...], expected: int, dtype: type) -> None:
    meaning = TABLE[name].meaning
    assert meaning is not None
    assert meaning(*(np.asarray([a], dtype) for a in args)).tolist() == [expected]


def test_philox_gives_the_published_bits() -> None:
    """Random123's known answers for philox4x32-10, words 0 and 1."""
    meaning = TABLE["philox"].meaning
    assert meaning is not None
    zero = np.zeros(1, np.int64)
    assert meaning(zero, zero).view(np.uint64).tolist() == [0xE169C58D6627E8D5]


def test_philox_takes_all_bits_of_both_numbers() -> None:
    meaning = TABLE["philox"].meaning
    assert meaning is not None
    numbers = np.concatenate([np.zeros(1, np.int64), np.int64(1) << np.arange(64)])
    bits = meaning(numbers[:, None], numbers)
    assert len(np.unique(bits)) == bits.size
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 4 * 0.5 / np.sqrt(bits.size * 64)
    narrow = numbers[:32].astype(np.int32)
    want = meaning(narrow.astype(np.int64), np.int64(7)).astype(np.int32)
    np.testing.assert_array_equal(meaning(narrow, np.int32(7)), want)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("max", (1.0, math.nan), math.nan),
        ("min", (math.nan, 1.0), math.nan),
        ("sign", (math.nan,), 0.0),  # torch.sign(nan) is 0
        ("round", (2.5,), 2.0),
        ("round", (-0.5,), -0.0),
        ("trunc", (-1.5,), -1.0),
        ("remainder", (-1.5, 1.0), 0.5),
        ("fmod", (-1.5, 1.0), -0.5),
        ("floordiv", (-1.5, 1.0), -2.0),
        ("rsqrt", (0.0,), math.inf),
        ("log", (-1.0,), math.nan),
        ("exp", (1000.0,), math.inf),
        ("exp", (-1000.0,), 0.0),
        ("sigmoid", (-1000.0,), 0.0),
        ("erf", (0.5,), 0.5204998778130465),
        ("pow", (-2.0, 3.0), -8.0),
        ("fma", (1e20, 1e20, -math.inf), -math.inf),
    ],
)
def test_float_meanings(name: str, args: tuple[float, ...], expected: float) -> None:
    meaning = TABLE[name].meaning
    assert meaning is not None
    with np.errstate(all="ignore"):
        got = meaning(*(np.asarray([a], np.float32) for a in args))
    np.testing.assert_array_equal(got, np.asarray([expected], np.float32))
    assert np.signbit(got[0]) == np.signbit(np.float32(expected)) or math.isnan(expected)


def test_transcendentals_round_once() -> None:
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    meaning = TABLE["exp"].meaning
    assert meaning is not None
    np.testing.assert_array_equal(meaning(x), np.exp(x.astype(np.float64)).astype(np.float32))
