"""Moves between the LX of cores, written by hand: what a relayout on chip does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import LOAD, TABLE
from openspyre.ir.program import (
    Axis,
    Buffer,
    Copy,
    Given,
    Holding,
    Node,
    Origin,
    Place,
    Program,
    Ring,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)

_ROWS, _COLUMNS = range(2)
_HELD, _GOT, _STAGED = range(3)
_STAGE = 4  # rows


@dataclass(frozen=True, slots=True)
class Regroup:
    """f16[rows, columns], divided by rows over `cores`, becomes divided by columns within groups of
    `split` neighbours: each reads runs of `run` bytes from every core of its group."""

    bytes: int
    cores: int
    split: int
    run: int

    @property
    def columns(self) -> int:
        return self.run * self.split // 2

    @property
    def rows(self) -> int:
        return self.bytes // (2 * self.columns)


def regroup(of: Regroup, ops: tuple[Sequence[str], Sequence[str]] | None = None) -> Program:
    """Loads [rows, columns] into LX, moves, and stores what it has then.

    Args:
        ops: what is done to the elements before and after the move, chains of unary ops.
    """
    row = 2 * of.columns
    by_rows = (Axis("rows", of.rows, of.cores), Axis("columns", of.columns))
    by_columns = (
        Axis("rows", of.rows, of.cores // of.split, of.split),
        Axis("columns", of.columns, of.split),
    )
    held = _lx(_HELD, row, Origin.CORE)
    got = _lx(_GOT, of.run, Origin.CORE)
    before, after = ops or ((), ())
    move = Ring(
        (_ROWS, _COLUMNS),
        Place(Space.LX, DType.F16, 0, (Term(_COLUMNS, 2, Origin.ABSOLUTE),), _HELD),
        got,
        (Holding((Term(_ROWS, 1, Origin.ABSOLUTE),), 0, of.rows, of.cores, 1, 1, row),),
        of.cores,
    )
    sections = (
        Section("load", by_rows, _streamed(held, _device(0, row), before, load=True)),
        Section("move", by_columns, (move,)),
        Section("store", by_columns, _streamed(got, _device(1, row), after, load=False)),
    )
    return _program(of.bytes // of.cores, row, sections)


def shift(size: int, cores: int) -> Program:
    """Every core but the last has `size` bytes, and reads those of the next one."""
    axes = (Axis("core", cores - 1, cores - 1), Axis("columns", size // 2))
    place = Place(Space.LX, DType.F16, 0, (Term(_COLUMNS, 2, Origin.ABSOLUTE),), _HELD)
    next_one = Holding((Term(_ROWS, 1, Origin.ABSOLUTE),), 1, cores, cores, 1, 1, 0)
    move = Ring((_ROWS, _COLUMNS), place, _lx(_GOT, size, Origin.CORE), (next_one,), cores)
    return _program(size, 128, (Section("move", axes, (move,)),))


def _streamed(whole: Place, device: Place, ops: Sequence[str], *, load: bool) -> tuple[Node, ...]:
    """Between device memory and LX, by way of ops where there are some."""
    axes = (_ROWS, _COLUMNS)
    if not ops:
        return (Copy(axes, device, whole) if load else Copy(axes, whole, device),)
    row = device.terms[0].coefficient
    assert isinstance(row, int)
    staged = _lx(_STAGED, row, Origin.TILE)
    if load:
        body: tuple[Node, ...] = (Copy(axes, device, staged), _vector(staged, whole, ops))
    else:
        body = (_vector(whole, staged, ops), Copy(axes, staged, device))
    return (TileLoop(_ROWS, _STAGE, body),)


def _vector(source: Place, target: Place, ops: Sequence[str]) -> Vec:
    values = [VecOp(LOAD, DType.F32, (0,))]
    values += [VecOp(TABLE[name].code, DType.F32, (n,)) for n, name in enumerate(ops)]
    return Vec((_ROWS, _COLUMNS), (source,), (), tuple(values), (VecOut(len(ops), target),))


def _lx(buffer: int, row: int, origin: Origin) -> Place:
    terms = (Term(_ROWS, row, origin), Term(_COLUMNS, 2, origin))
    return Place(Space.LX, DType.F16, 0, terms, buffer)


def _device(argument: int, row: int) -> Place:
    terms = (Term(_ROWS, row, Origin.ABSOLUTE), Term(_COLUMNS, 2, Origin.ABSOLUTE))
    return Place(Space.DEVICE, DType.F16, Slot(argument), terms, argument=argument)


def _program(size: int, row: int, sections: tuple[Section, ...]) -> Program:
    buffers = (
        Buffer("held", 0, size),
        Buffer("got", size, size),
        Buffer("staged", 2 * size, _STAGE * row, 2),
    )
    slots = tuple(SlotDef(Given.ADDRESS, n) for n in range(2))
    return Program("ring moves", slots, buffers, sections, 0, (2, 0, 0), ())
