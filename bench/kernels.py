"""Card time of kernels beside bound S2 of their work: what the compiler is judged by.

Every case is compiled from shapes alone, on torch.compile's own path, and timed by the card's
clock: nothing of this machine is in the numbers. --only TEXT takes the cases whose name has it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
import torch.nn.functional as F
from measurement import Measurement, options, report
from relayouts import measured as relayouts_measured
from split_scores import clock
from torch import Tensor, nn

import openspyre
from openspyre.card.native import SoftwareCard
from openspyre.card.report import bounds
from openspyre.compiler.emit import emit
from openspyre.compiler.least_work import Work, least_work
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.resident import kept_weights
from openspyre.ir.kernel import Kernel
from openspyre.runtime.clock import card_timer
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.card_time import Phase
from openspyre.tools.layered import Layered

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A function of tensors.

    Attributes:
        target: times bound S2.
        pt_target: the least share of the time that PT is busy, where that is a target.
        published_us: a measured time to stay below.
        dtypes: of its arguments; empty: float16.
    """

    name: str
    function: Callable[..., Tensor]
    shapes: tuple[Shape, ...]
    target: float = 1.15
    pt_target: float | None = None
    published_us: float | None = None
    dtypes: tuple[torch.dtype, ...] = ()


# card.md 4.6 and 4.1 (times of the good layout); card.md 4.3
LINEARS = ((4096, 1024), (4096, 4096), (12800, 4096), (4096, 12800), (4096, 25600))
BATCHED = {
    (2, 12800): 2196, (4, 12800): 4244, (8, 12800): 8384,
    (2, 25600): 4879, (4, 25600): 7672, (8, 25600): 15502,
}  # fmt: skip
HEADS, HEAD = 32, 128


def cases() -> Iterator[Case]:
    """Linears, batched matmuls, row ops, an MLP, attention."""
    for m in (512, 64, 1):
        for k, n in LINEARS:
            yield Case(f"linear {m}x{k}x{n}", F.linear, ((m, k), (n, k)))
        yield Case(f"plain linear {m}x4096x4096", torch.matmul, ((m, 4096), (4096, 4096)))
    for (b, n), us in BATCHED.items():
        shapes = ((b, 512, 4096), (4096, n))
        yield Case(f"matmul {b}x512x4096x{n}", torch.matmul, shapes, 1.25, published_us=us)
    for cols in (1024, 4096):
        for dim in (0, 1):
            yield Case(f"softmax 512x{cols} dim {dim}", _softmax(dim), ((512, cols),))
    row = (4096,)
    yield Case("layer_norm 512x4096", _layer_norm, ((512, 4096), row, row))
    yield Case("rms_norm 512x4096", _rms_norm, ((512, 4096), row))
    yield Case("gelu 512x4096", F.gelu, ((512, 4096),))
    yield Case("add 512x4096", torch.add, ((512, 4096), (512, 4096)))
    weights = ((12800, 4096), (12800, 4096), (4096, 12800))
    yield Case("swiglu 512x4096x12800", _swiglu, ((1, 512, 4096), *weights), 1.1, pt_target=0.8)
    for tokens in (128, 512, 4096):
        qkv = ((1, HEADS, tokens, HEAD),) * 3
        yield Case(f"attention {HEADS}x{tokens}x{HEAD} causal", _causal, qkv, 1.25)
    for window in (512, 1024):
        qkv = ((1, HEADS, 4096, HEAD),) * 3
        yield Case(f"attention {HEADS}x4096x{HEAD} window {window}", _windowed(window), qkv, 1.35)
    for context in (1024, 8192):
        qkv = ((1, HEADS, 1, HEAD), *((1, HEADS, context, HEAD),) * 2)
        name = f"attention {HEADS}x1x{HEAD} context {context}"
        yield Case(name, F.scaled_dot_product_attention, qkv, 1.25)
    yield from paged_cases()
    qkv = ((1, HEADS, 1024, HEAD),) * 3
    yield Case(f"attention {HEADS}x1024x{HEAD} causal, soft cap", _capped, qkv, 1.25)


