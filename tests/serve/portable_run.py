"""Files of layers on one device, as `python -m tests.serve.portable_run DEVICE`: cpu or other.

Nothing of openspyre and vLLM is imported: each file is loaded alone, and of vLLM it finds the
collectives only. "other" is a device of Python's own under the name "elsewhere", whose tensors
hold the CPU's. Prints, for each layer, how far its output is from a formula in float64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

FOLDER = Path(__file__).parents[2] / "src" / "openspyre" / "vllm" / "layers"
FILES = ("linear", "vocabulary", "norm", "activation", "rotary")


class Elsewhere(Tensor):
    """A tensor of the other device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device="elsewhere:0"
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = pytree.tree_map(_held, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, Elsewhere, op(*inside[0], **inside[1]))


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def other_device() -> torch.library.Library:
    """Sets up "elsewhere"; it is there as long as what is returned."""
    _setup_privateuseone_for_python_backend("elsewhere")
    library = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):
        op = getattr(torch.ops.aten, name.split(".")[0])

        def made(*sizes: Any, op: Any = op, dtype: Any = None, **kept: Any) -> Elsewhere:
            return Elsewhere(op(*sizes, dtype=dtype, device="cpu"))

        library.impl(name, made, "PrivateUse1")
    return library


def loaded(name: str) -> ModuleType:
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer(kind: type[nn.Module], **attributes: Any) -> nn.Module:
    """A layer without a class of vLLM's behind it."""
    made = kind()
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def cases(there: Callable[[Tensor], Tensor]) -> dict[str, tuple[Any, Tensor]]:
    """By layer: what it gives on the device, and the right answer."""
    linear, vocabulary, norm, activation, rotary = map(loaded, FILES)
    g = torch.Generator().manual_seed(5)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=g)

    x, w, b, table = random(5, 12), random(6, 12), random(6), random(10, 12)
    wide, ids = random(3, 2, 14), torch.tensor([0, 9, 4, 4, 7], dtype=torch.int32)
    whole = {
        "quant_config": None, "skip_bias_add": False, "return_bias": False, "tp_size": 1,
        "tp_rank": 0, "gather_output": False, "input_is_parallel": True, "reduce_results": True,
    }  # fmt: skip
    found: dict[str, tuple[Any, Tensor]] = {}
    right = F.linear(x.double(), w.double(), b.double())
    parts = {"weight": there(w), "bias": there(b)}
    for kind in (linear.Linear, linear.ColumnLinear, linear.RowLinear):
        found[kind.__name__] = (layer(kind, **whole, **parts)(there(x)), right)
    apart = layer(linear.Linear, **{**whole, "skip_bias_add": True, "return_bias": True}, **parts)
    found["a bias apart"] = (sum(apart(there(x))), right)
    cut = {**whole, "tp_size": 2, "reduce_results": False, "input_is_parallel": False}
    shares = [
        layer(linear.RowLinear, **{**cut, "tp_rank": r}, bias=there(b),
              weight=there(w[:, 6 * r : 6 * r + 6]))(there(x))
        for r in range(2)
    ]  # fmt: skip
    found["RowLinear on two"] = (shares[0] + shares[1], right)

    method = SimpleNamespace(
        embedding=lambda own, places: F.embedding(places, own.weight),
        apply=lambda own, hidden, bias=None: F.linear(hidden, own.weight, bias),
    )
    rows = layer(vocabulary.Embedding, weight=there(table), quant_method=method, tp_size=1)
    found["Embedding"] = (rows(there(ids)), table[ids.long()].double())
    # Two cards with six places: five tokens and padding; an added token behind the second's.
    halves = []
    for first, end, own in ((0, 5, table[:5]), (5, 9, table[5:9])):
        indices = SimpleNamespace(
            org_vocab_start_index=first, org_vocab_end_index=end,
            num_org_vocab_padding=5 - (end - first),
            added_vocab_start_index=9, added_vocab_end_index=9 if first == 0 else 10,
        )  # fmt: skip
        padded = torch.cat([own, torch.full((5 - len(own), 12), torch.nan), table[9:]])
        half = layer(vocabulary.Embedding, weight=there(padded), quant_method=method, tp_size=2,
                     shard_indices=indices, reduce_results=False, parallel_group=None)  # fmt: skip
        halves.append(half(there(ids)))
    found["Embedding on two"] = (halves[0] + halves[1], table[ids.long()].double())
    head = layer(vocabulary.Head, weight=there(w), quant_method=method, tp_size=1)
    found["Head"] = (head(there(x), there(b)), right)
    logits = layer(vocabulary.Logits, scale=0.5, soft_cap=3.0, logits_as_input=False,
                   org_vocab_size=4, use_all_gather=False, head_dtype=torch.float64)  # fmt: skip
    found["Logits"] = (
        logits(head, there(x), there(b)), 1.5 * torch.tanh(right[..., :4] / 3.0)
    )  # fmt: skip

    gemma = layer(norm.OnePlusRMSNorm, weight=there(w[0]), variance_epsilon=1e-6)
    total = x.double() + x.double().flip(0)
    normed = F.rms_norm(total, (12,), 1 + w[0].double(), 1e-6)
    both = gemma.forward_native(there(x), there(x.flip(0)))
    found["OnePlusRMSNorm"] = (both[0], normed)
    found["its residual"] = (both[1], total)
    found["OnePlusRMSNorm alone"] = (
        gemma.forward_native(there(x)), F.rms_norm(x.double(), (12,), 1 + w[0].double(), 1e-6)
    )  # fmt: skip
    mean = layer(norm.MeanNorm, weight=there(w[0]), bias=there(w[1]), normalized_shape=(12,),
                 eps=1e-5)  # fmt: skip
    wanted = F.layer_norm(x.double(), (12,), w[0].double(), w[1].double(), 1e-5)
    found["MeanNorm"] = (mean.forward_native(there(x)), wanted)

    a, v = wide.double().chunk(2, -1)
    every, other = wide.double()[..., ::2], wide.double()[..., 1::2]
    up, low = v.clamp(-0.7, 0.7), a.clamp(max=0.7)
    tanh_gelu = F.gelu(wide.double(), approximate="tanh")
    activations: dict[str, tuple[dict[str, Any], Tensor]] = {
        "GatedGelu": ({"approximate": "tanh"}, F.gelu(a, approximate="tanh") * v),
        "GatedByLaterSilu": ({}, a * F.silu(v)),
        "GatedThreshold": ({"threshold": 0.3}, torch.where(a > 0.3, a, 0.0) * v),
        "GatedClampedSilu": (
            {"swiglu_limit": 0.7, "alpha": 1.3, "beta": 1.0},
            low * torch.sigmoid(1.3 * low) * (up + 1),
        ),
        "GatedSteppedSilu": ({"limit": 0.7}, F.silu(a).clamp(max=0.7) * up),
        "InterleavedClampedSilu": (
            {"alpha": 1.3, "limit": 0.7},
            (other.clamp(-0.7, 0.7) + 1)
            * every.clamp(max=0.7) * torch.sigmoid(1.3 * every.clamp(max=0.7)),
        ),
        "SoftClippedSilu": (
            {"beta": 2.0, "linear_beta": 3.0},
            2 * torch.tanh(a / 2) * torch.sigmoid(a) * 3 * torch.tanh(v / 3),
        ),
        "Gelu": ({}, F.gelu(wide.double())),
        "TanhGelu": ({}, tanh_gelu),
        "FastGelu": ({}, tanh_gelu),
        "SigmoidGelu": ({}, wide.double() * torch.sigmoid(1.702 * wide.double())),
        "SquaredRelu": ({}, F.relu(wide.double()).square()),
    }  # fmt: skip
    for name, (attributes, wanted) in activations.items():
        made = layer(getattr(activation, name), **attributes)
        found[name] = (made.forward_native(there(wide)), wanted)

    angles = random(20, 3)
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    for name, halves_of in (("Rotary by halves", True), ("Rotary by neighbours", False)):
        made = layer(rotary.Rotary, cos_sin_cache=there(cache), head_size=8, rotary_dim=6,
                     is_neox_style=halves_of)  # fmt: skip
        query, places = random(4, 16), torch.tensor([3, 0, 19, 7])
        got, none = made.forward_native(there(places), there(query))
        assert none is None
        found[name] = (got, turned(query.double(), angles[places].double(), halves=halves_of))
    alone = layer(rotary.AppliedRotary, is_neox_style=True, enable_fp32_compute=True)
    got = alone.forward_native(there(query.view(4, 2, 8)[..., :6]), *map(
        there, (angles[places].cos(), angles[places].sin())))  # fmt: skip
    wanted = turned(query.double(), angles[places].double(), halves=True).view(4, 2, 8)[..., :6]
    found["AppliedRotary"] = (got, wanted)
    return found


