"""What is wrong with the kernels of a run: each again, with what the card found in memory.

A launch is compared with four meanings of its kernel:

    the card      what the launch left
    rounded       the kernel's reference, which rounds where the kernel says so
    exact         the same with every float in float64: nothing rounds
    torch         the graph that the kernel was made from, on the CPU, in float64

Card and rounded differ by more than rounding explains: the program is wrong, or the card is. Exact
and torch differ: the kernel does not mean what the user wrote. Rounded and exact are far apart: the
dtypes cannot carry the values. Needs no torch unless somebody hands in what torch says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np

from openspyre.card.native import NO_DEBUG
from openspyre.errors import BrokenInvariant, CardError, SpyreError
from openspyre.ir.binary import decode
from openspyre.ir.kernel import DType, Kernel
from openspyre.ir.ops import Array
from openspyre.ir.reference import Exact, evaluate
from openspyre.ir.text import parse_kernel, print_op
from openspyre.numerics import IEEE, parse_numerics
from openspyre.runtime.check import check_program
from openspyre.runtime.culprit import Culprit, Splitter, Step
from openspyre.runtime.difference import Difference, differences, relative_error
from openspyre.runtime.launch_values import LaunchValues, Sizes, launch_values
from openspyre.runtime.parts import Bench
from openspyre.runtime.replay import blocks_after, machine_with, memory_for
from openspyre.runtime.saved import Launch, Run, SavedKernel
from openspyre.runtime.sizes import limits_of
from openspyre.spec import CardSpec

Values = Mapping[str, Array]


class Meaning(Protocol):
    """What torch says of a kernel."""

    def __call__(self, kernel: Kernel, given: Values, sizes: Sizes) -> Values:
        """What the kernel writes, in float64, by tensor, as far as torch knows it.

        Raises:
            SpyreError: it cannot be had.
        """

    def code(self, kernel: Kernel) -> tuple[str, tuple[str, ...]]:
        """A `forward` in Python, and the kernel's tensors that it takes in order."""


Meanings = Callable[[Kernel], Meaning | None]

_EQUAL = 1e-6  # of two computations in float64
_NOISE = {True: 2.0**-22, False: 2.0**-8}  # by whether numerics are ieee


