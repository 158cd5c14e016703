"""Runs every kernel that touches memory against a page that nobody may touch.

A script: `test_elements.py` runs it in its own process, which dies where a kernel goes too far.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from openspyre.ir.kernel import DType
from tests.card.probe import CODE, Array, call, isas, register

SIZE = 1 << 18
LANES = (*range(1, 40), 63, 64, 65, 100, 1023, 1024)
SHAPES = ((1, 1, 1), (7, 33, 9), (13, 64, 16), (6, 47, 3))


def memory_with_an_end() -> Array:
    """Bytes whose next page faults."""
    mapped = np.frombuffer(mmap.mmap(-1, SIZE + mmap.PAGESIZE), np.uint8)
    page = ctypes.c_void_p(mapped.ctypes.data + SIZE)
    if ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError("mprotect failed")
    return mapped


def elements(isa: str, dtype: DType, memory: Array) -> None:
    held = register(np.zeros(1, np.int64))
    for lanes in LANES:
        for stride in (dtype.bytes, 3 * dtype.bytes, 0):
            at = memory[SIZE - (lanes - 1) * stride - dtype.bytes :]
            call("load", isa, CODE[dtype], held, at, stride, lanes)
            call("store", isa, CODE[dtype], held, at, stride, lanes)


def matrices(isa: str, dtype: DType, memory: Array) -> None:
    size, code, single = dtype.bytes, CODE[dtype], CODE[DType.F32]
    for rows, columns, k in SHAPES:
        a, panel = np.zeros((rows, k), np.float32), np.zeros((64, 64), np.float32)
        c, width = np.zeros((64, 64), np.float32), -(-columns // 16) * 16
        tail = memory[SIZE - rows * columns * 4 :]
        call("pt", isa, rows, columns, k, a, k, panel, 64, code, tail, columns, single, 1)
        tail = memory[SIZE - rows * columns * size :]
        call("pt", isa, rows, columns, k, a, k, panel, 64, code, tail, columns, code, 0)
        tail = memory[SIZE - k * width * size :]
        call("pt", isa, rows, columns, k, a, k, tail, width, code, c, 64, single, 0)
        tail = memory[SIZE - rows * k * 4 :]
        call("pt", isa, rows, columns, k, tail, k, panel, 64, code, c, 64, single, 0)
        tail = memory[SIZE - k * columns * size :]
        call("pack", isa, tail, columns, 1, code, k, columns, c)
        call("pack", isa, tail, 1, k, code, k, columns, c)
        call("pack", isa, panel, 1, k, code, k, columns, memory[SIZE - k * 64 * size :])
        tail = memory[SIZE - rows * k * size :]
        call("widen", isa, tail, k, 1, code, rows, k, c, 64)
        call("widen", isa, tail, 1, rows, code, rows, k, c, 64)
        call("widen", isa, panel, k, 1, code, rows, k, memory[SIZE - rows * k * 4 :], k)


if __name__ == "__main__":
    guarded = memory_with_an_end()
    for each in isas():
        for kind in DType:
            elements(each, kind, guarded)
        for kind in (DType.F16, DType.BF16, DType.F32):
            matrices(each, kind, guarded)
    print("stayed inside")