def turned(x: Tensor, angles: Tensor, *, halves: bool) -> Tensor:
    """Heads of 8 whose first 6 elements are three complex numbers, turned."""
    heads = x.view(4, 2, 8)
    first = heads[..., :6]
    pairs = first.unflatten(-1, (2, 3)).mT if halves else first.unflatten(-1, (3, 2))
    moved = torch.view_as_real(torch.view_as_complex(pairs.contiguous())
                               * torch.polar(torch.ones_like(angles), angles)[:, None])  # fmt: skip
    moved = moved.mT.flatten(-2) if halves else moved.flatten(-2)
    return torch.cat([moved, heads[..., 6:]], -1).view(4, 16)


def main(device: str) -> None:
    names = ("all_gather", "all_reduce", "gather")
    told = {f"tensor_model_parallel_{name}": None for name in names}
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm.distributed"] = ModuleType("vllm.distributed")
    vars(sys.modules["vllm.distributed"]).update(told)
    there: Callable[[Tensor], Tensor] = Tensor.clone
    library = None
    if device == "other":
        library = other_device()
        there = Elsewhere
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, (got, wanted) in cases(there).items():
            assert got.device.type == ("cpu" if device == "cpu" else "elsewhere")
            on_host = _held(got).double()
            assert on_host.shape == wanted.shape
            result[name] = (on_host - wanted).abs().max().item()
    result["modules"] = [m for m in sys.modules if m.split(".")[0] in ("openspyre", "vllm")]
    print(json.dumps(result))
    del library


if __name__ == "__main__":
    main(sys.argv[1])