class Fault(Enum):
    """What is wrong, worst last in a run."""

    NONE = "right"
    PRECISION = "precision loss"
    REFERENCE = "wrong reference"
    UNSTEADY = "not repeatable"
    CARD = "card fault"
    COMPILER = "compiler fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one launch.

    Attributes:
        number: its place among the launches that were kept.
        why: one sentence.
        wrong: tensors that differ, of the card from the reference, or of the reference from torch.
        losses: by output, how far the rounded reference is from the exact one.
        torch: what came of comparing with torch.
        culprit: the op, where one is to blame and was looked for.
    """

    kernel: str
    number: int
    sizes: tuple[int, ...]
    fault: Fault
    why: str
    wrong: tuple[Difference, ...] = ()
    losses: Mapping[str, float] | None = None
    torch: str = ""
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges launches.

    Attributes:
        limit: the relative error from which on losing precision is a fault; None: by dtype.
    """

    card: CardSpec
    meanings: Meanings
    step: Step
    limit: float | None = None

    def findings(self, run: Run) -> Iterator[tuple[SavedKernel, Launch, Finding]]:
        """Every launch whose memory was kept, in the run's order."""
        pairs = [(k, one) for k in run.kernels for one in k.launches if not one.why_not]
        checked: dict[tuple[str, int, tuple[int, ...]], str] = {}
        for count, (kernel, launch) in enumerate(sorted(pairs, key=lambda p: p[1].number), 1):
            self.step(f"launch {count} of {len(pairs)}: {kernel.name}")
            key = kernel.text, launch.variant, launch.sizes
            if key not in checked:
                checked[key] = self._checked(kernel, launch)
            yield kernel, launch, self.judged(kernel, launch, checked[key])

    def _checked(self, kernel: SavedKernel, launch: Launch) -> str:
        """What the checker says of a program; empty if nothing."""
        region = parse_kernel(kernel.text)
        sizes = dict(zip(region.symbols, launch.sizes, strict=True))
        program = decode(kernel.variants[launch.variant].program)
        try:
            check_program(program, region, [sizes], self.card)
        except BrokenInvariant as wrong:
            return wrong.what
        return ""

    def checked(self, kernel: SavedKernel, launch: Launch) -> Finding:
        """One launch with a look of the checker at its program."""
        return self.judged(kernel, launch, self._checked(kernel, launch))

    def judged(self, kernel: SavedKernel, launch: Launch, problem: str = "") -> Finding:
        """One launch, without looking for the op that is to blame."""
        case = _Case(kernel, launch, self.card, self.step)
        found = Finding(kernel.name, launch.number, launch.sizes, Fault.NONE, "")
        if problem:
            return replace(found, fault=Fault.COMPILER, why=f"its program is wrong: {problem}")
        try:
            wrong = tuple(d for d in case.against_reference(case.values.left) if d.bad)
        except CardError as error:  # the user's own: an index that is out of range
            return replace(found, why=f"no program could run it: {error}")
        if wrong:
            return self._other_values(case, replace(found, wrong=wrong))
        exact = case.exact
        losses = {n: relative_error(case.splitter.reference[n], exact[n]) for n in case.values.left}
        found = replace(found, losses=losses, torch="torch was not asked")
        if (meaning := self.meanings(case.region)) is not None:
            torch, wrong = case.against_torch(meaning)
            found = replace(found, torch=torch, wrong=wrong)
            if wrong:
                why = "the kernel does not mean what torch computes, whatever the rounding"
                return replace(found, fault=Fault.REFERENCE, why=why)
        lost = {n: e for n, e in losses.items() if e > self._limit(case.region.tensors[n].dtype)}
        if lost:
            name, loss = max(lost.items(), key=lambda item: item[1])
            why = (
                f"the card computes what the kernel says, but rounding moves {name} by {loss:.2g}"
                " of its size from what float64 gives"
            )
            return replace(found, fault=Fault.PRECISION, why=why)
        return found

    def _other_values(self, case: _Case, found: Finding) -> Finding:
        try:
            again = case.again()
        except CardError as error:
            why = f"the program stops the card, and the kernel does not say so: {error.what}"
            return replace(found, fault=Fault.COMPILER, why=why)
        if not any(d.bad for d in case.against_reference(again.left)):
            why = "the same program gives right values when it runs again on the same memory"
            return replace(found, fault=Fault.UNSTEADY, why=why)
        why = "the card does not give what the kernel means, and rounding does not explain it"
        return replace(found, fault=Fault.COMPILER, why=why)

    def _limit(self, dtype: DType) -> float:
        return self.limit or max(1e-3, 32 * _HALVES.get(dtype, 0.0))

    def located(self, kernel: SavedKernel, launch: Launch, found: Finding) -> Finding:
        """The finding with the op that is to blame."""
        case = _Case(kernel, launch, self.card, self.step)
        match found.fault:
            case Fault.COMPILER | Fault.CARD:
                return self._located_program(case, found)
            case Fault.REFERENCE:
                return replace(found, culprit=case.first_apart(self.meanings(case.region)))
            case Fault.PRECISION:
                return replace(found, culprit=case.first_lossy(self._limit))
            case Fault.NONE | Fault.UNSTEADY:
                return found

    def _located_program(self, case: _Case, found: Finding) -> Finding:
        problem = "" if found.wrong else found.why
        culprit = case.splitter.culprit(case.program, problem)
        found = replace(found, culprit=culprit)
        if culprit is not None and culprit.alone and case.splitter.blames_card(culprit.op):
            why = f"{found.why}; the interpreter of programs runs the same program right"
            return replace(found, fault=Fault.CARD, why=why)
        return found


# Half a unit in the last place of a narrow dtype.
_HALVES = {
    DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F8E4M3: 2.0**-4, DType.F8E5M2: 2.0**-3,
}  # fmt: skip


