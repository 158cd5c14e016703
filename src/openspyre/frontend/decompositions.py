"""ATen ops that Inductor only calls, as other ATen ops: for tensors of the card alone.

They serve compiled graphs and eager ops alike, for both are traced with Inductor's table. What
looks at every pair of positions is bounded; beyond, the op stays a counted call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import decompositions, fast_random_decomps

from openspyre.frontend import antialias
from openspyre.frontend.bags import (
    embedding_bag,
    embedding_bag_backward,
    per_sample_weights_backward,
)
from openspyre.frontend.triangular import solve_triangular

aten = torch.ops.aten
Decomposition = Callable[..., Any]
PAIRS = 1 << 28  # comparisons of positions of one op


@functools.cache
def register() -> None:
    """Put the decompositions into Inductor's table; other devices keep the stock ones."""
    for op, own in OWN.items():
        decompositions[op] = _for_card(own, decompositions.get(op))
    fast_random_decomps.cache_clear()  # a copy of the table


def _for_card(own: Decomposition, stock: Decomposition | None) -> Decomposition:
    @functools.wraps(own)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if any(isinstance(x, Tensor) and x.device.type == "spyre" for x in leaves):
            return own(*args, **kwargs)
        return NotImplemented if stock is None else stock(*args, **kwargs)

    return chosen


def _positions(like: Tensor, size: Any) -> Tensor:
    return torch.arange(size, device=like.device)


