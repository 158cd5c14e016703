"""Card time of one forward of a model, extrapolated from few of its layers (decisions/0011.md)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch

from openspyre.card.report import Bounds, bounds
from openspyre.compiler.least_work import Work, least_work
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.runtime.check import proved
from openspyre.runtime.clock import card_timer
from openspyre.runtime.sources import SectionShares, cycles_by_owner, shared_sections
from openspyre.spec import CardSpec
from openspyre.tools.forward import Change, Forward, forward_traced
from openspyre.tools.layered import Layered, kept_layers, stand_ins
from openspyre.tools.progress import Step

_FACTORS = (0.5, 2.0)
Cycles = Mapping[str, float]  # by owner
Shares = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Phase:
    """One forward: `tokens` new ones of each sequence, `context` with those before them."""

    name: str
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Part:
    """Equal pieces of a model.

    Attributes:
        detail: it is a piece of the part before it that is no detail.
        count: how many the whole model has.
        us: card time of all of them.
        bounds: of one.
        moved: the shares by which half and twice of one guessed constant move the time: the
            lowest and the highest.
    """

    name: str
    detail: bool
    count: int
    us: float
    bounds: Bounds
    moved: Shares

    @property
    def each_us(self) -> float:
        return self.us / self.count


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of device memory that stay in use: of weights and the cache. The card has `card`."""

    weights: int
    cache: int
    card: int

    @property
    def fits(self) -> bool:
        """Whether the card has room for them; results between kernels come on top."""
        return self.weights + self.cache <= self.card


@dataclass(frozen=True, slots=True)
class Estimated:
    """Card time of a phase.

    Attributes:
        bounds: of all work together.
        sensitivity: for every guessed constant the shares by which half and twice of it move
            the time.
        compiled_layers: the numbers of the layers that were compiled.
        memory: what the forward needs of the card's memory.
        fallbacks: ops that would run on the CPU; their time is not in the estimate.
    """

    phase: Phase
    us: float
    bounds: Bounds
    parts: tuple[Part, ...]
    sensitivity: Mapping[str, Shares]
    compiled_layers: tuple[int, ...]
    memory: Memory
    fallbacks: tuple[str, ...]

    @property
    def moved(self) -> Shares:
        """The lowest and the highest share by which one constant moves the time."""
        shares = [share for pair in self.sensitivity.values() for share in pair]
        return min(0.0, *shares), max(0.0, *shares)


def estimated(
    model: Layered, phase: Phase, card: CardSpec, step: Step, *, batch: int = 1,
    dtype: str = "float16", change: Change | None = None,
) -> Estimated:  # fmt: skip
    """The card time of a phase.

    Args:
        step: is told what begins.
        change: what is done to the model first; what it makes of parameters is not in `memory`.

    Raises:
        SpyreError: the model does not trace, or the card cannot do something of it.
    """
    kept = kept_layers(model.kinds)
    step(f"{phase.name}: tracing {len(kept)} of {len(model.kinds)} layers")
    forward = forward_traced(
        model, kept, tokens=phase.tokens, context=phase.context, batch=batch, dtype=dtype,
        change=change,
    )  # fmt: skip
    traced = forward.traced
    step(f"{phase.name}: compiling")
    compiled = [compiled_kernel(kernel, card, model.name) for kernel in traced.kernels]
    step(f"{phase.name}: timing")
    sections = [one.sections for one in compiled]
    whole = _Whole(model, kept)
    base = _cycles(sections, card)
    changed = {}
    for name in guessed():
        step(f"{phase.name}: sensitivity to {name}")
        changed[name] = [_cycles(sections, _scaled(card, name, factor)) for factor in _FACTORS]
    work: defaultdict[str, Work] = defaultdict(Work)
    for one in compiled:
        for who, done in one.work.items():
            work[who] += done
    return Estimated(
        phase,
        card.microseconds(whole.cycles(base)),
        bounds(whole.work(work), card),
        tuple(_parts(whole, base, work, changed, card)),
        {
            name: _moves([whole.cycles(other) for other in pair], whole.cycles(base))
            for name, pair in changed.items()
        },
        tuple(kept),
        Memory(
            model.parameters * getattr(torch, dtype).itemsize,
            whole.cache_bytes(forward.cache_bytes),
            card.memory_bytes,
        ),
        traced.fallbacks,
    )


# --- what was compiled ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel's program, its sections, and the least work of every owner of ops in it."""

    kernel: Kernel
    program: Program
    sections: tuple[SectionShares, ...]
    work: Mapping[str, Work]


def extrapolated(
    model: Layered, forward: Forward, compiled: Sequence[CompiledKernel], card: CardSpec
) -> tuple[float, int]:
    """Microseconds of card time, and bytes of the cache, of a forward of the whole model, from the
    one of the layers that `kept_layers` chooses."""
    whole = _Whole(model, kept_layers(model.kinds))
    cycles = whole.cycles(_cycles([one.sections for one in compiled], card))
    return card.microseconds(cycles), whole.cache_bytes(forward.cache_bytes)


