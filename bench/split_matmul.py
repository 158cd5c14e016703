"""A matmul on one card for exactly one split, written down as the vendor's compiler would.

x [B, M, K] @ w [K, N] or w [B, K, N]: operands lie in sticks of 64 along their inner dim
([B][K / 64][M][64], [B][N / 64][K][64], [B][N / 64][M][64]), so that what a core reads is
contiguous. A core makes its part of the output in tiles and streams K past each: weights are read
once per tile of rows, x once per tile of columns. Cores that share K add up their sums (an adding
store: the result is out + x @ w).
"""

from __future__ import annotations

from dataclasses import dataclass

from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import LOAD
from openspyre.ir.program import (
    Axis,
    Buffer,
    Copy,
    Given,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)

STICK = 64  # f16 elements

_B, _M, _NO, _NI, _KO, _KI = range(6)
_F16, _F32 = DType.F16, DType.F32


@dataclass(frozen=True, slots=True)
class Split:
    """One matmul and its work division; the row of a measurement."""

    b: int
    m: int
    n: int
    k: int
    split_b: int
    split_m: int
    split_n: int
    split_k: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.b, self.m, self.n, self.k

    @property
    def division(self) -> tuple[int, int, int, int]:
        return self.split_b, self.split_m, self.split_n, self.split_k


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the vendor's compiler cuts a core's part of the output, inferred from measured splits.

    Attributes:
        points: of a tile, where there are so many.
        columns: of a tile that has enough rows to make its points.
        widest: columns of a tile with fewer rows.
    """

    points: int = 1 << 15
    columns: int = 256
    widest: int = 1024


VENDOR = Tiling()


@dataclass(frozen=True, slots=True)
class Tile:
    """Points of an output tile along each dim; one stick of K streams past at a time."""

    b: int
    m: int
    columns: int  # sticks of N


def tile_of(split: Split, tiling: Tiling = VENDOR, *, one_batch: bool = False) -> Tile:
    """The tile of a core that has the largest part of the work."""
    batch = 1 if one_batch else _part(split.b, split.split_b)
    rows = _part(split.m, split.split_m)
    columns = _part(_sticks(split.n), split.split_n)
    fit = tiling.points // (batch * rows) // STICK * STICK
    wide = min(columns * STICK, tiling.widest, max(tiling.columns, fit))
    most = tiling.points // wide
    m = min(rows, most)
    return Tile(min(batch, max(1, most // m)), m, wide // STICK)


def split_matmul(
    split: Split,
    tiling: Tiling = VENDOR,
    *,
    batched_weights: bool = False,
    batch_inside: bool = False,
) -> Program:
    """The program; its arguments are x, w and out in their stick layouts.

    Args:
        batched_weights: every batch has weights of its own.
        batch_inside: x and out lie as [M][K / 64][B][64] instead, the batch next to the sticks.
    """
    tile = tile_of(split, tiling, one_batch=batched_weights)
    order = (split.split_m, split.split_n, split.split_k, split.split_b)
    axes = (
        Axis("b", split.b, split.split_b, order[0] * order[1] * order[2]),
        Axis("m", split.m, split.split_m, 1),
        Axis("no", _sticks(split.n), split.split_n, order[0]),
        Axis("ni", STICK),
        Axis("ko", _sticks(split.k), split.split_k, order[0] * order[1]),
        Axis("ki", STICK),
    )
    stick, inner = 2 * STICK, _sticks(split.k) * STICK
    each = {_B: _sticks(split.n) * inner * stick} if batched_weights else {}
    x = _device(0, _rows(split, _KO, split.k, batch_inside=batch_inside) | {_KI: 2})
    w = _device(1, {**each, _NO: inner * stick, _KO: STICK * stick, _KI: stick, _NI: 2})
    out = _device(2, _rows(split, _NO, split.n, batch_inside=batch_inside) | {_NI: 2})
    held = tile.b * tile.m
    x_tile = _tile(0, _F16, {_B: tile.m * stick, _M: stick, _KI: 2})
    w_tile = _tile(1, _F16, {**dict.fromkeys(each, 0), _NO: STICK * stick, _KI: stick, _NI: 2})
    sums = _tile(2, _F32, {_NO: 2 * held * stick, _B: 2 * tile.m * stick, _M: 2 * stick, _NI: 4})
    result = _tile(3, _F16, {_NO: held * stick, _B: tile.m * stick, _M: stick, _NI: 2})
    batch, m = ((_B,), (_M,)) if batched_weights else ((), (_B, _M))
    product = Pt(batch, m, (_NO, _NI), (_KO, _KI), x_tile, w_tile, sums)
    stream: tuple[Node, ...] = (
        Copy((*each, _NO, _KO, _KI, _NI), w, w_tile),
        Copy((_KO, _B, _M, _KI), x, x_tile),
        product,
    )
    points = (_NO, _B, _M, _NI)
    made: tuple[Node, ...] = (
        TileLoop(_KO, 1, stream),
        Vec(points, (sums,), (), (VecOp(LOAD, _F32, (0,)),), (VecOut(0, result),)),
        Copy(points, result, out, add=split.split_k > 1),
    )
    body = TileLoop(_NO, tile.columns, (TileLoop(_B, tile.b, (TileLoop(_M, tile.m, made),)),))
    sizes = (
        (held * stick, 2),
        (STICK * tile.columns * stick, 2),
        (held * tile.columns * 2 * stick, 1),
        (held * tile.columns * stick, 2),
    )
    slots = tuple(SlotDef(Given.ADDRESS, n) for n in range(3))
    section = Section("matmul", axes, (body,))
    return Program("split_matmul", slots, _buffers(sizes), (section,), 0, (3, 0, 0), ())


def _part(extent: int, parts: int) -> int:
    return -(-extent // parts)


def _sticks(extent: int) -> int:
    return -(-extent // STICK)


def _rows(split: Split, sticks: int, points: int, *, batch_inside: bool) -> dict[int, int]:
    """Bytes between neighbours along B, M and the sticks of x or out."""
    stick, count = 2 * STICK, _sticks(points)
    if batch_inside:
        return {_M: count * split.b * stick, sticks: split.b * stick, _B: stick}
    return {_B: count * split.m * stick, sticks: split.m * stick, _M: stick}


def _device(argument: int, steps: dict[int, int]) -> Place:
    terms = tuple(Term(axis, step, Origin.ABSOLUTE) for axis, step in steps.items())
    return Place(Space.DEVICE, _F16, Slot(argument), terms, argument=argument)


def _tile(buffer: int, dtype: DType, steps: dict[int, int]) -> Place:
    terms = tuple(Term(axis, step, Origin.TILE) for axis, step in steps.items())
    return Place(Space.LX, dtype, 0, terms, buffer=buffer)


def _buffers(sizes: tuple[tuple[int, int], ...]) -> tuple[Buffer, ...]:
    found, offset = [], 0
    for number, (size, slots) in enumerate(sizes):
        found.append(Buffer(f"b{number}", offset, size, slots))
        offset += size * slots
    return tuple(found)
