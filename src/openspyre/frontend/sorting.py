"""Orders and counts: sort, topk, kthvalue, median, searchsorted, bucketize, histc.

An element's place is the number of elements before it, which is a sum of comparisons: no step
depends on another, any size is right, and ties keep their order. NaN counts as the largest value.
The work grows with the square of a row, so longer rows go in chunks (topk) or to the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from openspyre.frontend import lowerings as ours

aten = torch.ops.aten
Box = Any
Index = Sequence[Any]
Loader = Callable[[Index], Any]
I32, I64 = torch.int32, torch.int64

LONGEST = 16384  # elements of a row that are all compared with each other: 2.7e8 comparisons
CHUNK = 512  # elements compared with each other where the first few of a long row are wanted
FEW = 128  # how many that is


def sort(x: Box, dim: int = -1, descending: bool = False) -> Any:
    """aten.sort.default, which is free to be stable."""
    return sort_stable(x, dim=dim, descending=descending)


def sort_stable(
    x: Box, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """aten.sort.stable; None where the stock lowering serves, or a row is too long."""
    if not ours.on_card(x):
        return None
    if not x.get_size():
        return _only(x)
    dim %= len(x.get_size())
    if not _at_most(x.get_size()[dim], LONGEST):
        return None
    return _first(x, x.get_size()[dim], dim, descending)


def topk(x: Box, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """aten.topk; None where the stock lowering serves, or too many of too long a row are asked."""
    if not ours.on_card(x):
        return None
    if not x.get_size():
        return _only(x)
    dim %= len(x.get_size())
    if _at_most(x.get_size()[dim], 4 * CHUNK):
        return _first(x, k, dim, largest)
    if _at_most(k, FEW):
        return _first_of_chunks(x, k, dim, largest)
    return _first(x, k, dim, largest) if _at_most(x.get_size()[dim], LONGEST) else None


def kthvalue(x: Box, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """aten.kthvalue: the k-th smallest element, counted from 1."""
    return _ranked(x, dim, keepdim, lambda _: ops.index_expr(k - 1, I32))


def median(x: Box, dim: int, keepdim: bool = False) -> Any:
    """aten.median.dim: the lower median, or the first NaN."""

    def target(n: Any, nans: Any) -> Any:
        first = ops.sub(ops.index_expr(n, I32), nans)
        middle = ops.index_expr(FloorDiv(n - 1, 2), I32)
        return ops.where(ops.gt(nans, ops.constant(0, I32)), first, middle)

    return _median(x, dim, keepdim, target)


def nanmedian(x: Box, dim: int, keepdim: bool = False) -> Any:
    """aten.nanmedian.dim: the lower median of the numbers; NaN where a row has none."""

    def target(n: Any, nans: Any) -> Any:
        last = ops.sub(ops.index_expr(n - 1, I32), nans)
        return ops.truncdiv(last, ops.constant(2, I32))

    return _median(x, dim, keepdim, target)


def _median(x: Box, dim: int, keepdim: bool, target: Callable[[Any, Any], Any]) -> Any:
    """The element of a rank that depends on the length of the row and how many NaN are in it."""
    if not ours.on_card(x):
        return None
    n = x.get_size()[dim] if x.get_size() else sympy.S.One
    if not x.get_dtype().is_floating_point or not x.get_size():
        return _ranked(x, dim, keepdim, lambda _: target(n, ops.constant(0, I32)))
    dim %= len(x.get_size())
    x.realize()
    load = x.make_loader()

    def is_nan(index: Index, r: Index) -> Any:
        return ops.to_dtype(ops.isnan(load(_with(index, dim, r[0]))), I32)

    rows = [s for d, s in enumerate(x.get_size()) if d != dim]
    numbers = _sum(x, I32, rows, [n], lambda i, r: is_nan(_inserted(i, dim), r)).make_loader()

    def wanted(index: Index) -> Any:
        return target(n, numbers([i for d, i in enumerate(index) if d != dim]))

    return _ranked(x, dim, keepdim, wanted)


def median_of_all(x: Box) -> Any:
    """aten.median.default."""
    found = median(lowerings[aten.view](x, [-1]), 0) if ours.on_card(x) else None
    return None if found is None else found[0]


def nanmedian_of_all(x: Box) -> Any:
    """aten.nanmedian.default."""
    found = nanmedian(lowerings[aten.view](x, [-1]), 0) if ours.on_card(x) else None
    return None if found is None else found[0]


def mode(x: Box, dim: int = -1, keepdim: bool = False) -> Any:
    """aten.mode: the least of the values that occur most often, and the last place of it."""
    if not ours.on_card(x):
        return None
    if not x.get_size():
        return _only(x)
    dim %= len(x.get_size())
    n = x.get_size()[dim]
    if not _at_most(n, LONGEST):
        return None
    x.realize()
    load, size = x.make_loader(), x.get_size()
    shape = [sympy.S.One if d == dim else s for d, s in enumerate(size)]
    rank = _ranks(x, dim, descending=False)

    def alike(index: Index, r: Index) -> Any:
        itself = ops.eq(ops.index_expr(r[0], I32), ops.index_expr(index[dim], I32))
        found = ops.eq(load(index), load(_with(index, dim, r[0])))
        return ops.to_dtype(ops.or_(found, itself), I32)  # NaN is like nothing but itself

    count = _sum(x, I32, size, [n], alike).make_loader()

    def worth(index: Index, r: Index) -> Any:
        """Larger for more frequent values, then for earlier ones, then for later places."""
        at = _with(index, dim, r[0])
        length, frequent = ops.index_expr(n, I64), ops.to_dtype(count(at), I64)
        # The place among equal ones: elements of lower rank are less, or equal and before.
        return ops.sub(ops.mul(frequent, length), ops.to_dtype(rank(at), I64))

    best = _reduced(x, I64, shape, [n], worth, "max").make_loader()
    # That is the first of the values in question; the last of them lies one less than its count on.

    def target(index: Index) -> Any:
        length = ops.index_expr(n, I64)
        frequent = ops.floordiv(ops.add(best(index), ops.sub(length, ops.constant(1, I64))), length)
        first = ops.sub(ops.mul(frequent, length), best(index))
        last = ops.add(first, ops.sub(frequent, ops.constant(1, I64)))
        return ops.to_dtype(last, I32)

    return _ranked(x, dim, keepdim, target)


def searchsorted(
    sequence: Box,
    values: Box,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Box | None = None,
) -> Any:
    """aten.searchsorted.Tensor: how many elements of each row come before a value."""
    if not ours.on_card(sequence, values):
        return None
    if sequence.get_dtype() != values.get_dtype():
        if not values.get_size():  # what a number means depends on its kind, too
            return None
        wide = torch.promote_types(sequence.get_dtype(), values.get_dtype())
        sequence, values = to_dtype(sequence, wide), to_dtype(values, wide)
    n = sequence.get_size()[-1]
    if not _at_most(n, LONGEST):
        return None
    if sorter is not None:
        sequence = lowerings[aten.gather](sequence, -1, sorter)
    sequence.realize()
    load, value = sequence.make_loader(), values.make_loader()
    one_row = len(sequence.get_size()) == 1

    compare = ops.le if right or side == "right" else ops.lt
    floats = values.get_dtype().is_floating_point

    def before(index: Index, r: Index) -> Any:
        own, element = value(index), load([r[0]] if one_row else [*index[:-1], r[0]])
        found = compare(element, own)
        return ops.to_dtype(ops.or_(found, ops.isnan(own)) if floats else found, I32)

    values.realize()
    found = _sum(values, I32, values.get_size(), [n], before)
    return found if out_int32 else to_dtype(found, I64)


def bucketize(values: Box, boundaries: Box, *, out_int32: bool = False, right: bool = False) -> Any:
    """aten.bucketize.Tensor."""
    dims = len(boundaries.get_size())
    torch._check(dims == 1, lambda: f"boundaries tensor must be 1 dimension, but got dim({dims})")
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


def histc(x: Box, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """aten.histc with given bounds, integers as well as floats; elements outside count nowhere."""
    if not ours.on_card(x) or min >= max:
        return None
    x = lowerings[aten.view](x, [-1])
    x.realize()
    load, dtype = x.make_loader(), x.get_dtype()
    wide = torch.float32

    def counted(index: Index, r: Index) -> Any:
        element = ops.to_dtype(load(r), wide)
        offset = ops.mul(ops.sub(element, ops.constant(min, wide)), ops.constant(bins, wide))
        place = ops.floor(ops.truediv(offset, ops.constant(max - min, wide)))
        last = ops.constant(bins - 1, wide)
        place = ops.where(ops.ge(place, ops.constant(bins, wide)), last, place)
        own = ops.eq(place, ops.to_dtype(ops.index_expr(index[0], I32), wide))
        inside = ops.and_(
            ops.ge(element, ops.constant(min, wide)), ops.le(element, ops.constant(max, wide))
        )
        return ops.to_dtype(ops.and_(own, inside), I32)

    return to_dtype(_sum(x, I32, [sympy.Integer(bins)], x.get_size(), counted), dtype)


# --- ranks ------------------------------------------------------------------------------------


def _first(x: Box, k: Any, dim: int, descending: bool) -> tuple[Box, Box]:
    """The first k elements along a dim in order, and their indices."""
    rank = _ranks(x, dim, descending)
    shape = list(x.get_size())
    shape[dim] = k
    places = _places(x, rank, dim, shape, lambda index: ops.index_expr(index[dim], I32))
    return _at(x, places, dim, shape), to_dtype(places, I64)


def _ranked(x: Box, dim: int, keepdim: bool, target: Loader) -> Any:
    """The element of rank `target` along a dim, and its index; None as for sort."""
    if not ours.on_card(x):
        return None
    if not x.get_size():
        return _only(x)
    dim %= len(x.get_size())
    if not _at_most(x.get_size()[dim], LONGEST):
        return None
    shape = list(x.get_size())
    shape[dim] = sympy.S.One
    places = _places(x, _ranks(x, dim, descending=False), dim, shape, target)
    found = _at(x, places, dim, shape), to_dtype(places, I64)
    return found if keepdim else tuple(lowerings[aten.squeeze](f, dim) for f in found)


def _ranks(x: Box, dim: int, descending: bool) -> Loader:
    """How many elements of its row come before each element."""
    x.realize()
    load, size = x.make_loader(), x.get_size()
    compare = ops.ge if descending else ops.le
    floats = x.get_dtype().is_floating_point

    def not_after(first: Any, second: Any) -> Any:
        ordered = compare(first, second)
        # NaN, as the largest, comes first or last.
        return ops.or_(ordered, ops.isnan(first if descending else second)) if floats else ordered

    def before(index: Index, r: Index) -> Any:
        own, other = load(index), load(_with(index, dim, r[0]))
        earlier = ops.lt(ops.index_expr(r[0], I32), ops.index_expr(index[dim], I32))
        later = ops.logical_not(not_after(own, other))
        return ops.to_dtype(ops.where(earlier, not_after(other, own), later), I32)

    ranks: Loader = _sum(x, I32, size, [size[dim]], before).make_loader()
    return ranks


def _places(x: Box, rank: Loader, dim: int, shape: Sequence[Any], target: Loader) -> Box:
    """The index along a dim of the element whose rank is the target's."""

    def hit(index: Index, r: Index) -> Any:
        found = ops.eq(rank(_with(index, dim, r[0])), target(index))
        return ops.where(found, ops.index_expr(r[0], I32), ops.constant(0, I32))

    return _sum(x, I32, shape, [x.get_size()[dim]], hit)


