"""PyTorch's own list of ops with sample arguments (OpInfo), brought to a device."""

from __future__ import annotations

import importlib
import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

OP_DB = "torch.testing._internal.common_methods_invocations:op_db"
DTYPES = ("float16", "bfloat16", "float32", "int64", "bool")
VARIANTS = ("function", "inplace", "out", "gradient", "compiled")

_MOST_GENERATED = 100  # some entries make more than a thousand samples
_COMPILED_ONE_IN = 8
_COMPILED_DTYPES = ("float16", "float32")

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


def entries(source: str = OP_DB) -> dict[str, Any]:
    """The OpInfos of a list (`module:attribute`) by full name."""
    name, _, attribute = source.partition(":")
    module: Any = importlib.import_module(name)
    if source == OP_DB:
        module.wrapper_set_seed = _as_it_comes
    found: dict[str, Any] = {}
    for info in getattr(module, attribute):
        if info.full_name in found:
            raise ValueError(f"{source} lists {info.full_name} twice")
        found[info.full_name] = info
    return found


def _as_it_comes(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Random ops as they are: with one seed for every call, none could be told to be random."""
    return op(*args, **kwargs)


def pairs_of(info: Any, dtypes: Sequence[str] = DTYPES) -> list[tuple[str, str]]:
    """The (variant, dtype) of an op that the CPU claims to have."""
    return [
        (variant, name)
        for variant, name in itertools.product(VARIANTS, dtypes)
        if info.supports_dtype(getattr(torch, name), "cpu") and _has(info, variant, name)
    ]


def _has(info: Any, variant: str, dtype: str) -> bool:
    match variant:
        case "inplace":
            return info.get_inplace() is not None
        case "out":
            return bool(info.supports_out)
        case "gradient":
            return bool(
                dtype == "float32"
                and info.supports_autograd
                and torch.float32 in info.supported_backward_dtypes("cpu")
            )
        case "compiled":
            # A fixed subset: compiling takes a second where a call takes a millisecond.
            chosen = zlib.crc32(info.full_name.encode()) % _COMPILED_ONE_IN == 0
            return chosen and dtype in _COMPILED_DTYPES
    return True


def samples_of(info: Any, dtype: str, count: int, *, gradient: bool) -> list[Any]:
    """Up to `count` samples on the CPU, the first and others; the same every time."""
    seed = zlib.crc32(f"{info.full_name} {dtype}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    made = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=gradient)
    samples = list(itertools.islice(made, _MOST_GENERATED))
    if len(samples) <= count:
        return samples
    # Not every n-th: entries go through products of options.
    return [samples[0], *random.sample(samples[1:], count - 1)]


def arguments_of(sample: Any) -> Arguments:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def placed(tree: Any, device: str, convert: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    """Copies of all tensors on a device, strides and offsets kept; devices named become it.

    Args:
        convert: applied to every leaf before.
    """

    def place(leaf: Any) -> Any:
        leaf = convert(leaf)
        if isinstance(leaf, torch.Tensor):
            return _copy(leaf, device)
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device(device)
        return device if isinstance(leaf, str) and leaf == "cpu" else leaf

    return tree_map(place, tree)


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)
    plain = tensor.detach()
    extent = plain.untyped_storage().nbytes() // plain.element_size()
    whole = plain.as_strided((extent,), (1,), 0).clone().to(device)
    view = whole.as_strided(plain.shape, plain.stride(), plain.storage_offset())
    return view.detach().requires_grad_(tensor.requires_grad)


def widened(dtype: str) -> Callable[[Any], Any]:
    """Turns tensors of a dtype, and the dtype itself, into float64."""
    narrow = getattr(torch, dtype)

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype == narrow:
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        return torch.float64 if leaf is narrow else leaf

    return widen