class _Case:
    """One launch with its values and meanings."""

    def __init__(self, kernel: SavedKernel, launch: Launch, card: CardSpec, step: Step) -> None:
        region = parse_kernel(kernel.text)
        self.region = replace(region, limits=limits_of(region, launch.sizes))
        self.launch, self.card = launch, card
        self.program = kernel.variants[launch.variant].program
        self.values: LaunchValues = launch_values(region, launch)
        numerics = parse_numerics(launch.numerics)
        self.splitter = Splitter(
            self.region, self.values.given, self.values.sizes, Bench(card, numerics),
            _NOISE[numerics == IEEE], step,
        )  # fmt: skip

    @property
    def exact(self) -> Values:
        """Every tensor that the kernel writes, in float64."""
        return evaluate(
            self.region, self.values.given, self.values.sizes, keep_locals=True, numbers=Exact()
        )

    def against_reference(self, got: Values) -> tuple[Difference, ...]:
        dtypes = {name: tensor.dtype for name, tensor in self.region.tensors.items()}
        return differences(got, self.splitter.reference, self.splitter.noisy, dtypes)

    def again(self) -> LaunchValues:
        """What the program leaves when it runs again on the memory that was kept."""
        memory = memory_for(self.launch, self.program)
        with machine_with(memory, self.card, NO_DEBUG, self.program) as (machine, loaded):
            after = blocks_after(machine, loaded, self.launch)
        return launch_values(self.region, self.launch, after)

    def against_torch(self, meaning: Meaning) -> tuple[str, tuple[Difference, ...]]:
        """What comparing outputs came to, and those that differ."""
        try:
            theirs = meaning(self.region, self.values.given, self.values.sizes)
        except SpyreError as error:
            return f"torch could not be asked: {error.what}", ()
        ours = self.exact
        known = [name for name in self.values.left if name in theirs]
        if not known:
            return "torch has no name for what the kernel gives", ()
        wrong = tuple(d for n in known if (d := _apart(n, ours[n], theirs[n])) is not None)
        more = len(self.values.left) - len(known)
        of = f" for {len(known)} of {len(known) + more} results" if more else ""
        return (f"torch gives something else{of}" if wrong else f"torch agrees{of}"), wrong

    def first_apart(self, meaning: Meaning | None) -> Culprit | None:
        """The first op whose tensor torch computes otherwise."""
        if meaning is None:
            return None
        theirs = meaning(self.region, self.values.given, self.values.sizes)
        ours = self.exact
        for op in self.region.ops:
            name = op.out.tensor
            if name in theirs and (wrong := _apart(name, ours[name], theirs[name])) is not None:
                how = "it does not compute what torch does in the user's graph"
                text = print_op(op, self.region)
                return Culprit(op.name, op.source, text, how, difference=wrong)
        return None

    def first_lossy(self, limit: Callable[[DType], float]) -> Culprit | None:
        """The first op whose result rounding moves too far."""
        ours, exact = self.splitter.reference, self.exact
        for op in self.region.ops:
            name = op.out.tensor
            tensor = self.region.tensors[name]
            if not tensor.dtype.is_float:
                continue
            error = relative_error(ours[name], exact[name])
            if error > limit(tensor.dtype):
                wrong = _worst(name, ours[name], exact[name], error, limit(tensor.dtype))
                how = _lossy(tensor.dtype, ours[name], exact[name])
                text = print_op(op, self.region)
                return Culprit(op.name, op.source, text, how, difference=wrong)
        return None


def _apart(name: str, ours: Array, theirs: Array) -> Difference | None:
    """Two computations in float64, if they differ."""
    if not ours.size:
        return None
    error = relative_error(ours, theirs)
    if error <= _EQUAL:
        return None
    return _worst(name, ours, theirs, error, _EQUAL)


def _worst(name: str, got: Array, expected: Array, error: float, limit: float) -> Difference:
    y, x = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.nan_to_num(np.abs(y - x), nan=0.0 if np.isnan(x).all() else np.inf, posinf=np.inf)
    off = np.where((y == x) | (np.isnan(y) & np.isnan(x)), 0.0, off)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), x.shape))
    scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) or 1.0
    wrong = int((off > limit * scale).sum())
    return Difference(name, wrong, x.size, at, float(y[at]), float(x[at]), error, limit)


def _lossy(dtype: DType, ours: Array, exact: Array) -> str:
    if bool(np.any(np.isfinite(exact) & ~np.isfinite(ours))):
        top = float(np.abs(exact[np.isfinite(exact)]).max())
        return f"{dtype.value} cannot hold what it computes (up to {top:.3g})"
    return f"rounding in {dtype.value} moves it too far; compute it in a wider dtype"


Found = tuple[SavedKernel, Launch, Finding]


def diagnosed(run: Run, judge: Judge) -> tuple[list[Finding], Found | None]:
    """All findings of a run, and the first fault with the op that is to blame.

    The first fault is that of the first launch that is wrong; where none is, of the first that
    loses precision.
    """
    found: list[Finding] = []
    worst: Found | None = None
    for kernel, launch, finding in judge.findings(run):
        found.append(finding)
        if finding.fault is Fault.NONE:
            continue
        if worst is None or (worst[2].fault is Fault.PRECISION is not finding.fault):
            worst = kernel, launch, finding
    if worst is None:
        return found, None
    kernel, launch, finding = worst
    return found, (kernel, launch, judge.located(kernel, launch, finding))