def _lowest(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


# --- bounds ---------------------------------------------------------------------------------------

_bounded = decompositions[aten.clamp.default]


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Inductor's, for integers with bounds that are floats of a launch, too.

    Its own promotion knows numbers, but no symbols of numbers: it would cut the result to the
    integers' dtype.
    """
    for bound in (min, max):
        if isinstance(bound, torch.SymFloat):
            x = x.to(torch.result_type(x, 1.0))
    return _bounded(x, min, max)  # type: ignore[no-any-return]


_filled = decompositions[aten.masked_fill.Scalar]


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    """Inductor's, where the value fits; where it does not, the CPU says so."""
    if isinstance(value, float) and not _fits(value, x.dtype):
        return NotImplemented
    return _filled(x, mask, value)


def _fits(value: float, dtype: torch.dtype) -> bool:
    if dtype.is_complex or dtype == torch.bool or (dtype.is_floating_point and math.isinf(value)):
        return True
    whole = not dtype.is_floating_point
    limits: torch.finfo | torch.iinfo = torch.iinfo(dtype) if whole else torch.finfo(dtype)
    return limits.min <= value <= limits.max or (math.isnan(value) and dtype.is_floating_point)


# --- sums of products, distances, gradients -------------------------------------------------------


def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    rows = a.transpose(0, 1).reshape(a.shape[1], -1)
    return torch.addmm(x, rows, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


def cdist_forward(a: Tensor, b: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _distance(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def _distance(difference: Tensor, p: float) -> Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if p == math.inf:
        return size.amax(-1) if size.shape[-1] else size.sum(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def hardshrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, grad)


# --- pooling --------------------------------------------------------------------------------------


def _window(x: Tensor, dim: int, size: Any) -> tuple[Tensor, Tensor]:
    """First and last but one place of every adaptive window along a dim."""
    place, n = _positions(x, size), x.shape[dim]
    return place * n // size, ((place + 1) * n + size - 1) // size


def _inside(x: Tensor, dim: int, size: Any) -> Tensor:
    """[windows, places]: which places of a dim lie in which window."""
    first, end = _window(x, dim, size)
    place = _positions(x, x.shape[dim])
    return (place >= first[:, None]) & (place < end[:, None])


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Means of means: the windows are boxes."""
    wide = x.float()
    for dim, size in zip((-3, -2, -1), output_size, strict=True):
        first, end = _window(x, dim, size)
        inside = _inside(x, dim, size)
        moved = wide.movedim(dim, -1).unsqueeze(-2)
        total = torch.where(inside, moved, 0.0).sum(-1)
        wide = (total / (end - first)).movedim(-1, dim)
    return wide.to(x.dtype).contiguous()


def adaptive_max_pool3d(x: Tensor, output_size: Sequence[Any]) -> Any:
    places = x.shape[-3:].numel()
    if places * math.prod(output_size) * x.shape[:-3].numel() > PAIRS:
        return NotImplemented
    d, h, w = (_inside(x, dim, n) for dim, n in zip((-3, -2, -1), output_size, strict=True))
    inside = (
        d[:, None, None, :, None, None]
        & h[None, :, None, None, :, None]
        & w[None, None, :, None, None, :]
    ).flatten(-3)
    rows = x.flatten(-3)[..., None, None, None, :]
    found = torch.where(inside, rows, -math.inf)
    best = found.amax(-1)
    hit = inside & ((rows == best.unsqueeze(-1)) | (rows != rows))
    index = torch.where(hit, _positions(x, places), places).amin(-1)
    return best, index


# --- scatters and reductions by index -------------------------------------------------------------


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Every element looks at all that may come to it; sums are scattered."""
    if index.numel() == 0 or x.numel() == 0:
        return NotImplemented
    added = x.dtype.is_floating_point or x.dtype == torch.int64
    if reduce == "sum" and include_self and added:
        return torch.scatter_add(x, dim, index, src)
    if x.dim() == 0:
        rows = (x.reshape(1), 0, index.reshape(1), src.reshape(1), reduce)
        return scatter_reduce(*rows, include_self=include_self).reshape(())
    dim %= x.dim()
    if x.numel() * index.shape[dim] > PAIRS:
        return NotImplemented
    part = x[tuple(slice(None if d == dim else n) for d, n in enumerate(index.shape))]
    src = src[tuple(map(slice, index.shape))].movedim(dim, -1).unsqueeze(-2)
    comes = index.movedim(dim, -1).unsqueeze(-2) == _positions(x, x.shape[dim])[:, None]
    own = part.movedim(dim, -1)
    new = _reduced(own, comes, src, reduce, include_self).to(x.dtype).movedim(-1, dim)
    for d in range(x.dim()):
        if d != dim and new.shape[d] != x.shape[d]:
            rest = x.narrow(d, new.shape[d], x.shape[d] - new.shape[d])
            rest = rest[tuple(slice(n if k > d else None) for k, n in enumerate(new.shape))]
            new = torch.cat([new, rest], d)
    return new.contiguous()


def _reduced(own: Tensor, comes: Tensor, src: Tensor, reduce: str, include_self: bool) -> Tensor:
    dtype = own.dtype
    count = comes.sum(-1)
    wide = torch.float32 if dtype.is_floating_point else torch.int64
    match reduce:
        case "sum" | "mean":
            total = torch.where(comes, src, 0).sum(-1, dtype=wide)
            number = count + 1 if include_self else count
            total = total + own if include_self else total
            if reduce == "mean":
                number = number.clamp(min=1)
                total = total / number if dtype.is_floating_point else total // number
            made = total
        case "prod":
            product = torch.where(comes, src, 1).prod(-1, dtype=wide)
            made = product * own if include_self else product
        case "amax":
            best = torch.where(comes, src, _lowest(dtype)).amax(-1)
            made = torch.maximum(best, own) if include_self else best
        case _:
            best = torch.where(comes, src, _highest(dtype)).amin(-1)
            made = torch.minimum(best, own) if include_self else best
    return torch.where(count > 0, made, own.to(made.dtype))


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if x.dim() == 0:
        return scatter_reduce(x, 0, index.reshape(()), source, reduce, include_self=include_self)
    dim %= x.dim()
    shape = [1] * x.dim()
    shape[dim] = -1
    whole = index.reshape(shape).expand(source.shape)
    return scatter_reduce(x, dim, whole, source, reduce, include_self=include_self)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """Sums of int64 by rows, which Inductor leaves to ATen."""
    rows, *others = indices
    if not accumulate or x.dtype != torch.int64 or others or rows is None or x.numel() == 0:
        return NotImplemented
    if rows.dtype in (torch.bool, torch.uint8) or rows.numel() == 0:
        return NotImplemented
    wide = values.expand(*rows.shape, *x.shape[1:]).reshape(rows.numel(), *x.shape[1:])
    place = torch.where(rows < 0, rows + x.shape[0], rows).to(torch.int64)
    whole = place.reshape(-1, *[1] * (x.dim() - 1)).expand(wide.shape)
    return torch.scatter_add(x, 0, whole, wide)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0 or x.numel() == 0:
        return NotImplemented
    chosen = mask.reshape(-1)
    place = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, 0)
    values = aten.index.Tensor(source.reshape(-1), [place])
    return torch.where(mask, values.reshape(x.shape), x).contiguous()


def take(x: Tensor, index: Tensor) -> Any:
    if x.numel() == 0:
        return NotImplemented
    return aten.index.Tensor(x.reshape(-1), [index])


OWN: Mapping[Any, Decomposition] = MappingProxyType(
    {
        aten.clamp.default: clamp,
        aten.masked_fill.Scalar: masked_fill,
        aten.addbmm.default: addbmm,
        aten.hardshrink_backward.default: hardshrink_backward,
        aten.softshrink_backward.default: hardshrink_backward,
        aten._cdist_forward.default: cdist_forward,
        aten._adaptive_avg_pool3d.default: adaptive_avg_pool3d,
        aten.adaptive_max_pool3d.default: adaptive_max_pool3d,
        aten.scatter_reduce.two: scatter_reduce,
        aten.index_reduce.default: index_reduce,
        aten.index_put.default: index_put,
        aten.masked_scatter.default: masked_scatter,
        aten.take.default: take,
        aten._upsample_bilinear2d_aa.default: antialias.bilinear,
        aten._upsample_bicubic2d_aa.default: antialias.bicubic,
        aten.linalg_solve_triangular.default: solve_triangular,
        aten._embedding_bag.default: embedding_bag,
        aten._embedding_bag_forward_only.default: embedding_bag,
        aten._embedding_bag_backward.default: embedding_bag_backward,
        aten._embedding_bag_per_sample_weights_backward.default: per_sample_weights_backward,
    }
)
