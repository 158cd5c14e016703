"""cummax and cummin: the best so far, and the last place where it came, as two scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import ops

from openspyre.frontend import lowerings as ours

Box = Any
Better = Callable[[Any, Any], Any]
Loader = Callable[[Sequence[Any]], Any]


def cummax(x: Box, axis: int) -> Any:
    """aten.cummax; None for graphs of other devices."""
    return _running(x, axis, ops.maximum, ops.ge)


def cummin(x: Box, axis: int) -> Any:
    """aten.cummin; None for graphs of other devices."""
    return _running(x, axis, ops.minimum, ops.le)


def _running(x: Box, axis: int, better: Better, as_good: Better) -> Any:
    if not ours.on_card(x) or not x.get_size() or x.get_dtype() == torch.bool:
        return None
    axis %= len(x.get_size())
    x.realize()
    best = _scan(x, axis, x.get_dtype(), x.make_loader(), better)
    floats = x.get_dtype().is_floating_point
    load, so_far = x.make_loader(), best.make_loader()

    def place(index: Sequence[Any]) -> Any:
        element = load(index)
        comes = as_good(element, so_far(index))
        comes = ops.or_(comes, ops.isnan(element)) if floats else comes
        here = ops.index_expr(index[axis], torch.int64)
        return ops.where(comes, here, ops.constant(0, torch.int64))

    return best, _scan(x, axis, torch.int64, place, ops.maximum)


def _scan(x: Box, axis: int, dtype: torch.dtype, inner: Loader, better: Better) -> Box:
    (result,) = ir.Scan.create(
        device=x.get_device(),
        dtypes=(dtype,),
        inner_fns=(inner,),
        size=list(x.get_size()),
        axis=axis,
        combine_fn=lambda a, b: (better(a[0], b[0]),),
        can_fallback_to_aten=False,
    )
    return result
