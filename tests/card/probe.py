"""The kernels of the software card, one instruction set at a time (csrc/card/probe.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from openspyre.card.native import LIBRARY
from openspyre.ir.kernel import DType

Array = np.ndarray[Any, np.dtype[Any]]
ROOT = Path(__file__).resolve().parents[2]
LANES = 1024  # of a register
CLASSES = (np.float32, np.int64, np.int32, np.bool_)  # by number, kernels.h
CODE = {dtype: number for number, dtype in enumerate(DType)}
STORAGE = {
    DType.F16: np.float16,
    DType.BF16: np.uint16,  # its bits
    DType.F32: np.float32,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.uint8,
    DType.F8E4M3: np.uint8,
    DType.F8E5M2: np.uint8,
}


@cache
def library() -> ctypes.CDLL:
    """The built library (`csrc/card/build.py` builds it in a checkout)."""
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.spyre_op_name.restype = ctypes.c_char_p
    return loaded


@cache
def isas() -> tuple[str, ...]:
    """The instruction sets of this CPU, the portable one first."""
    names = ("portable", "avx2", "avx512")
    held = register(np.zeros(1, np.float32))
    return tuple(n for n in names if call("combine", n, 1, 0, held, held, held, 1) == 0)


def call(entry: str, isa: str, *arguments: object) -> int:
    """Runs spyre_probe_<entry>; arrays pass their address."""
    return int(getattr(library(), f"spyre_probe_{entry}")(isa.encode(), *map(_c, arguments)))


def _c(argument: object) -> object:
    match argument:
        case np.ndarray():
            return ctypes.c_void_p(argument.ctypes.data)
        case None:
            return ctypes.c_void_p(None)
        case int():
            return ctypes.c_int64(argument)
    return argument


def register(values: Array) -> Array:
    """A register that holds the values (its other lanes are rubbish)."""
    memory = np.full(LANES + 8, -0x5A5A5A5A5A5A5A5B, np.int64)
    held = memory[-memory.ctypes.data % 64 // 8 :][:LANES]  # at a multiple of 64 bytes
    wide = values if values.dtype == np.float32 else values.astype(np.int64)
    held.view(wide.dtype)[: len(values)] = wide
    return held


def values(held: Array, kind: type, lanes: int) -> Array:
    """The first lanes of a register, as their class."""
    if kind is np.float32:
        return held.view(np.float32)[:lanes].copy()
    wide = held[:lanes]
    assert np.array_equal(wide.astype(kind).astype(np.int64), wide), "a lane is not of its class"
    return wide.astype(kind)


def vec(isa: str, code: int, result: type, *arguments: Array, alias: int | None = None) -> Array:
    """A whole array through a vector kernel; `alias`: the argument that is the destination."""
    operand_class = CLASSES.index(arguments[-1].dtype.type)
    parts = []
    for start in range(0, len(arguments[0]), LANES):
        pieces = [a[start : start + LANES] for a in arguments]
        held: list[Array | None] = [register(piece) for piece in pieces]
        target = register(np.zeros(1, np.int64)) if alias is None else held[alias]
        assert target is not None
        held += [None] * (3 - len(held))
        lanes = len(pieces[0])
        assert call("vec", isa, code, operand_class, target, *held, lanes) == 0
        parts.append(values(target, result, lanes))
    return np.concatenate(parts)


def same_on_every_isa(run: Callable[[str], Array]) -> Array:
    """The result of the best instruction set, after comparing the bits of all of them."""
    results = [run(isa) for isa in isas()]
    for isa, other in zip(isas()[1:], results[1:], strict=True):
        assert np.array_equal(bits(results[0]), bits(other)), f"{isa} differs from portable"
    return results[-1]


def bits(array: Array) -> Array:
    """The bits of an array, every NaN the same."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.view(np.uint8)


def ulps(got: Array, want: Array) -> Array:
    """How many values of their float type lie between; NaN equals NaN only."""
    signed = np.dtype(f"i{got.dtype.itemsize}")
    steps = []
    for array in (got, want):
        raw = array.view(signed).astype(np.int64)
        steps.append(np.where(raw < 0, np.iinfo(signed).min - raw, raw))
    gap = np.abs(steps[0] - steps[1])
    nan = np.isnan(got), np.isnan(want)
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], 1 << 40, gap))


def floats(seed: int, count: int, extra: Sequence[float] = ()) -> Array:
    """Float32 values of every size and sign, special ones included."""
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 2**23 + 1]
    special += [1e-45, -1e-45, 1e-39, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72, 88.73]
    special += [-87.4, -103.9, -104.1, 1e5, 1e30, 16777217.0, 0.41421357, 0.75, 0.93, 4.0, *extra]
    with np.errstate(over="ignore"):
        chosen = np.concatenate(
            [
                np.asarray(special),
                rng.normal(size=count),
                rng.uniform(-105, 90, count),
                rng.choice([-1, 1], count) * np.exp(rng.uniform(-103, 88.7, count)),
                1 + rng.normal(size=count) * 1e-3,
            ]
        ).astype(np.float32)
    return rng.permutation(chosen)