def paged_cases() -> Iterator[Case]:
    """One token of grouped heads; keys and values in pages of 16 tokens, which a table names."""
    for batch, context, target in ((1, 1024, 1.5), (1, 8192, 1.25), (8, 1024, 1.25)):
        pages = batch * context // 16
        cache = (2 * pages, 16, 8, HEAD)
        shapes = ((batch, HEADS, 1, HEAD), cache, cache, (batch, context // 16))
        name = f"attention {batch}x{HEADS}x1x{HEAD} paged context {context}"
        dtypes = (*(torch.float16,) * 3, torch.int64)
        yield Case(name, _paged, shapes, target, dtypes=dtypes)


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A forward of a stock model of some config, without weights.

    Attributes:
        part: the part of the model whose time counts, "" for all of it.
        target: times bound S2.
        fp8: whether linears have fp8 weights, and a scale for each of their rows.
        keep: its weights stay in LX, and a launch is timed that finds them there.
    """

    name: str
    kind: str
    config: Mapping[str, int]
    phase: Phase
    part: str
    target: float
    fp8: bool = False
    keep: bool = False


GRANITE = {
    "num_hidden_layers": 40, "hidden_size": 4096, "intermediate_size": 12800,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49159,
}  # fmt: skip
MINILM = {
    "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536,
    "num_attention_heads": 12,
}  # fmt: skip


def model_cases() -> Iterator[ModelCase]:
    """A layer of a Granite-3.3-8B-shaped decoder, a MiniLM-shaped encoder."""
    for phase in (Phase("prefill", 1024, 1024), Phase("decode", 1, 1024)):
        name = f"granite-3.3-8b layer, {phase.name} 1024"
        yield ModelCase(name, "granite", GRANITE, phase, "layer", 1.2)
        yield ModelCase(f"{name}, fp8 weights", "granite", GRANITE, phase, "layer", 1.2, fp8=True)
    encode = Phase("encode", 128, 128)
    yield ModelCase("minilm b1 s128", "bert", MINILM, encode, "", 1.3)
    yield ModelCase("minilm b1 s128, weights kept", "bert", MINILM, encode, "", 1.3, keep=True)


def _softmax(dim: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.softmax(x, dim)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight)


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _windowed(window: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention of which every row sees `window` keys, by a mask made from positions."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        row = torch.arange(q.shape[-2], device=q.device)[:, None]
        key = torch.arange(k.shape[-2], device=q.device)
        return F.scaled_dot_product_attention(q, k, v, (key <= row) & (key > row - window))

    return attend


def _capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that a model writes itself: scores capped softly at 50, hidden where later."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    row = torch.arange(q.shape[-2], device=q.device)[:, None]
    hidden = torch.arange(k.shape[-2], device=q.device) > row
    scores = (50 * torch.tanh(scores / 50)).masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1).to(q.dtype) @ v


def _paged(q: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
    k, v = (x[table].flatten(1, 2).transpose(1, 2) for x in (keys, values))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class _Fp8Linear(nn.Module):
    """A linear of fp8 weights, widened where they are used, with a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight
        self.weight = nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)
        self.scale = nn.Parameter(weight[:, 0].detach().clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


def _with_fp8(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, _Fp8Linear(child))


class _Called(nn.Module):
    """A function as the module that the tracer takes."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, given: tuple[Tensor, ...]) -> Tensor:
        return self.function(*given)


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """What the clock says of some kernels, one after another."""

    cycles: int = 0
    pt_busy: int = 0
    work: Work = field(default_factory=Work)

    def __add__(self, other: Timed) -> Timed:
        return Timed(
            self.cycles + other.cycles, self.pt_busy + other.pt_busy, self.work + other.work
        )


def kernels_of(case: Case) -> tuple[Kernel, ...]:
    """The regions that torch.compile hands over for a case."""
    from openspyre.frontend.shapes_only import fake_mode, traced  # loads Inductor

    mode = fake_mode()
    with mode:
        dtypes = case.dtypes or (torch.float16,) * len(case.shapes)
        given = tuple(
            torch.empty(shape, dtype=dtype, device="spyre")
            for shape, dtype in zip(case.shapes, dtypes, strict=True)
        )
    found = traced(_Called(case.function), mode, {"given": given})
    if found.fallbacks:
        raise SystemExit(f"{case.name}: {', '.join(found.fallbacks)} would run on the CPU")
    return found.kernels


def timed(kernel: Kernel, card: SoftwareCard) -> Timed:
    """A kernel planned and timed; its work as the canonical kernel has it."""
    stages: dict[str, Kernel] = {}
    timer = card_timer(SPYRE_CARD_V1)
    planned = plan_kernel(kernel, SPYRE_CARD_V1, stages.__setitem__, timer=timer)
    program = emit(planned, SPYRE_CARD_V1)
    addresses, _, scalars = program.arguments  # no sizes: the shapes of a case are constant
    loaded = card.load_program(program)
    found = card.time(loaded, card.fill(loaded, [0] * addresses, (), [0.0] * scalars))
    card.unload(loaded)
    work = sum(least_work(stages["canonicalize"], SPYRE_CARD_V1).values(), Work())
    return Timed(found.cycles, found.pt_busy, work)


def rows(case: Case, found: Timed) -> Iterator[Measurement]:
    """The measurements of a case."""
    bound = bounds(found.work)
    us = SPYRE_CARD_V1.microseconds(found.cycles)
    detail = f"{us:,.1f} us; bound P {bound.p:,.1f}, S {bound.s:,.1f}, S2 {bound.s2:,.1f}"
    yield Measurement("kernels", case.name, us / bound.s2, "x S2", case.target, detail)
    if case.published_us is not None:
        name = f"{case.name}, published"
        yield Measurement("kernels", name, us, "us", case.published_us, "time in the good layout")
    if case.pt_target is not None:
        busy = found.pt_busy / (found.cycles * SPYRE_CARD_V1.cores)
        yield Measurement(
            "kernels", f"{case.name}, PT busy", busy, "of time", case.pt_target, least=True
        )


def measured(chosen: Iterable[Case]) -> Iterator[Measurement]:
    """The rows of some cases, told on stderr as they come."""
    with SoftwareCard(memory=1 << 30, threads=1) as card:
        for case in chosen:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            found = sum((timed(kernel, card) for kernel in kernels_of(case)), Timed())
            yield from rows(case, found)


def models_measured(chosen: Iterable[ModelCase]) -> Iterator[Measurement]:
    """The rows of some models, told on stderr as they come."""
    from openspyre.tools.card_time import estimated  # loads Inductor
    from openspyre.tools.layered import configured, layered

    for case in chosen:
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        model = layered(configured(case.kind, case.config))
        if case.keep:
            yield kept_measured(case, model)
            continue
        change = _with_fp8 if case.fp8 else None
        found = estimated(model, case.phase, SPYRE_CARD_V1, lambda _: None, change=change)
        us, bound = found.us, found.bounds
        for part in found.parts:
            if part.name == case.part:
                us, bound = part.each_us, part.bounds
        detail = f"{us:,.1f} us; bound P {bound.p:,.1f}, S {bound.s:,.1f}, S2 {bound.s2:,.1f}"
        yield Measurement("kernels", case.name, us / bound.s2, "x S2", case.target, detail)


def kept_measured(case: ModelCase, model: Layered) -> Measurement:
    """The row of a model whose weights stay in LX; its bound does not count what stays there."""
    from openspyre.tools.forward import forward_traced

    phase = case.phase
    forward = forward_traced(
        model, range(len(model.kinds)), tokens=phase.tokens, context=phase.context, batch=1,
        dtype="float16", keep=True,
    )  # fmt: skip
    first = later = kept_bytes = 0
    work = Work()
    with SoftwareCard(memory=1 << 30, threads=1) as card:
        for kernel in forward.traced.kernels:
            stages: dict[str, Kernel] = {}
            timer = card_timer(SPYRE_CARD_V1)
            planned = plan_kernel(kernel, SPYRE_CARD_V1, stages.__setitem__, timer=timer)
            program = emit(planned, SPYRE_CARD_V1)
            addresses, _, scalars = program.arguments
            loaded = card.load_program(program)
            block = card.fill(loaded, [0] * addresses, (), [0.0] * scalars)
            first += card.time(loaded, block).cycles
            later += card.time(loaded, block, kept=True).cycles
            card.unload(loaded)
            kept = [planned.tensors[name] for name in kept_weights(planned)]
            kept_bytes += sum(prod(e.constant or 0 for e in t.shape) * t.dtype.bytes for t in kept)
            work += sum(least_work(stages["canonicalize"], SPYRE_CARD_V1).values(), Work())
    bound = bounds(replace(work, read_bytes=work.read_bytes - kept_bytes))
    us = SPYRE_CARD_V1.microseconds(later)
    detail = (
        f"{us:,.1f} us, the first launch {SPYRE_CARD_V1.microseconds(first):,.1f}; "
        f"{kept_bytes:,} bytes kept; bound P {bound.p:,.1f}, S {bound.s:,.1f}, S2 {bound.s2:,.1f}"
    )
    return Measurement("kernels", case.name, us / bound.s2, "x S2", case.target, detail)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    chosen = parser.parse_args()
    openspyre.require()
    found = [*measured(c for c in cases() if chosen.only in c.name)]
    found += models_measured(c for c in model_cases() if chosen.only in c.name)
    with clock() as timer:
        found += relayouts_measured(chosen.only, timer)
    report(found, chosen)


if __name__ == "__main__":
    main()
