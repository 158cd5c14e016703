"""The card's number formats: every code, every tie, in Python, in C++ and in the kernels."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from openspyre.card.formats import (
    DL16,
    FORMATS,
    FP8_143,
    FP8_152,
    FP9,
    FP24,
    INT2,
    INT4,
    INT8,
    INT16,
    INT24,
    FloatFormat,
    IntFormat,
    as_fp9,
)
from openspyre.numerics import Dl16Round, Mode, Numerics, SumFormat
from tests.card import dl16
from tests.card.probe import Array, call, floats, isas, library, register, values

ROUNDINGS = list(Dl16Round)
NATIVE = (DL16, FP8_143, FP8_152, FP9, FP24, INT2, INT4, INT8, INT16, INT24)  # as in formats.h
SMALL = (FP8_143, FP8_152, FP9)
BIASES = (1, 7, 15)


# --- the definition: fractions of whole numbers -----------------------------------------------


def meaning(layout: tuple[int, int, int], special: str, code: int) -> Fraction | float:
    """The value of a code, from sign, exponent and fraction alone."""
    exponent_bits, fraction_bits, bias = layout
    sign = -1 if code >> (exponent_bits + fraction_bits) & 1 else 1
    e = code >> fraction_bits & (1 << exponent_bits) - 1
    m = code & (1 << fraction_bits) - 1
    top, last = e == (1 << exponent_bits) - 1, m == (1 << fraction_bits) - 1
    match special:
        case "one" if top and last:
            return sign * np.inf
        case "one" if e == m == 0:
            return Fraction(0)
        case "one":
            return sign * Fraction(2) ** (e - bias) * (1 + Fraction(m, 1 << fraction_bits))
        case "nan" if top and last:
            return np.nan
        case "ieee" if top:
            return np.nan if m else sign * np.inf
    if e == 0:
        return sign * Fraction(2) ** (1 - bias) * Fraction(m, 1 << fraction_bits)
    return sign * Fraction(2) ** (e - bias) * (1 + Fraction(m, 1 << fraction_bits))


LAYOUTS = {
    "SEN169_FP16": ((6, 9, 31), "one"),
    "SEN143_FP8": ((4, 3, 7), "nan"),
    "SEN152_FP8": ((5, 2, 15), "ieee"),
    "SEN153_FP9": ((5, 3, 15), "ieee"),
}


def table(name: str, bias: int | None = None) -> Array:
    layout, special = LAYOUTS[name]
    layout = layout if bias is None else (*layout[:2], bias)
    count = 2 << (layout[0] + layout[1])
    return np.array([float(meaning(layout, special, code)) for code in range(count)])


def native_decode(number: int, codes: Array, bias: int = 0) -> Array:
    given = np.ascontiguousarray(codes, np.uint32)
    found = np.empty(given.shape, np.float64)
    library().spyre_probe_decode(
        number, bias, *(ctypes.c_void_p(a.ctypes.data) for a in (given, found)),
        ctypes.c_int64(given.size),
    )  # fmt: skip
    return found


def native_encode(number: int, given: Array, rounding: Dl16Round, bias: int = 0) -> Array:
    given = np.ascontiguousarray(given, np.float64)
    found = np.empty(given.shape, np.uint32)
    library().spyre_probe_encode(
        number, bias, ROUNDINGS.index(rounding),
        *(ctypes.c_void_p(a.ctypes.data) for a in (given, found)), ctypes.c_int64(given.size),
    )  # fmt: skip
    return found


def same(a: Array, b: Array) -> bool:
    """Equal values, and signs of zeros."""
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | ((a == b) & (np.signbit(a) == np.signbit(b)))))


# --- decoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_code_decodes(name: str) -> None:
    wanted = table(name)
    codes = np.arange(len(wanted))
    wanted[codes == len(codes) // 2] = -0.0
    assert same(FORMATS[name].decode(codes), wanted)
    assert same(native_decode(NATIVE.index(FORMATS[name]), codes), wanted)


def test_fp24_is_the_top_of_float32() -> None:
    for start in range(0, 1 << 24, 1 << 20):
        codes = np.arange(start, start + (1 << 20), dtype=np.uint32)
        with np.errstate(invalid="ignore"):  # signalling NaN
            wanted = (codes << 8).view(np.float32).astype(np.float64)
        assert same(FP24.decode(codes), wanted)
        assert same(native_decode(NATIVE.index(FP24), codes), wanted)


@pytest.mark.parametrize("known", [f for f in FORMATS.values() if isinstance(f, IntFormat)])
def test_integers(known: IntFormat) -> None:
    low, high = known.limits
    numbers = np.unique(np.clip(np.r_[low, low + 1, -1, 0, 1, high - 1, high], low, high))
    assert np.array_equal(known.decode(known.encode(numbers)), numbers)
    given = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e300, -1e300, np.inf, -np.inf, np.nan])
    nearest = np.clip([0, 2, 2, 0, -2, high, low, high, low, 0], low, high)
    assert np.array_equal(known.decode(known.encode(given)), nearest)
    if known in NATIVE:
        for rounding in ROUNDINGS:
            codes = known.encode(given, rounding)
            assert np.array_equal(native_encode(NATIVE.index(known), given, rounding), codes)
        assert np.array_equal(native_decode(NATIVE.index(known), known.encode(numbers)), numbers)


@pytest.mark.parametrize("bias", BIASES)
def test_the_bias_of_fp8_is_programmable(bias: int) -> None:
    wanted = table("SEN143_FP8", bias)
    wanted[128] = -0.0
    assert same(replace(FP8_143, bias=bias).decode(np.arange(256)), wanted)
    assert same(native_decode(NATIVE.index(FP8_143), np.arange(256), bias), wanted)


@pytest.mark.parametrize("known", [FP8_143, FP8_152])
def test_fp8_widens_to_fp9_exactly(known: FloatFormat) -> None:
    codes = np.arange(256)
    assert same(FP9.decode(as_fp9(codes, known)), known.decode(codes))


def test_landmarks() -> None:
    assert DL16.decode(0x7FFE) == 8573157376.0
    assert DL16.decode(1) == 2.0**-31 * (1 + 1 / 512)
    assert FP8_143.decode(0x7E) == 448.0
    assert list(DL16.encode([1e30, -1e30, np.nan, 1e-30, -1e-30, 2.0**-31])) == [
        0x7FFF, 0xFFFF, 0x7FFF, 0, 0x8000, 0,
    ]  # fmt: skip


# --- encoding -----------------------------------------------------------------------------------


def near(places: Array) -> Array:
    """Values, the middles between neighbours, and what lies just beside both, of either sign."""
    sorted_places = np.unique(places[np.isfinite(places) & (places >= 0)])
    middles = (sorted_places[1:] + sorted_places[:-1]) / 2
    found = np.concatenate([sorted_places, middles])
    found = np.concatenate([found, np.nextafter(found, 0), np.nextafter(found, np.inf)])
    top = sorted_places[-1]
    found = np.concatenate([found, top * np.array([1.01, 1.05, 1.2, 2, 1e9]), [np.inf, np.nan]])
    found = np.concatenate([found, sorted_places[1] * np.array([0.1, 0.49, 0.5, 0.51, 1e-9])])
    return np.concatenate([found, -found])


def test_dl16_rounds_as_defined() -> None:
    given = near(dl16.MAGNITUDES)
    for rounding in ROUNDINGS:
        wanted = dl16.codes(given, rounding)
        assert np.array_equal(DL16.encode(given, rounding), wanted)
        assert np.array_equal(native_encode(0, given, rounding), wanted)


@pytest.mark.parametrize("known", SMALL)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_small_formats_round_as_defined(known: FloatFormat, rounding: Dl16Round) -> None:
    wanted_values = table(known.name)
    given = near(wanted_values)
    got = known.encode(given, rounding)
    assert np.array_equal(got, native_encode(NATIVE.index(known), given, rounding))
    magnitudes = wanted_values[: 1 << (known.bits - 1)]
    finite = magnitudes[np.isfinite(magnitudes)]
    for value, code in zip(given, got, strict=True):
        back, size = wanted_values[code], abs(value)
        if np.isnan(value):
            assert np.isnan(back)
            continue
        assert bool(code >> (known.bits - 1)) == bool(np.signbit(value))
        step = finite[-1] - finite[-2]
        limit = finite[-1] + (step if rounding is Dl16Round.TRUNCATE else step / 2)
        if size > limit or (size == limit and rounding is not Dl16Round.NEAREST_EVEN):
            assert not np.isfinite(back)
            continue
        if not np.isfinite(back):  # the tie of the largest value with the infinity
            assert size == limit
            continue
        gaps = np.abs(finite - size)
        if rounding is Dl16Round.TRUNCATE:
            assert abs(back) == finite[finite <= size].max()
            continue
        assert abs(abs(back) - size) == gaps.min()
        ties = finite[gaps == gaps.min()]
        if len(ties) == 2:
            up = rounding is Dl16Round.NEAREST_UP
            even = ties[[int(np.searchsorted(finite, t)) % 2 == 0 for t in ties].index(True)]
            assert abs(back) == (ties.max() if up else even)


def test_fp24_rounds_as_defined() -> None:
    given = floats(7, 20_000).astype(np.float64)
    bits = given.astype(np.float32).view(np.uint32)
    even = np.where(np.isnan(given), 0, ((bits + 0x7F + ((bits >> 8) & 1)) >> 8) & 0xFFFFFF)
    numbers = ~np.isnan(given)
    assert np.array_equal(FP24.encode(given)[numbers], even[numbers])
    native = native_encode(NATIVE.index(FP24), given, Dl16Round.NEAREST_EVEN)
    assert np.array_equal(native, FP24.encode(given))


# --- the kernels --------------------------------------------------------------------------------


def in_pieces(given: Array, lanes: int = 1024) -> list[Array]:
    return [given[start : start + lanes] for start in range(0, len(given), lanes)]


@pytest.mark.parametrize("isa", isas())
def test_kernels_load_every_code(isa: str) -> None:
    found = []
    for piece in in_pieces(np.arange(1 << 16, dtype=np.uint16)):
        held = register(np.zeros(1, np.float32))
        assert call("dl16_load", isa, 0, held, piece, 2, len(piece)) == 0
        found.append(values(held, np.float32, len(piece)))
    assert same(np.concatenate(found).astype(np.float64), dl16.VALUES)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_kernels_store_as_defined(isa: str, rounding: Dl16Round) -> None:
    given = near(dl16.MAGNITUDES)
    with np.errstate(over="ignore"):
        given = np.concatenate([given.astype(np.float32), floats(5, 20_000)])
    got = []
    for piece in in_pieces(given):
        held, to = register(piece), np.zeros(len(piece), np.uint16)
        number = ROUNDINGS.index(rounding)
        assert call("dl16_store", isa, number, held, to, 2, len(piece)) == 0
        got.append(to)
    assert np.array_equal(np.concatenate(got), dl16.codes(given, rounding))


SUMS = [
    Numerics(Mode.CARD, acc_format=format, acc_chunk=chunk)
    for format in SumFormat
    for chunk in (64, 8, 1, 0)
    if (format, chunk) != (SumFormat.FP32, 0)  # nothing rounds there: an ordinary sum
]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("numerics", SUMS, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rows_are_summed_in_chunks(isa: str, numerics: Numerics, rounding: Dl16Round) -> None:
    chosen = replace(numerics, dl16_round=rounding)
    _, number, _, format_number, chunk, _ = chosen.words()
    rng = np.random.default_rng(3)
    for lanes in (1, 7, 63, 64, 65, 300, 1024):
        given = (rng.standard_normal(lanes) * 10.0 ** rng.integers(-12, 9, lanes)).astype(
            np.float32
        )
        start = np.array([float(dl16.rounded(np.float64(0.7), rounding))], np.float32)
        got = start.copy()
        args = (number, format_number, chunk, got, register(given), lanes)
        assert call("dl16_sum", isa, *args) == 0
        wanted = dl16.total(given.astype(np.float64), None, chosen, float(start[0]))
        assert same(got.astype(np.float64), np.atleast_1d(wanted))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("numerics", [*SUMS, replace(SUMS[0], acc_format=SumFormat.FP32,
                                                     acc_chunk=0)], ids=str)  # fmt: skip
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("spread", [0, 10])
def test_matmul_chunks(isa: str, numerics: Numerics, rounding: Dl16Round, spread: int) -> None:
    """Also where products underflow and sums overflow, which the usual path need not look for."""
    chosen = replace(numerics, dl16_round=rounding)
    _, number, _, format_number, chunk, _ = chosen.words()
    rng = np.random.default_rng(4)
    for rows, columns, k in ((1, 64, 64), (4, 33, 64), (7, 1, 13), (5, 16, 64)):
        k = min(k, chunk or k)
        scale = [10.0 ** rng.uniform(-spread, spread / 1.5, shape)
                 for shape in ((rows, k), (k, 64))]  # fmt: skip
        a, b = (
            dl16.rounded(rng.standard_normal(s.shape) * s, rounding).astype(np.float32)
            for s in scale
        )
        a[0, 0] = 0
        start = dl16.rounded(rng.standard_normal((rows, 64)), rounding).astype(np.float32)
        got = start.copy()
        assert call("dl16_chunk", isa, number, format_number, int(chunk == 0), rows, columns, k, a,
                    k, b, got) == 0  # fmt: skip
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = dl16.total(a.astype(np.float64)[:, None, :],
                                b.T.astype(np.float64)[None, :, :], chosen, start)  # fmt: skip
        shown = slice(0, columns)
        assert same(got[:, shown].astype(np.float64), wanted[:, shown])
