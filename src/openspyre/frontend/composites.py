"""Composite ops that stay whole in a compiled graph: linear, attention, layer_norm.

While PyTorch traces for the compiler, the composite becomes one op of ours (`spyre::linear`, ...),
which `composite_nests.py` lowers to loop nests. Outside a trace it is the stock composite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_KEPT: list[torch.library.Library] = []  # a collected Library takes its registrations with it

_SCHEMAS = {
    "linear": "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "attention": "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale)"
    " -> Tensor",
    "layer_norm": "(Tensor x, SymInt[] shape, Tensor? weight, Tensor? bias, float eps) -> Tensor",
}


@functools.cache
def register() -> None:
    """Define the own ops and let them stand for the composites while tracing."""
    own = torch.library.Library("spyre", "DEF")
    for name, schema in _SCHEMAS.items():
        own.define(name + schema)
    for name, eager in EAGER.items():
        own.impl(name, eager, "PrivateUse1")
    torch.library.register_fake("spyre::linear", _fake_linear)
    torch.library.register_fake("spyre::attention", _fake_attention)
    torch.library.register_fake("spyre::layer_norm", lambda x, *_: x.new_empty(x.shape))
    torch.library.register_autograd("spyre::linear", _linear_backward, setup_context=_save_linear)
    torch.library.register_autograd(
        "spyre::attention", _attention_backward, setup_context=_save_attention
    )
    torch.library.register_autograd(
        "spyre::layer_norm", _layer_norm_backward, setup_context=_save_layer_norm
    )
    captured = torch.library.Library("aten", "IMPL")
    captured.impl("linear", _linear, "AutogradPrivateUse1")
    captured.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    captured.impl("layer_norm", _layer_norm, "AutogradPrivateUse1")
    _KEPT.extend((own, captured))


def _traced() -> bool:
    """Whether a compiler is recording: only then the own ops are worth anything."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)
    return any(isinstance(m, modes) for m in _get_current_dispatch_mode_stack())


def _own(name: str, *args: Any) -> Tensor:
    result: Tensor = getattr(torch.ops.spyre, name)(*args)
    return result


def _stock(op: Any, *args: Any, **options: Any) -> Tensor:
    """The composite as PyTorch takes it apart; autograd sees the parts."""
    result: Tensor = op.default.decompose(*args, **options)
    return result


# --- what stands for the composite -----------------------------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if _traced() and x.dim() > 0 and weight.dim() == 2 and x.dtype == weight.dtype:
        return _own("linear", x, weight, bias)
    return _stock(aten.linear, x, weight, bias)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    whole = (
        _traced()
        and dropout_p == 0.0
        and not (is_causal and attn_mask is not None)
        and query.dtype == key.dtype == value.dtype
        and query.dtype.is_floating_point
        and query.dim() == key.dim() == value.dim() >= 3
        and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
        and key.shape[-3] == value.shape[-3]
        and (key.shape[-3] == query.shape[-3] or enable_gqa)
    )
    if whole:
        factor = float(query.shape[-1]) ** -0.5 if scale is None else scale
        return _own("attention", query, key, value, attn_mask, is_causal, factor)
    return _stock(
        aten.scaled_dot_product_attention,
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def _layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    trailing = tuple(x.shape[x.dim() - len(normalized_shape) :])
    if _traced() and trailing == tuple(normalized_shape) and x.dtype.is_floating_point:
        return _own("layer_norm", x, normalized_shape, weight, bias, eps)
    return _stock(aten.layer_norm, x, normalized_shape, weight, bias, eps, cudnn_enable)


# --- the own ops outside Inductor (other compiler backends) ------------------------------------


def _eager_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _stock(aten.linear, x, weight, bias).contiguous()


def _eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    op, shared = aten.scaled_dot_product_attention, query.shape[-3] != key.shape[-3]
    result = _stock(op, query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=shared)
    return result.contiguous()


def _eager_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return _stock(aten.layer_norm, x, shape, weight, bias, eps, False).contiguous()


EAGER: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"linear": _eager_linear, "attention": _eager_attention, "layer_norm": _eager_layer_norm}
)
"""The own ops by PyTorch's parts, on any device."""


def _fake_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: f"linear: {tuple(x.shape)} times a weight of {tuple(weight.shape)}",
    )
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fake_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


# --- gradients --------------------------------------------------------------------------------


def _save_linear(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs = ctx.needs_input_grad
    rows = grad.reshape(-1, grad.shape[-1])
    grad_x = torch.matmul(grad, weight) if needs[0] else None
    grad_weight = rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None
    grad_bias = rows.sum(0) if ctx.has_bias and needs[2] else None
    return grad_x, grad_weight, grad_bias


def _save_attention(ctx: Any, inputs: Any, output: Tensor) -> None:
    query, key, value, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, mask)


def _attention_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, mask = ctx.saved_tensors
    heads = key.shape[-3]
    group = query.shape[-3] // heads if heads else 1

    def shared(x: Tensor) -> Tensor:
        return x.repeat_interleave(group, -3) if group > 1 else x

    def folded(x: Tensor) -> Tensor:
        return x.unflatten(-3, (heads, group)).sum(-3) if group > 1 else x

    k, v = shared(key), shared(value)
    scores = torch.matmul(query, k.transpose(-1, -2)).float() * ctx.scale
    scores = _masked_scores(scores, mask, ctx.causal)
    weights = torch.ops.aten._safe_softmax(scores, -1)
    p = weights.to(query.dtype)
    grad_value = folded(torch.matmul(p.transpose(-1, -2), grad))
    grad_p = torch.matmul(grad, v.transpose(-1, -2)).float()
    grad_scores = weights * (grad_p - (grad_p * weights).sum(-1, keepdim=True))
    grad_mask = None
    if mask is not None and mask.dtype.is_floating_point and ctx.needs_input_grad[3]:
        grad_mask = grad_scores.sum_to_size(mask.shape).to(mask.dtype)
    scaled = (grad_scores * ctx.scale).to(query.dtype)
    grad_query = torch.matmul(scaled, k)
    grad_key = folded(torch.matmul(scaled.transpose(-1, -2), query))
    return grad_query, grad_key, grad_value, grad_mask, None, None


def _masked_scores(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~keep, float("-inf"))
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf"))
    return scores + mask


def _save_layer_norm(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, shape, weight, bias, eps = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.shape, ctx.eps = shape, eps


def _layer_norm_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    dims = tuple(range(x.dim() - len(ctx.shape), x.dim()))
    wide = x.float()
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + ctx.eps)
    normal = (wide - mean) * rstd
    scaled = grad.float() if weight is None else grad.float() * weight.float()
    grad_x = rstd * (
        scaled
        - scaled.mean(dims, keepdim=True)
        - normal * (scaled * normal).mean(dims, keepdim=True)
    )
    outer = tuple(range(x.dim() - len(ctx.shape)))

    def reduced(value: Tensor, like: Tensor | None) -> Tensor | None:
        if like is None:
            return None
        return (value.sum(outer) if outer else value).to(like.dtype)

    grad_weight = reduced(grad.float() * normal, weight)
    return grad_x.to(x.dtype), None, grad_weight, reduced(grad.float(), bias), None