def _at(x: Box, places: Box, dim: int, shape: Sequence[Any]) -> Box:
    """The elements of x at places along a dim."""
    load, place, size = x.make_loader(), places.make_loader(), x.get_size()[dim]

    def inner(index: Index) -> Any:
        at = ops.indirect_indexing(place(index), size, check=False, wrap_neg=False)
        return load(_with(index, dim, at))

    return ir.Pointwise.create(
        device=x.get_device(), dtype=x.get_dtype(), inner_fn=inner, ranges=list(shape)
    )


def _first_of_chunks(x: Box, k: Any, dim: int, largest: bool) -> tuple[Box, Box]:
    """topk of the topk of every chunk of a row, which are in the order of the row."""
    last = len(x.get_size()) - 1
    order = [d for d in range(last + 1) if d != dim]
    rows = lowerings[aten.permute](x, [*order, dim])
    n = rows.get_size()[-1]
    chunks = FloorDiv(n + CHUNK - 1, CHUNK)
    padded = lowerings[aten.constant_pad_nd](
        rows, [0, chunks * CHUNK - n], _worst(x.get_dtype(), largest)
    )
    outer = list(rows.get_size()[:-1])
    padded = lowerings[aten.view](padded, [*outer, chunks, CHUNK])
    padded.realize()
    best, places = _first(padded, k, last + 1, largest)
    best = lowerings[aten.view](best, [*outer, chunks * k])
    best.realize()
    values, which = topk(best, k, last, largest)
    load, chosen = places.make_loader(), which.make_loader()

    def index_in_row(index: Index) -> Any:
        at = ops.indirect_indexing(chosen(index), chunks * k, check=False, wrap_neg=False)
        chunk = FloorDiv(at, k)
        inner = load([*index[:-1], chunk, ModularIndexing(at, 1, k)])
        return ops.add(inner, ops.index_expr(chunk * CHUNK, I64))

    which.realize()
    indices = ir.Pointwise.create(
        device=x.get_device(), dtype=I64, inner_fn=index_in_row, ranges=list(values.get_size())
    )
    back = [*range(dim), last, *range(dim, last)]
    return lowerings[aten.permute](values, back), lowerings[aten.permute](indices, back)


