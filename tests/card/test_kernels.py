"""Vector kernels of the software card against the op table, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.ir.ops import REDUCTIONS, TABLE, Row
from tests.card.probe import (
    CLASSES,
    LANES,
    Array,
    call,
    floats,
    isas,
    library,
    register,
    same_on_every_isa,
    ulps,
    values,
    vec,
)

FLOAT_BOUND = {  # float32 steps from the rounded float64 value; the others are exact
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "rsqrt": 2,
    "sin": 1, "cos": 1, "tan": 1, "tanh": 2, "sigmoid": 2, "erf": 2, "atan": 1, "pow": 1, "fma": 1,
}  # fmt: skip
FLOAT_OPS = [row for row in TABLE.values() if "f" in row.classes and row.meaning]
INT_OPS = [row for row in TABLE.values() if "i" in row.classes and row.meaning]
BOOL_OPS = [row for row in TABLE.values() if "b" in row.classes and row.meaning]
LETTER = "fiib"


def by_name(row: Row) -> str:
    return row.name


def meaning(row: Row, *arguments: Array) -> Array:
    assert row.meaning
    with np.errstate(all="ignore"):
        if row.name == "pow" and arguments[0].dtype == np.float32:
            return np.power(*(a.astype(np.float64) for a in arguments)).astype(np.float32)
        return np.asarray(row.meaning(*arguments))


def result_class(row: Row, kind: type) -> type:
    return np.bool_ if row.result == "b" else kind


def float_arguments(row: Row) -> list[Array]:
    arguments = [floats(row.code + n, 3000) for n in range(row.arity)]
    if row.arity > 1:  # every pair of special values meets, and ratios that are nearly whole
        small = floats(9, 3)
        left, right = np.meshgrid(small, small)
        arguments[0] = np.concatenate([arguments[0], left.ravel(), np.float32([7.5, -7.5] * 50)])
        tail = np.repeat(np.float32([2.5, -2.5, 0.1, 3, -3]), 20)
        arguments[1] = np.concatenate([arguments[1], right.ravel(), tail])
    if row.name == "pow":
        arguments[1][::2] = np.random.default_rng(1).integers(-6, 7, len(arguments[1][::2]))
    if row.name == "fma":
        arguments[2] = arguments[2][: len(arguments[0])]
        arguments[:2] = (a[: len(arguments[2])] for a in arguments[:2])
    if row.name == "where":
        count = min(len(a) for a in arguments)
        arguments = [arguments[1][:count] > 0, arguments[1][:count], arguments[2][:count]]
    return arguments


def test_numbers_and_names_are_those_of_the_table() -> None:
    names = {code: library().spyre_op_name(code) for code in range(128)}
    assert {code: name.decode() for code, name in names.items() if name} == {
        row.code: row.name for row in TABLE.values()
    }


def test_a_kernel_exists_exactly_where_the_table_says() -> None:
    held = register(np.zeros(LANES, np.int64))
    for isa in isas():
        for row in TABLE.values():
            for number, letter in enumerate(LETTER):
                found = call("vec", isa, row.code, number, held, held, held, held, 1) == 0
                assert found == (letter in row.classes and row.name != "cast"), (row.name, number)


def test_an_unknown_instruction_set_is_refused() -> None:
    held = register(np.zeros(1, np.int64))
    assert call("vec", "sse9", TABLE["add"].code, 0, held, held, held, held, 1) == -1


@pytest.mark.parametrize("row", FLOAT_OPS, ids=by_name)
def test_floats(row: Row) -> None:
    arguments = float_arguments(row)
    kind = result_class(row, np.float32)
    got = same_on_every_isa(lambda isa: vec(isa, row.code, kind, *arguments))
    want = meaning(row, *arguments)
    if kind is np.bool_:
        assert np.array_equal(got, want)
        return
    gap = ulps(got, want)
    worst = int(gap.argmax())
    assert gap[worst] <= FLOAT_BOUND.get(row.name, 0), [a[worst] for a in arguments]
    if row.arity == 1:
        zero = arguments[0] == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("row", [r for r in FLOAT_OPS if r.arity == 1], ids=by_name)
def test_every_f16(row: Row) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    kind = result_class(row, np.float32)
    got = same_on_every_isa(lambda isa: vec(isa, row.code, kind, x))
    want = meaning(row, x)
    if kind is np.bool_:
        assert np.array_equal(got, want)
        return
    with np.errstate(over="ignore"):
        gap = ulps(got.astype(np.float16), want.astype(np.float16))
    assert gap.max() <= (1 if row.name in FLOAT_BOUND else 0), x[gap.argmax()]


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size(name: str) -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(0, 1e5, 4000), 2.0 ** rng.uniform(10, 127.9, 4000)])
    near = np.arange(1, 2000) * (np.pi / 2)  # where one of them is nearly zero
    x = np.concatenate([x, near, near * 1024, [1e5, 2**20, 2**20 + 1, 6381956970095103 * 2.0**71]])
    x = (x * rng.choice([-1, 1], len(x))).astype(np.float32)
    got = same_on_every_isa(lambda isa: vec(isa, TABLE[name].code, np.float32, x))
    assert ulps(got, meaning(TABLE[name], x)).max() <= 1


@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize("row", INT_OPS, ids=by_name)
def test_integers(row: Row, kind: type) -> None:
    rng = np.random.default_rng(row.code)
    info = np.iinfo(kind)
    special = np.array([0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 63, 64, 100, info.min, info.max], kind)
    left, right = (g.ravel() for g in np.meshgrid(special, special))
    count = 2000
    left = np.concatenate([left, rng.integers(info.min, info.max, count, kind)])
    left = np.concatenate([left, rng.integers(-50, 50, count).astype(kind)])
    right = np.concatenate([right, rng.integers(-9, 9, count).astype(kind)])
    right = np.concatenate([right, rng.integers(info.min, info.max, count, kind)])
    arguments = [left, right][: row.arity]
    if row.name == "pow":
        arguments[1] = np.abs(arguments[1]) & 0xFF
    if row.name == "where":
        arguments = [left > right, left, right]
    got = same_on_every_isa(lambda isa: vec(isa, row.code, result_class(row, kind), *arguments))
    want = meaning(row, *arguments)
    if row.name in ("floordiv", "truncdiv", "remainder", "fmod"):
        want = np.where(right == 0, 0, want)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_integer_powers_of_negative_exponents_truncate(kind: type) -> None:
    base = np.array([1, 1, -1, -1, 2, -3, 0], kind)
    exponent = np.array([-1, -2, -1, -2, -1, -1, -1], kind)
    got = same_on_every_isa(lambda isa: vec(isa, TABLE["pow"].code, kind, base, exponent))
    assert got.tolist() == [1, 1, -1, 1, 0, 0, 0]


@pytest.mark.parametrize("row", BOOL_OPS, ids=by_name)
def test_bools(row: Row) -> None:
    grid = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 0]])
    arguments = list(np.tile(grid, (5, 1)).T.astype(np.bool_)[: row.arity])
    got = same_on_every_isa(lambda isa: vec(isa, row.code, np.bool_, *arguments))
    assert np.array_equal(got, meaning(row, *arguments))


@pytest.mark.parametrize("lanes", [1, 15, 16, 17, 100, 1023, 1024])
def test_an_operand_may_be_the_destination(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for row in TABLE.values():
        for kind in CLASSES:
            if LETTER[CLASSES.index(kind)] not in row.classes or row.name == "cast":
                continue
            arguments = [rng.integers(0, 3, lanes).astype(kind) for _ in range(row.arity)]
            if row.name == "where":
                arguments[0] = arguments[0] > 0
            result = result_class(row, kind)
            for isa in isas():
                apart = vec(isa, row.code, result, *arguments)
                for alias in range(row.arity):
                    onto = vec(isa, row.code, result, *arguments, alias=alias)
                    assert np.array_equal(apart, onto, equal_nan=kind is np.float32), row.name


def tree(partials: Array, fold: np.ufunc) -> Array:
    while len(partials) > 1:
        half = len(partials) // 2
        partials = fold(partials[:half], partials[half:])
    return partials


@pytest.mark.parametrize("lanes", [0, 1, 63, 64, 65, 300, 1024])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, kind: type, lanes: int) -> None:
    number = CLASSES.index(kind)
    held = register(np.zeros(1, np.int64))
    if (name == "any") != (kind is np.bool_) and name not in ("max", "min"):
        assert call("reduce", isas()[-1], REDUCTIONS[name], number, held, held, 0) == -1
        return
    rng = np.random.default_rng(lanes)
    a = (rng.normal(size=lanes) * 100 + 1).astype(kind)
    low, high = (
        (-np.inf, np.inf) if kind is np.float32
        else (0, 1) if kind is np.bool_
        else (np.iinfo(kind).min, np.iinfo(kind).max)
    )  # fmt: skip
    fold, start = {
        "sum": (np.add, 0), "prod": (np.multiply, 1), "any": (np.logical_or, 0),
        "max": (np.maximum, low), "min": (np.minimum, high),
    }[name]  # fmt: skip
    padded = np.full((-(-lanes // 64) or 1) * 64, start, kind)
    padded[:lanes] = a
    with np.errstate(all="ignore"):
        partials = np.full(64, start, kind)
        for stick in padded.reshape(-1, 64):
            partials = fold(partials, stick)
        want = tree(partials, fold)

    def run(isa: str) -> Array:
        target = register(np.zeros(1, np.int64))
        assert call("reduce", isa, REDUCTIONS[name], number, target, register(a), lanes) == 0
        return values(target, kind, 1)

    assert np.array_equal(same_on_every_isa(run), want)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("position", [0, 77, 199])
def test_nan_wins_a_reduction(name: str, position: int) -> None:
    a = np.ones(200, np.float32)
    a[position] = np.nan
    for isa in isas():
        target = register(np.zeros(1, np.int64))
        assert call("reduce", isa, REDUCTIONS[name], 0, target, register(a), 200) == 0
        assert np.isnan(target.view(np.float32)[0])


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_combining_registers(name: str) -> None:
    a, b = floats(1, 100), floats(2, 100)
    fold = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[name]

    def run(isa: str) -> Array:
        target = register(np.zeros(1, np.int64))
        held = register(a), register(b)
        assert call("combine", isa, REDUCTIONS[name], 0, target, *held, len(a)) == 0
        return values(target, np.float32, len(a))

    with np.errstate(all="ignore"):
        assert ulps(same_on_every_isa(run), fold(a, b)).max() == 0
