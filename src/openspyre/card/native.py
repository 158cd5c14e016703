"""The software card from Python, without torch: for tests and tools.

The torch device uses the same library through its own C++ (csrc/device).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field, fields
from enum import Flag
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from openspyre.errors import BrokenInvariant, CardError, InvalidProgram, SpyreError
from openspyre.ir.binary import encode
from openspyre.ir.program import Program
from openspyre.numerics import IEEE, Numerics
from openspyre.spec import SPYRE_CARD_V1, CardSpec

LIBRARY = Path(__file__).resolve().parent.parent / "lib" / "libspyre_card.so"
_ALIGNMENT = 128
_STOPPED = 3


class DebugMode(Flag):
    """Modes of a card that change nothing for a right program.

    POISON: LX holds NaN when a launch begins, memory that is handed out or released holds 0xCB.
    LATE: copies between device memory and LX happen as late as the order of units allows.
    """

    POISON = 1
    LATE = 2


NO_DEBUG = DebugMode(0)


def debug_mode(names: Iterable[str]) -> DebugMode:
    """The modes of the settings' names: poison, late."""
    return reduce(or_, (DebugMode[name.upper()] for name in names), NO_DEBUG)


@dataclass(frozen=True, slots=True)
class Report:
    """What one launch costs on the card. The same sizes give the same report.

    Attributes:
        cycles: core clock cycles from start to end.
        bound_p_cycles: what peak arithmetic and peak memory rates alone would need.
        pt_busy, sfu_busy, load_busy, store_busy, ring_busy: cycles, summed over cores.
        device_read_bytes, device_write_bytes: multicast data counts once.
        flop: of PT, two per multiply-add.
        sfu_ops: scalar ops.
        lx_peak: bytes of the fullest core.
        cores: how many had work.
        instructions: executed, over all cores.
    """

    cycles: int
    bound_p_cycles: int
    pt_busy: int
    sfu_busy: int
    load_busy: int
    store_busy: int
    ring_busy: int
    device_read_bytes: int
    device_write_bytes: int
    ring_bytes: int
    flop: int
    sfu_ops: int
    lx_peak: int
    cores: int
    instructions: int


UNITS = ("load", "store", "pt", "sfu", "ring")
EVENT = np.dtype(
    [
        *((name, np.float64) for name in ("begin", "end")),
        *((name, np.uint64) for name in ("read_bytes", "write_bytes", "ring_bytes")),
        *((name, np.int32) for name in ("section", "node", "core", "unit")),
    ]
)
"""One executed instruction (spyre_event in csrc/card/card.h): begin and end in cycles from the
launch's start; of a request that several cores share, one event has the device memory's bytes and
the others those of the ring; `unit` is a position in UNITS."""
Events = np.ndarray[Any, np.dtype[np.void]]
"""Events of a launch: an array of EVENT."""


class _Error(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 1024)]


class _Numerics(ctypes.Structure):
    _fields_ = [
        (name, c_int)
        for name in (
            "card",
            "dl16_round",
            "bf16_out_truncate",
            "acc_format",
            "acc_chunk",
            "fp8_bias",
        )
    ]


@dataclass(frozen=True, slots=True)
class Span:
    """What a launch may do with an argument.

    Attributes:
        low, high: the bytes it may access, relative to the address; `high` lies behind the last.
        stored: how many of them it stores at least; -1 if it must not store any.
        fresh: they mean nothing before the launch, which reads none that it has not stored.
    """

    low: int
    high: int
    stored: int = 0
    fresh: bool = False


class _Span(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("low", "high", "stored", "fresh")]


@dataclass(frozen=True, slots=True)
class Kept:
    """What LX keeps of a program between launches.

    Attributes:
        bytes: of LX, over all cores.
        loads: launches that have brought it there.
        hits: launches that found it there.
    """

    name: str
    bytes: int
    loads: int
    hits: int


class _Kept(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 256),
        *((name, c_uint64) for name in ("bytes", "loads", "hits")),
    ]


class _Report(ctypes.Structure):
    _fields_ = [(f.name, c_uint64) for f in fields(Report)]


