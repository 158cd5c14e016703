"""A pytest plugin that records the calls of the card: `pytest -p tests.card.recording tests/card`.

With `--record FILE` every distinct load, run, time and check that tests make through
`SoftwareCard` is written down, with all that it needs and all that it gave, for
`csrc/recorded/calls.cpp`, which repeats them on another kind of host.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from openspyre.card.native import LoadedProgram, Report, SoftwareCard, Span
from openspyre.errors import BrokenInvariant, CardError, InvalidProgram
from openspyre.ir.binary import decode
from openspyre.ir.interpret import symbol_block
from openspyre.ir.kernel import DType, Space
from openspyre.ir.program import Copy, Place, Program, Slot, Value
from openspyre.numerics import IEEE, Numerics
from tests.card.checking import instructions

LOAD, RUN, TIME, CHECK, TIME_KEPT = range(5)
STOPPED, INDEX, INVALID = 3, 4, 1
LARGEST = 1 << 20  # bytes of memory that a recorded run may use
ALIGNMENT = 4096  # of what is kept of it
# First byte, the one behind the last, bytes of an element, its format.
Region = tuple[int, int, int, int]
BITS = 0
FORMATS = {  # that have NaN
    DType.F16: 1, DType.BF16: 2, DType.F32: 3, DType.F8E4M3: 4, DType.F8E5M2: 5,
}  # fmt: skip


@dataclass
class Call:
    """What `calls.cpp` reads, in its order."""

    name: str
    call: int
    numbers: dict[str, float]
    debug: int
    program: bytes
    numerics: Numerics = IEEE
    addresses: Sequence[int] = ()
    sizes: Sequence[int] = ()
    scalars: Sequence[float] = ()
    pool: int = 0
    regions: Sequence[Region] = ()
    before: bytes = b""
    after: bytes = b""
    spans: Sequence[Span] = ()
    code: int = 0
    error: str = ""
    report: Sequence[int] = ()

    def encoded(self) -> bytes:
        spans = [(s.low, s.high, s.stored, int(s.fresh)) for s in self.spans]
        return b"".join(
            [
                _text(self.name.encode()),
                _words(self.call),
                _words(len(self.numbers)),
                *(_text(name.encode()) for name in self.numbers),
                _words(len(self.numbers)),
                struct.pack(f"<{len(self.numbers)}d", *self.numbers.values()),
                _words(self.debug),
                _words(*self.numerics.words()),
                _text(self.program),
                _list(self.addresses),
                _list(self.sizes),
                _words(len(self.scalars)),
                struct.pack(f"<{len(self.scalars)}d", *self.scalars),
                _words(self.pool),
                _words(len(self.regions)),
                *(_words(*region) for region in self.regions),
                _text(self.before),
                _text(self.after),
                _words(len(spans)),
                *(_words(*span) for span in spans),
                _words(self.code),
                _text(self.error.encode()),
                _list(self.report),
            ]
        )


def _words(*numbers: int) -> bytes:
    return b"".join(struct.pack("<Q", number % (1 << 64)) for number in numbers)


def _list(numbers: Sequence[int]) -> bytes:
    return _words(len(numbers), *numbers)


def _text(data: bytes) -> bytes:
    return _words(len(data)) + data


@dataclass
class Recorder:
    """Wraps the methods of SoftwareCard."""

    file: BinaryIO
    test: str = ""
    seen: set[bytes] = field(default_factory=set)
    programs: dict[int, bytes] = field(default_factory=dict)
    fills: dict[bytes, tuple[Any, ...]] = field(default_factory=dict)

    def write(self, call: Call) -> None:
        data = call.encoded()
        key = hashlib.blake2b(data[8 + len(call.name.encode()) :]).digest()
        if key not in self.seen:
            self.seen.add(key)
            self.file.write(data)

    def begun(self, call: int, card: SoftwareCard, program: bytes, **more: Any) -> Call:
        return Call(self.test, call, card.spec.numbers(), card.debug.value, program, **more)

    def load(self, real: Callable[..., LoadedProgram]) -> Callable[..., LoadedProgram]:
        def wrapped(card: SoftwareCard, address: int, count: int) -> LoadedProgram:
            inside = 0 <= address - card.memory_base <= card.memory_bytes - count
            if not inside or count > LARGEST:  # says nothing about a program
                return real(card, address, count)
            data = card.read(address, count)
            call = self.begun(LOAD, card, data)
            try:
                loaded = real(card, address, count)
            except InvalidProgram as error:
                call.code, call.error = INVALID, error.what
                self.write(call)
                raise
            self.programs[loaded.handle.value or 0] = data
            self.write(call)
            return loaded

        return wrapped

    def fill(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        def wrapped(
            card: SoftwareCard,
            program: LoadedProgram,
            addresses: Sequence[int],
            sizes: Sequence[int] = (),
            scalars: Sequence[float] = (),
            pool: int = 0,
        ) -> bytes:
            block = real(card, program, addresses, sizes, scalars, pool)
            self.fills[block] = (list(addresses), list(sizes), list(scalars), pool)
            return block

        return wrapped

    def given(self, card: SoftwareCard, block: bytes) -> dict[str, Any] | None:
        """The arguments of the `fill` that made a block."""
        if block not in self.fills:
            return None
        addresses, sizes, scalars, pool = self.fills[block]
        base = card.memory_base
        return {
            "addresses": [a - base for a in addresses],
            "sizes": sizes,
            "scalars": scalars,
            "pool": pool - base,
        }

    def run(self, real: Callable[..., None]) -> Callable[..., None]:
        def wrapped(
            card: SoftwareCard, program: LoadedProgram, block: int, numerics: Numerics = IEEE
        ) -> None:
            data = self.programs.get(program.handle.value or 0)
            used = card._next - card.memory_base
            inside = 0 <= block - card.memory_base <= card.memory_bytes - 8 * program.slots - 8
            held = card.read(block, max(8 * program.slots, 8)) if inside else b""
            given = self.given(card, held)
            regions = None
            if card.kept():  # what it gives may depend on launches before
                given = None
            if data and given is not None and used <= LARGEST:
                with suppress(InvalidProgram):  # the card takes names that are no text
                    regions = element_regions(decode(data), given, used)
            if data is None or given is None or regions is None:
                return real(card, program, block, numerics)
            first, count = _window(regions, used)
            call = self.begun(RUN, card, data, numerics=numerics, **given)
            call.addresses = [address - first for address in call.addresses]
            call.pool -= first
            call.regions = [(low - first, high - first, *kind) for low, high, *kind in regions]
            call.before = card.read(card.memory_base + first, count)
            try:
                real(card, program, block, numerics)
            except CardError:
                raise  # the message names host addresses in places
            call.after = card.read(card.memory_base + first, count)
            self.write(call)
            return None

        return wrapped

    def time(self, real: Callable[..., Report]) -> Callable[..., Report]:
        def wrapped(
            card: SoftwareCard, program: LoadedProgram, block: bytes, *, kept: bool = False
        ) -> Report:
            report = real(card, program, block, kept=kept)
            data = self.programs.get(program.handle.value or 0)
            if data and (given := self.given(card, block)) is not None:
                call = self.begun(TIME_KEPT if kept else TIME, card, data, **given)
                call.report = [getattr(report, f.name) for f in fields(Report)]
                self.write(call)
            return report

        return wrapped

    def check(self, real: Callable[..., None]) -> Callable[..., None]:
        def wrapped(
            card: SoftwareCard, program: LoadedProgram, block: bytes, spans: Sequence[Span]
        ) -> None:
            data = self.programs.get(program.handle.value or 0)
            given = self.given(card, block)
            if data is None or given is None:
                return real(card, program, block, spans)
            call = self.begun(CHECK, card, data, spans=list(spans), **given)
            try:
                real(card, program, block, spans)
            except BrokenInvariant as wrong:
                call.code, call.error = STOPPED, wrong.what
                self.write(call)
                raise
            self.write(call)
            return None

        return wrapped


def element_regions(program: Program, given: dict[str, Any], used: int) -> list[Region] | None:
    """Where elements of which size lie in device memory; None where they are not told apart."""
    slots = symbol_block(
        program, given["addresses"], given["sizes"], given["scalars"], given["pool"]
    )

    def value(of: Value) -> int:
        return slots[of.index] if isinstance(of, Slot) else of

    found: list[Region] = []
    for section in program.sections:
        extents = [max(value(axis.extent), 0) for axis in section.axes]

        for instr in instructions(replace(program, sections=(section,))):
            if isinstance(instr, Copy) and not any(extents[axis] == 0 for axis in instr.axes):
                place = instr.source if instr.source.space is Space.DEVICE else instr.target
                steps = [value(t.coefficient) for t in place.terms]
                steps += [value(i.coefficient) for i in instr.indirect]
                if any(step % place.dtype.bytes for step in steps):
                    return None  # elements across elements
                found.append(_region(instr, place, extents, value))
    inside = [_clipped(region, used) for region in found]
    return _joined([region for region in inside if region[0] < region[1]])


def _window(regions: Sequence[Region], used: int) -> tuple[int, int]:
    """The memory around all elements that a run touches: where it begins, and its bytes."""
    low = min((region[0] for region in regions), default=0) // ALIGNMENT * ALIGNMENT
    high = max((region[1] for region in regions), default=0)
    return low, min(used, high + ALIGNMENT) - low


def _clipped(region: Region, used: int) -> Region:
    """Its whole elements that lie in memory: bounds may keep a copy from the others."""
    low, high, size, form = region
    low += max(-(low // size), 0) * size
    return low, max(min(high, used), low), size, form


def _region(
    copy: Copy, place: Place, extents: Sequence[int], value: Callable[[Value], int]
) -> Region:
    low = high = value(place.base)
    reaches = [value(t.coefficient) * (extents[t.axis] - 1) for t in place.terms]
    reaches += [value(i.coefficient) * (value(i.size) - 1) for i in copy.indirect]
    low += sum(r for r in reaches if r < 0)
    high += sum(r for r in reaches if r > 0)
    return low, high + place.dtype.bytes, place.dtype.bytes, FORMATS.get(place.dtype, BITS)


def _joined(regions: Sequence[Region]) -> list[Region] | None:
    """Overlapping ones as one; None where bytes belong to elements of two kinds."""
    joined: list[Region] = []
    for low, high, size, form in sorted(regions):
        if joined and low < joined[-1][1]:
            first, end, known, before = joined[-1]
            if known != size or (low - first) % size:
                return None
            joined[-1] = first, max(end, high), size, form if form == before else BITS
        else:
            joined.append((low, high, size, form))
    return joined


# --- the plugin -----------------------------------------------------------------------------

_recorder: list[Recorder] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="a file for the calls of the card")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record")
    if path is None:
        return
    recorder = Recorder(open(path, "wb"))  # noqa: SIM115 - as long as the run
    _recorder.append(recorder)
    owner = os.getpid()
    for name in ("load", "fill", "run", "time", "check"):
        wrap = getattr(recorder, name)(getattr(SoftwareCard, name))
        setattr(SoftwareCard, name, _in_process(owner, wrap, getattr(SoftwareCard, name)))


def _in_process(owner: int, wrapped: Callable[..., Any], real: Callable[..., Any]) -> Any:
    """Forked tests write nothing into their parent's file."""

    def method(*arguments: Any, **named: Any) -> Any:
        return (wrapped if os.getpid() == owner else real)(*arguments, **named)

    return method


def pytest_runtest_setup(item: pytest.Item) -> None:
    for recorder in _recorder:
        recorder.test = item.nodeid


def pytest_unconfigure() -> None:
    for recorder in _recorder:
        recorder.file.close()