def _worst(dtype: torch.dtype, largest: bool) -> Any:
    """What no element comes after; behind the row's own elements it stays behind them."""
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("nan")
    return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max


# --- nests ------------------------------------------------------------------------------------


def _sum(
    like: Box,
    dtype: torch.dtype,
    ranges: Sequence[Any],
    reduced: Sequence[Any],
    inner: Callable[[Index, Index], Any],
) -> Box:
    return _reduced(like, dtype, ranges, reduced, inner, "sum")


def _reduced(
    like: Box,
    dtype: torch.dtype,
    ranges: Sequence[Any],
    reduced: Sequence[Any],
    inner: Callable[[Index, Index], Any],
    kind: Any,
) -> Box:
    total: Any = ir.Reduction.create(
        device=like.get_device(), dst_dtype=dtype, src_dtype=dtype, inner_fn=inner,
        ranges=list(ranges), reduction_ranges=list(reduced), reduction_type=kind,
    )  # fmt: skip
    total.realize()
    return total


def _at_most(size: Any, bound: int) -> bool:
    """Decides, and where the size is a symbol, promises it for what is compiled."""
    found: bool = V.graph.sizevars.evaluate_expr(sympy.Le(size, bound))
    return found


def _only(x: Box) -> tuple[Box, Box]:
    """A tensor without dims is in order."""
    zero = lowerings[aten.full]([], 0, dtype=I64, device=x.get_device())
    return lowerings[aten.clone](x), zero


def _with(index: Index, dim: int, value: Any) -> list[Any]:
    return [value if d == dim else i for d, i in enumerate(index)]


def _inserted(index: Index, dim: int) -> list[Any]:
    return [*index[:dim], sympy.S.Zero, *index[dim:]]