def _signatures() -> dict[str, tuple[object, list[object]]]:
    error = POINTER(_Error)
    words, numbers = POINTER(c_int64), POINTER(c_double)
    return {
        "spyre_card_open": (
            c_int,
            [POINTER(c_char_p), numbers, c_size_t, c_uint64, c_int, POINTER(c_void_p), error],
        ),
        "spyre_card_close": (None, [c_void_p]),
        "spyre_card_use_isa": (c_int, [c_void_p, c_char_p, error]),
        "spyre_card_debug": (c_int, [c_void_p, c_uint, error]),
        "spyre_card_memory_fresh": (c_int, [c_void_p, c_uint64, c_uint64]),
        "spyre_card_memory_base": (c_uint64, [c_void_p]),
        "spyre_card_memory_size": (c_uint64, [c_void_p]),
        "spyre_card_memory_release": (c_int, [c_void_p, c_uint64, c_uint64]),
        "spyre_card_touch": (None, [c_void_p, c_uint64, c_uint64]),
        "spyre_program_create": (
            c_int,
            [c_void_p, c_uint64, c_uint64, POINTER(c_void_p), error],
        ),
        "spyre_program_destroy": (None, [c_void_p]),
        "spyre_program_slot_count": (c_uint64, [c_void_p]),
        "spyre_program_pool_bytes": (c_uint64, [c_void_p]),
        "spyre_program_fill": (
            c_int,
            [
                *(c_void_p, POINTER(c_uint64), c_size_t, words, c_size_t, numbers, c_size_t),
                *(c_uint64, words, error),
            ],
        ),
        "spyre_card_interrupt": (None, [c_void_p]),
        "spyre_program_run": (c_int, [c_void_p, c_uint64, POINTER(_Numerics), error]),
        "spyre_program_time": (c_int, [c_void_p, words, POINTER(_Report), error]),
        "spyre_program_time_kept": (c_int, [c_void_p, words, POINTER(_Report), error]),
        "spyre_card_kept": (c_size_t, [c_void_p, POINTER(_Kept), c_size_t]),
        "spyre_card_evict": (None, [c_void_p]),
        "spyre_program_trace": (
            c_int,
            [c_void_p, words, c_void_p, c_size_t, POINTER(_Report), error],
        ),
        "spyre_program_check": (c_int, [c_void_p, words, POINTER(_Span), c_size_t, error]),
        "spyre_isa": (c_char_p, []),
        "spyre_op_name": (c_char_p, [c_int]),
        "spyre_format_version": (c_int, []),
    }


@cache
def library() -> ctypes.CDLL:
    """The native library, with its calls typed.

    Raises:
        SpyreError: it is not built.
    """
    if not LIBRARY.exists():
        raise SpyreError(
            "the software card is not built",
            why=f"{LIBRARY.name} is missing",
            hint="install openspyre, or run csrc/card/build.py in a checkout",
        )
    loaded = ctypes.CDLL(str(LIBRARY))
    for name, (result, arguments) in _signatures().items():
        call = getattr(loaded, name)
        call.restype, call.argtypes = result, arguments
    return loaded


def isa() -> str:
    """The instruction set whose kernels a card uses: avx512, avx2 or portable."""
    return bytes(library().spyre_isa()).decode()


def op_name(code: int) -> str | None:
    """The card's name of an op code, None if it has no such op."""
    name = library().spyre_op_name(code)
    return None if name is None else bytes(name).decode()


def _check(code: int, error: _Error) -> None:
    if code == 0:
        return
    text = bytes(error.text).decode(errors="replace")
    match code:
        case 1:
            raise InvalidProgram(text)
        case 2:
            raise MemoryError(text)
        case 3 | 4 | 7 | 8:  # it stopped, an index is out of range, too large, interrupted
            raise CardError(text)
        case _:
            raise BrokenInvariant(text)


@dataclass(slots=True)
class LoadedProgram:
    """A program on a card. Unload it before the card closes."""

    handle: c_void_p
    slots: int
    pool_bytes: int


