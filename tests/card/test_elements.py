"""Loads, stores and casts of the software card: every dtype, stride and alignment."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from openspyre.ir.kernel import DType
from tests.card.probe import (
    CLASSES,
    CODE,
    LANES,
    ROOT,
    STORAGE,
    Array,
    call,
    floats,
    isas,
    register,
    same_on_every_isa,
    ulps,
    values,
)
from tests.execute_programs import FP8, to_fp8

DTYPES = tuple(DType)
CLASS = {DType.F32: np.float32, DType.I64: np.int64, DType.I32: np.int32, DType.BOOL: np.bool_}


def by_value(dtype: DType) -> str:
    return dtype.value


def to_bf16(x: Array) -> Array:
    """The bits of float32 values rounded to nearest even."""
    raw = x.view(np.uint32)
    rounded = ((raw.astype(np.uint64) + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (raw >> 16).astype(np.uint16) | 0x40, rounded)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(dtype: DType, x: Array) -> Array:
    """What a value of the compute class is in memory."""
    with np.errstate(all="ignore"):
        if dtype is DType.BF16:
            return to_bf16(x)
        if dtype in FP8:
            return to_fp8(x, dtype)
        return (x != 0).astype(np.uint8) if dtype is DType.BOOL else x.astype(STORAGE[dtype])


def loaded(dtype: DType, x: Array) -> Array:
    if dtype is DType.BF16:
        return from_bf16(x)
    if dtype in FP8:
        return FP8[dtype].decode(x).astype(np.float32)
    return x != 0 if dtype is DType.BOOL else x.astype(CLASS[dtype.compute])


def elements(dtype: DType, count: int) -> Array:
    rng = np.random.default_rng(count)
    raw = rng.integers(0, 256, count * dtype.bytes, np.uint8).view(STORAGE[dtype])
    return (raw & 1).astype(np.uint8) if dtype is DType.BOOL else raw


def run_load(isa: str, dtype: DType, memory: Array, offset: int, stride: int, lanes: int) -> Array:
    target = register(np.zeros(1, np.int64))
    at = memory[offset:]
    assert call("load", isa, CODE[dtype], target, at, stride, lanes) == 0
    return values(target, CLASS[dtype.compute], lanes)


@pytest.mark.parametrize("lanes", [1, 7, 16, 33, 64, 1000, LANES])
@pytest.mark.parametrize("dtype", DTYPES, ids=by_value)
def test_load(dtype: DType, lanes: int) -> None:
    size, odd = dtype.bytes, 1
    x = elements(dtype, lanes)
    for step in (0, 1, 3, -2):
        memory = np.zeros((lanes + 1) * size * max(1, abs(step)) + odd, np.uint8)
        first = odd if step >= 0 else odd + (lanes - 1) * size * -step
        places = [first + n * step * size for n in range(lanes)]
        for place, value in zip(places, x, strict=True):
            memory[place : place + size] = np.frombuffer(value.tobytes(), np.uint8)
        want = loaded(dtype, np.full_like(x, x[-1]) if step == 0 else x)
        got = same_on_every_isa(
            lambda isa: run_load(isa, dtype, memory, first, step * size, lanes)  # noqa: B023
        )
        assert np.array_equal(got, want, equal_nan=dtype.is_float), step


@pytest.mark.parametrize("lanes", [1, 7, 16, 33, 64, 1000, LANES])
@pytest.mark.parametrize("dtype", DTYPES, ids=by_value)
def test_store_writes_its_elements_and_nothing_else(dtype: DType, lanes: int) -> None:
    size = dtype.bytes
    rng = np.random.default_rng(lanes)
    kind = CLASS[dtype.compute]
    x = (rng.normal(size=lanes) * 300).astype(kind)
    raw = stored(dtype, x)
    for step in (1, 3, -2):
        span = (lanes + 2) * size * abs(step)
        first = size if step > 0 else size + (lanes - 1) * size * -step
        want = np.full(span, 0xA5, np.uint8)
        for n, value in enumerate(raw):
            place = first + n * step * size
            want[place : place + size] = np.frombuffer(value.tobytes(), np.uint8)
        for isa in isas():
            memory = np.full(span + 1, 0xA5, np.uint8)[1:]
            at = memory[first:]
            assert call("store", isa, CODE[dtype], register(x), at, step * size, lanes) == 0
            assert np.array_equal(memory, want), (isa, step)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=by_value)
def test_every_half_widens_exactly(dtype: DType) -> None:
    memory = np.arange(1 << 16, dtype=np.uint16)
    for start in range(0, 1 << 16, LANES):
        part = memory[start : start + LANES].view(np.uint8)
        got = same_on_every_isa(lambda isa: run_load(isa, dtype, part, 0, 2, LANES))  # noqa: B023
        want = loaded(dtype, part.view(STORAGE[dtype]))
        assert ulps(got, want).max() == 0


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=by_value)
def test_halves_round_to_nearest_even(dtype: DType) -> None:
    edges = [
        65504.0,
        65519.0,
        65519.996,
        65520.0,
        -65520.0,
        2**-24,
        2**-25,
        2**-25 * 1.0001,
        6.1e-5,
    ]
    halves = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2  # two apart: near ties of every size
    ties = np.concatenate([ties, halves + np.spacing(halves.astype(np.float16)) / 2])
    x = np.concatenate([floats(3, 2000, edges), ties.astype(np.float32), -halves])
    for start in range(0, len(x), LANES):
        part = x[start : start + LANES]

        def run(isa: str, part: Array = part) -> Array:
            memory = np.zeros(len(part), np.uint16)
            assert call("store", isa, CODE[dtype], register(part), memory, 2, len(part)) == 0
            return memory.view(STORAGE[dtype]) if dtype is DType.F16 else from_bf16(memory)

        want = stored(dtype, part)
        want = want if dtype is DType.F16 else from_bf16(want)
        assert ulps(same_on_every_isa(run), want).max() == 0


@pytest.mark.parametrize("dtype", FP8, ids=by_value)
def test_every_fp8_code_widens_exactly_and_comes_back(dtype: DType) -> None:
    codes = np.arange(256, dtype=np.uint8)
    got = same_on_every_isa(lambda isa: run_load(isa, dtype, codes, 0, 1, 256))
    want = FP8[dtype].decode(codes).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))
    back = same_on_every_isa(lambda isa: run_store(isa, dtype, got))
    assert np.array_equal(back[~np.isnan(got)], codes[~np.isnan(got)])
    assert np.isnan(FP8[dtype].decode(back[np.isnan(got)])).all()


@pytest.mark.parametrize("dtype", FP8, ids=by_value)
def test_fp8_rounds_to_nearest_even(dtype: DType) -> None:
    codes = FP8[dtype].decode(np.arange(128)).astype(np.float32)
    numbers = codes[np.isfinite(codes)]
    ties = (numbers[:-1] + numbers[1:]) / 2
    ends = [numbers[-1] + n * (numbers[-1] - numbers[-2]) / 4 for n in range(6)]
    exact = np.concatenate([numbers, ties, np.array(ends, np.float32)]).astype(np.float32)
    near = np.concatenate([exact, np.nextafter(exact, 9e9), np.nextafter(exact, -9e9)])
    near = np.concatenate([near, -near, floats(9, 3000, [1e-44, -1e-40, np.nan, -np.nan])])
    for start in range(0, len(near), LANES):
        part = near[start : start + LANES].astype(np.float32)
        got = same_on_every_isa(lambda isa: run_store(isa, dtype, part))  # noqa: B023
        assert np.array_equal(got, to_fp8(part, dtype))


def run_store(isa: str, dtype: DType, x: Array) -> Array:
    memory = np.zeros(len(x), STORAGE[dtype])
    assert call("store", isa, CODE[dtype], register(x), memory, dtype.bytes, len(x)) == 0
    return memory


def run_cast(isa: str, dtype: DType, x: Array, *, onto: bool) -> Array:
    held = register(x)
    target = held if onto else register(np.zeros(1, np.int64))
    number = CLASSES.index(x.dtype.type)
    assert call("cast", isa, CODE[dtype], number, target, held, len(x)) == 0
    return values(target, CLASS[dtype.compute], len(x))


@pytest.mark.parametrize("onto", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("dtype", DTYPES, ids=by_value)
def test_cast(dtype: DType, kind: type, onto: bool) -> None:
    rng = np.random.default_rng(4)
    if kind is np.float32:
        limit = float(np.iinfo(STORAGE[dtype]).max) if not dtype.is_float else 1e6
        x = np.concatenate(
            [[0, -0.0, 0.5, -0.5, 1.9, -1.9], rng.uniform(-limit, limit, 900) * 0.99]
        )
        x = (np.abs(x) if dtype is DType.U8 else x).astype(np.float32)
    elif kind is np.bool_:
        x = rng.integers(0, 2, 900).astype(kind)
    else:
        x = np.concatenate([rng.integers(-(2**31), 2**31, 500), rng.integers(-300, 300, 501)])
        x = x.astype(kind) * (2**31 + 12345 if kind is np.int64 else 1)
    got = same_on_every_isa(lambda isa: run_cast(isa, dtype, x, onto=onto))
    if dtype.is_float and kind is not np.float32:
        want = loaded(dtype, stored(dtype, x.astype(np.float32)))
    else:
        want = loaded(dtype, stored(dtype, x))
    assert np.array_equal(got, want, equal_nan=dtype.is_float)


def test_floats_outside_an_integer_give_its_smallest_value() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0**31, 2.0**63, -(2.0**31), 1e30], np.float32)
    low, least = -(2**31), -(2**63)
    wide = same_on_every_isa(lambda isa: run_cast(isa, DType.I64, x, onto=False))
    assert wide.tolist() == [least, least, least, 2**31, least, low, least]
    narrow = same_on_every_isa(lambda isa: run_cast(isa, DType.I32, x, onto=False))
    assert narrow.tolist() == [low] * 7
    truth = same_on_every_isa(lambda isa: run_cast(isa, DType.BOOL, x, onto=False))
    assert truth.all()


def test_nothing_is_touched_beyond_the_last_element() -> None:
    command = [sys.executable, "-m", "tests.card.guarded_reads"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "stayed inside\n"), done.stderr