def compiled_kernel(kernel: Kernel, card: CardSpec, layers: str) -> CompiledKernel:
    """A kernel of a model whose list of layers has that name."""
    canonical: list[Kernel] = []

    def keep(stage: str, result: Kernel) -> None:
        if stage == "canonicalize":
            canonical.append(result)

    def whose(source: str) -> str:
        return owner(source, layers)

    program = compile_kernel(kernel, card, keep, card_timer(card))
    program = proved(program, kernel, card, {})
    sources = {op.name: op.source or op.name for op in canonical[0].ops}
    work: defaultdict[str, Work] = defaultdict(Work)
    for name, done in least_work(canonical[0], card).items():
        work[whose(sources[name])] += done
    return CompiledKernel(kernel, program, shared_sections(program, card, whose), dict(work))


def owner(source: str, layers: str) -> str:
    """`3.mlp` for what layer 3's module mlp or a part of it does, else the module's name.

    >>> owner("model.layers.3.mlp.up_proj", "model.layers")
    '3.mlp'
    >>> owner("model.layers.3", "model.layers"), owner("lm_head", "model.layers")
    ('3.', 'lm_head')
    """
    if found := re.fullmatch(re.escape(layers) + r"\.(\d+)(?:\.([^.]+).*)?", source):
        return f"{found[1]}.{found[2] or ''}"
    return source


def _cycles(kernels: Iterable[Sequence[SectionShares]], card: CardSpec) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for sections in kernels:
        for who, cycles in cycles_by_owner(sections, card).items():
            found[who] += cycles
    return dict(found)


def guessed() -> tuple[str, ...]:
    """The names of the card's numbers that are guesses."""
    return tuple(f.name for f in fields(CardSpec) if f.metadata["grade"] == "G")


def _scaled(card: CardSpec, name: str, factor: float) -> CardSpec:
    value = getattr(card, name)
    scaled = max(1, int(value * factor)) if isinstance(value, int) else value * factor
    return replace(card, **{name: scaled})


def _moves(changed: Sequence[float], base: float) -> Shares:
    half, twice = (cycles / base - 1 if base else 0.0 for cycles in changed)
    return half, twice


# --- the whole model ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Whole:
    """How the model's layers follow from those that were compiled."""

    model: Layered
    kept: tuple[int, ...]

    def times(self, who: str) -> int:
        """How often the model has what `who` did once."""
        position, found, _ = who.partition(".")
        if not found or not position.isdecimal():
            return 1
        return Counter(stand_ins(self.model.kinds, self.kept))[int(position)]

    def place(self, who: str) -> tuple[str, str]:
        """The part of the model that `who` belongs to, and the piece of it."""
        position, found, piece = who.partition(".")
        if not found or not position.isdecimal():
            return who, ""
        return self.model.kind_names[self.model.kinds[self.kept[int(position)]]], piece

    def count(self, part: str) -> int:
        if part not in self.model.kind_names:
            return 1
        return self.model.kinds.count(self.model.kind_names.index(part))

    def cache_bytes(self, kept: Sequence[int]) -> int:
        """Of the whole model, from those of the kept layers."""
        return sum(kept[n] for n in stand_ins(self.model.kinds, self.kept)) if kept else 0

    def cycles(self, found: Cycles) -> float:
        return sum(cycles * self.times(who) for who, cycles in found.items())

    def work(self, found: Mapping[str, Work]) -> Work:
        return sum((done * self.times(who) for who, done in found.items()), Work())


def _parts(
    whole: _Whole, base: Cycles, work: Mapping[str, Work],
    changed: Mapping[str, Sequence[Cycles]], card: CardSpec,
) -> Iterator[Part]:  # fmt: skip
    """Every part in the order of its first instruction, then its pieces."""
    pieces: dict[str, dict[str, list[str]]] = {}
    for who in (*base, *(w for w in work if w not in base)):
        part, piece = whole.place(who)
        pieces.setdefault(part, {}).setdefault(piece, []).append(who)

    def one(name: str, part: str, owners: Sequence[str], *, detail: bool) -> Part:
        def chosen(found: Cycles) -> float:
            return whole.cycles({who: found.get(who, 0.0) for who in owners})

        count = whole.count(part)
        done = whole.work({who: work.get(who, Work()) for who in owners})
        cycles = chosen(base)
        moves = [m for pair in changed.values() for m in _moves([*map(chosen, pair)], cycles)]
        return Part(
            name, detail, count, card.microseconds(cycles), bounds(done * (1 / count), card),
            (min(0.0, *moves), max(0.0, *moves)),
        )  # fmt: skip

    for part, inside in pieces.items():
        yield one(part, part, [who for owners in inside.values() for who in owners], detail=False)
        if part in whole.model.kind_names:
            for piece, owners in inside.items():
                yield one(piece or "residual sums", part, owners, detail=True)