@dataclass(slots=True)
class SoftwareCard:
    """A card in software; a `Driver`. Close it, or use it as a context.

    Args:
        memory: bytes of device memory (reserved at once, committed when touched).
        threads: host threads that run cores; 0: one per CPU that the process may use.
        isa: kernels to use instead of the best ones: avx512, avx2 or portable.
        debug: modes in which a program that is right only by luck goes wrong (see `DebugMode`).
    """

    memory: int = 1 << 30
    threads: int = 0
    isa: str | None = None
    spec: CardSpec = SPYRE_CARD_V1
    debug: DebugMode = NO_DEBUG
    _card: c_void_p = field(init=False, default_factory=c_void_p)
    _next: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        numbers = self.spec.numbers()
        names = (c_char_p * len(numbers))(*(name.encode() for name in numbers))
        values = (c_double * len(numbers))(*numbers.values())
        error = _Error()
        code = library().spyre_card_open(
            names, values, len(numbers), self.memory, self.threads, byref(self._card), byref(error)
        )
        _check(code, error)
        _check(library().spyre_card_debug(self._card, self.debug.value, byref(error)), error)
        if self.isa is not None:
            try:
                _check(
                    library().spyre_card_use_isa(self._card, self.isa.encode(), byref(error)), error
                )
            except BrokenInvariant:
                self.close()
                raise
        self._next = self.memory_base

    def __enter__(self) -> SoftwareCard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back. Programs must be unloaded; their handles are dead afterwards."""
        if self._card:
            library().spyre_card_close(self._card)
            self._card = c_void_p()

    @property
    def memory_base(self) -> int:
        """Address of the first byte of device memory."""
        return int(library().spyre_card_memory_base(self._card))

    @property
    def memory_bytes(self) -> int:
        """Size of device memory."""
        return int(library().spyre_card_memory_size(self._card))

    def allocate(self, count: int, alignment: int = _ALIGNMENT) -> int:
        """The address of fresh bytes; there is no free (the torch device has a real allocator).

        Raises:
            MemoryError: the card is full.
        """
        address = -(-self._next // alignment) * alignment
        if address + count > self.memory_base + self.memory_bytes:
            raise MemoryError(f"the card has {self.memory_bytes} bytes, {count} more do not fit")
        self._next = address + count
        library().spyre_card_memory_fresh(self._card, address, count)
        return address

    def write(self, address: int, data: bytes) -> None:
        """Copy host bytes to device memory."""
        self._check_range(address, len(data))
        ctypes.memmove(address, data, len(data))
        library().spyre_card_touch(self._card, address, len(data))

    def read(self, address: int, count: int) -> bytes:
        """Copy device memory to the host."""
        self._check_range(address, count)
        return ctypes.string_at(address, count)

    def store(self, data: bytes) -> int:
        """Allocate, write, and give the address."""
        address = self.allocate(len(data))
        self.write(address, data)
        return address

    def release(self, address: int, count: int) -> None:
        """Give pages back to the host; what they held is lost."""
        self._check_range(address, count)
        _check(library().spyre_card_memory_release(self._card, address, count), _Error())

    def load(self, address: int, count: int) -> LoadedProgram:
        """Make a program of bytes in device memory.

        Raises:
            InvalidProgram: they are malformed, corrupted or of another version.
        """
        handle, error = c_void_p(), _Error()
        code = library().spyre_program_create(
            self._card, address, count, byref(handle), byref(error)
        )
        _check(code, error)
        slots = library().spyre_program_slot_count(handle)
        return LoadedProgram(handle, slots, library().spyre_program_pool_bytes(handle))

    def load_program(self, program: Program) -> LoadedProgram:
        """Encode a program, write it and load it."""
        data = encode(program)
        return self.load(self.store(data), len(data))

    def unload(self, program: LoadedProgram) -> None:
        """Forget a program; its bytes in device memory stay."""
        library().spyre_program_destroy(program.handle)
        program.handle = c_void_p()

    def fill(
        self,
        program: LoadedProgram,
        addresses: Sequence[int],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
        pool: int = 0,
    ) -> bytes:
        """The symbol block of a launch."""
        block, error = (c_int64 * max(program.slots, 1))(), _Error()
        code = library().spyre_program_fill(
            program.handle,
            (c_uint64 * len(addresses))(*addresses),
            len(addresses),
            (c_int64 * len(sizes))(*sizes),
            len(sizes),
            (c_double * len(scalars))(*scalars),
            len(scalars),
            pool,
            block,
            byref(error),
        )
        _check(code, error)
        return bytes(block)

    def run(self, program: LoadedProgram, block: int, numerics: Numerics = IEEE) -> None:
        """Run against the symbol block at an address; returns when the card has finished.

        Raises:
            CardError: an index of the user's is out of range, the program accessed what it must
                not or asks for more than 2^50 operations, or somebody interrupted it.
        """
        error = _Error()
        chosen = _Numerics(*numerics.words())
        code = library().spyre_program_run(program.handle, block, byref(chosen), byref(error))
        _check(code, error)

    def interrupt(self) -> None:
        """End the program that runs now, from another thread: its `run` raises CardError."""
        library().spyre_card_interrupt(self._card)

    def launch(
        self,
        program: LoadedProgram,
        addresses: Sequence[int],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
        pool: int = 0,
        numerics: Numerics = IEEE,
    ) -> None:
        """All three steps of a launch, with a symbol block of its own."""
        block = self.store(self.fill(program, addresses, sizes, scalars, pool))
        self.run(program, block, numerics)

    def kept(self) -> tuple[Kept, ...]:
        """What LX keeps now, of every program with a prologue."""
        count = library().spyre_card_kept(self._card, None, 0)
        found = (_Kept * max(count, 1))()
        count = min(count, library().spyre_card_kept(self._card, found, count))
        return tuple(
            Kept(bytes(one.name).decode(errors="replace"), one.bytes, one.loads, one.hits)
            for one in found[:count]
        )

    def evict(self) -> None:
        """Forget what LX keeps."""
        library().spyre_card_evict(self._card)

    def time(self, program: LoadedProgram, block: bytes, *, kept: bool = False) -> Report:
        """What a launch with this symbol block costs. Computes no values.

        Args:
            kept: LX holds what the program's prologue would load.
        """
        words = (c_int64 * max(len(block) // 8, 1)).from_buffer_copy(block)
        report, error = _Report(), _Error()
        time = library().spyre_program_time_kept if kept else library().spyre_program_time
        code = time(program.handle, words, byref(report), byref(error))
        _check(code, error)
        return Report(**{f.name: int(getattr(report, f.name)) for f in fields(Report)})

    def trace(self, program: LoadedProgram, block: bytes) -> tuple[Report, Events]:
        """What `time` says, and every instruction with the times at which it ran."""
        events = np.zeros(self.time(program, block).instructions, EVENT)
        words = (c_int64 * max(len(block) // 8, 1)).from_buffer_copy(block or bytes(8))
        report, error = _Report(), _Error()
        code = library().spyre_program_trace(
            program.handle, words, events.ctypes.data, len(events), byref(report), byref(error)
        )
        _check(code, error)
        return Report(**{f.name: int(getattr(report, f.name)) for f in fields(Report)}), events

    def check(self, program: LoadedProgram, block: bytes, spans: Sequence[Span]) -> None:
        """Prove that a program is right for the sizes in a symbol block. Computes no values.

        Args:
            spans: one for every address of the block.

        Raises:
            BrokenInvariant: it is not: an access out of bounds, a read of bytes that nothing
                wrote, a result that is not stored, a race. Names the instructions and the
                user's ops.
            CardError: it has too much work at these sizes to be checked.
        """
        words = (c_int64 * max(len(block) // 8, 1)).from_buffer_copy(block or bytes(8))
        given = (_Span * max(len(spans), 1))(
            *(_Span(s.low, s.high, s.stored, s.fresh) for s in spans)
        )
        error = _Error()
        code = library().spyre_program_check(program.handle, words, given, len(spans), byref(error))
        if code == _STOPPED:  # never a mistake of the user's: no value was looked at
            raise BrokenInvariant(bytes(error.text).decode(errors="replace"))
        _check(code, error)

    def _check_range(self, address: int, count: int) -> None:
        offset = address - self.memory_base
        if offset < 0 or offset + count > self.memory_bytes:
            raise CardError(
                f"{count} bytes at offset {offset} do not lie in the card's memory",
                why=f"it has {self.memory_bytes}",
            )
