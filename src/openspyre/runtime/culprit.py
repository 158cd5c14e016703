"""Which op of a kernel is wrong on the card: by stages, by what it does alone, and with others.

A kernel whose program gives wrong values is compiled again here, whole and in parts, with the
values of its launch. What is found is therefore found with the compiler at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, zip_longest
from math import prod
from operator import mul

import numpy as np

from openspyre.compiler.pipeline import plan_kernel
from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.ir.binary import decode
from openspyre.ir.kernel import Kernel, Op, Role, loads
from openspyre.ir.ops import Array
from openspyre.ir.program import Instr, Node, Program, TileLoop
from openspyre.ir.reference import Noisy, Numbers, evaluate, stepped
from openspyre.ir.text import print_op
from openspyre.runtime.check import check_program
from openspyre.runtime.difference import Difference, differences
from openspyre.runtime.launch_values import Sizes
from openspyre.runtime.parts import Bench, part_of

_INTERPRETED = 1 << 21  # points of an op that the interpreter of programs is asked about
Step = Callable[[str], None]
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Culprit:
    """An op that is wrong, and how one knows.

    Attributes:
        how: in words.
        alone: whether it is wrong as a kernel of its own; None: it did not come to that.
        window: the ops, in order, that are wrong together where none is alone.
        stage: the compiler's stage that changes what it means.
    """

    op: str
    source: str
    text: str
    how: str
    alone: bool | None = None
    window: tuple[str, ...] = ()
    stage: str = ""
    difference: Difference | None = None


class Splitter:
    """Looks for the first wrong op of a kernel.

    Args:
        region: the kernel with the limits of the program that was wrong.
        given: every argument before the launch.
    """

    def __init__(
        self, region: Kernel, given: Values, sizes: Sizes, bench: Bench, noise: float, step: Step
    ) -> None:
        self.region, self.given, self.sizes = region, given, sizes
        self.bench, self.noise, self.step = bench, noise, step
        self.compared: frozenset[str] = frozenset()

    @cached_property
    def reference(self) -> Values:
        """Every tensor that the kernel writes."""
        return self._evaluated(self.region, self.given)[0]

    @cached_property
    def noisy(self) -> Sequence[Values]:
        """The same with noise."""
        return self._evaluated(self.region, self.given)[1]

    def _evaluated(self, kernel: Kernel, given: Values) -> tuple[Values, Sequence[Values]]:
        hows = [Numbers(), Noisy(1, self.noise), Noisy(2, self.noise)]
        found = [
            evaluate(kernel, given, self._sizes(kernel), keep_locals=True, numbers=how)
            for how in hows
        ]
        return found[0], found[1:]

    def _sizes(self, kernel: Kernel) -> Sizes:
        return {symbol: self.sizes[symbol] for symbol in kernel.symbols}

    def culprit(self, saved: bytes, problem: str) -> Culprit | None:
        """The first wrong op, or None where the kernel compiled anew is right.

        Args:
            saved: the program that was wrong.
            problem: what the checker said of it.
        """
        found = self._hazard() if problem else None
        found = found or self._stage()
        if found is not None:
            return self._confirmed(found)
        found, spare = self._alone()
        return found or self._together() or spare or self._damaged(saved)

    def _confirmed(self, found: Culprit) -> Culprit:
        """An op that is seen to be wrong; where it is right alone, the one before it that is not,
        of those that a stage has changed beyond comparison.
        """
        if self._wrong_alone(found.op):
            return replace(found, alone=True)
        for op in self._hidden_before(found.op):
            if self._wrong_alone(op.name):
                return replace(
                    self._named(op.name, found.how, stage=found.stage, difference=found.difference),
                    alone=True,
                )
        return replace(found, alone=False)

    def _hidden_before(self, name: str) -> Iterator[Op]:
        """The ops that an op reads from, directly or through each other, in order, as far as
        nobody could compare what they give after the stages.
        """
        wanted = {load.tensor for load in loads(self.region.by_name[name])}
        found: list[Op] = []
        first = self.region.ops.index(self.region.by_name[name])
        for op in reversed(self.region.ops[:first]):
            if op.out.tensor in wanted - self.compared:
                found.append(op)
                wanted |= {load.tensor for load in loads(op)}
        return reversed(found)

    # --- by the checker ---

    def _hazard(self) -> Culprit | None:
        """The op that the checker names when the kernel is compiled with ops as sources."""
        self.step("compiling again for the checker")
        named = replace(
            self.region, ops=tuple(replace(op, source=f"<{op.name}>") for op in self.region.ops)
        )
        try:
            program = decode(self.bench.compiled(named))
            check_program(program, named, [self.sizes], self.bench.card)
        except BrokenInvariant as wrong:
            names = re.findall(r"<([^<>\s]+)>", wrong.what)
            known = [name for name in names if name in self.region.by_name]
            if known:
                return self._named(known[0], f"the checker: {wrong.what.strip()}")
        return None

    # --- by stages ---

    def _stage(self) -> Culprit | None:
        """The first op that a stage of the compiler gives another meaning."""
        self.step("evaluating after every stage")
        stages: list[tuple[str, Kernel]] = []
        # Where a stage fails those before it are seen; those who compile tell what it says.
        with suppress(SpyreError, BrokenInvariant):
            plan_kernel(self.region, self.bench.card, lambda name, k: stages.append((name, k)))
        before = self.region.ops
        for name, kernel in stages:
            if kernel.ops != before and (found := self._changed(name, kernel)):
                return found
            before = kernel.ops
        return None

    def _changed(self, stage: str, kernel: Kernel) -> Culprit | None:
        after = evaluate(kernel, self.given, self._sizes(kernel), keep_locals=True)
        written = dict.fromkeys(op.out.tensor for op in kernel.ops)
        common = {
            name: reshaped
            for name in written
            if (reshaped := self._as_imported(name, after[name], kernel)) is not None
        }
        self.compared = frozenset(common)
        wrong = [d for d in self._differences(common, self.reference, self.noisy) if d.bad]
        if not wrong:
            return None
        op = self._writer(wrong[0])
        how = f"stage {stage} changes what it means"
        return self._named(op, how, stage=stage, difference=wrong[0])

    def _as_imported(self, name: str, values: Array, kernel: Kernel) -> Array | None:
        """A tensor in the form that the kernel at first gave it; stages split and merge dims."""
        mine = self.region.tensors.get(name)
        if mine is None or mine.dtype is not kernel.tensors[name].dtype:
            return None
        shape = tuple(extent.evaluate(self.sizes) for extent in mine.shape)
        ends, others = set(accumulate(shape, mul)), set(accumulate(values.shape, mul))
        refines = ends | {1} <= others | {1} or others | {1} <= ends | {1}
        return values.reshape(shape) if prod(shape) == values.size and refines else None

    def _differences(
        self, got: Values, reference: Values, noisy: Sequence[Values]
    ) -> tuple[Difference, ...]:
        dtypes = {name: tensor.dtype for name, tensor in self.region.tensors.items()}
        return differences(got, reference, noisy, dtypes)

    def _writer(self, wrong: Difference) -> str:
        """The op that wrote the element that is worst."""
        writers = [op for op in self.region.ops if op.out.tensor == wrong.tensor]
        if len(writers) == 1:
            return writers[0].name
        last, values = writers[-1].name, dict[str, Array]()
        known: object = None
        previous = ""
        for op in stepped(self.region, self.given, self.sizes, values):
            now = values[wrong.tensor][wrong.at].tobytes()
            if previous and now != known:
                last = previous
            previous = op.name if op.out.tensor == wrong.tensor else ""
            known = now
        if previous and values[wrong.tensor][wrong.at].tobytes() != known:
            last = previous
        return last

    # --- alone ---

    def _alone(self) -> tuple[Culprit | None, Culprit | None]:
        """The first op that is wrong as a kernel of its own and in one with all before it; and the
        first of those that are wrong alone only, where there is none.
        """
        values: dict[str, Array] = {}
        spare: Culprit | None = None
        ops = self.region.ops
        for number, op in enumerate(stepped(self.region, self.given, self.sizes, values), 1):
            self.step(f"op {number} of {len(ops)} alone")
            wrong = self._tried([op], values)
            if wrong is None:
                continue
            how = "it is wrong as a kernel of its own"
            found = replace(self._named(op.name, how, difference=wrong), alone=True)
            if self._window(0, number) is not None:
                return found, None
            spare = spare or found
        return None, spare

    def _wrong_alone(self, name: str) -> bool:
        values: dict[str, Array] = {}
        for op in stepped(self.region, self.given, self.sizes, values):
            if op.name == name:
                return self._tried([op], values) is not None
        return False

    def blames_card(self, name: str) -> bool:
        """Whether an op's own program is right by the interpreter, and wrong on the card."""
        values: dict[str, Array] = {}
        for op in stepped(self.region, self.given, self.sizes, values):
            if op.name != name:
                continue
            points = prod(d.extent.evaluate(self.sizes) for d in (*op.dims, *op.rdims))
            if points > _INTERPRETED:
                return False
            part = part_of(self.region, [op], self._shown([op]))
            given = {name: values[name] for name in part.arguments}
            sizes = self._sizes(part)
            program = self.bench.compiled(part)
            reference, noisy = self._evaluated(part, given)
            got = self.bench.interpreted(program, part, given, sizes)
            return not any(d.bad for d in self._differences(got, reference, noisy))
        return False

    def _tried(self, ops: Sequence[Op], values: Values) -> Difference | None:
        """What is wrong with some ops as a kernel, given what every tensor holds before them."""
        shown = self._shown(ops)
        part = part_of(self.region, ops, shown)
        given = {name: values[name] for name in part.arguments}
        sizes = self._sizes(part)
        try:
            got = self.bench.values(self.bench.compiled(part), part, given, sizes)
        except (SpyreError, BrokenInvariant) as error:
            return _failed(ops[-1], error)
        reference, noisy = self._evaluated(part, given)
        return next((d for d in self._differences(got, reference, noisy) if d.bad), None)

    def _shown(self, ops: Sequence[Op]) -> frozenset[str]:
        """What others read of what the ops write."""
        names = {op.name for op in ops}
        others = [op for op in self.region.ops if op.name not in names]
        read = {load.tensor for op in others for load in loads(op)}
        read |= {lookup.tensor for op in others for lookup in op.lookups}
        last = {ops[-1].out.tensor}
        kept = {n for n, t in self.region.tensors.items() if t.role is not Role.LOCAL}
        return frozenset(read | kept | last)

    # --- together ---

    def _together(self) -> Culprit | None:
        """The shortest run of ops, from the first wrong one back, that is wrong as a kernel."""
        ops = self.region.ops
        if self._window(0, len(ops)) is None:
            return None
        end = _first(1, len(ops), lambda k: self._window(0, k) is not None)
        begin = _last(0, end - 1, lambda j: self._window(j, end) is not None)
        wrong = self._window(begin, end)
        names = tuple(op.name for op in ops[begin:end])
        how = f"it is right alone, and wrong in one kernel with the {len(names) - 1} before it"
        found = self._named(names[-1], how, difference=wrong)
        return replace(found, alone=False, window=names)

    def _window(self, begin: int, end: int) -> Difference | None:
        self.step(f"ops {begin + 1} to {end} of {len(self.region.ops)} together")
        values: dict[str, Array] = {}
        for number, _ in enumerate(stepped(self.region, self.given, self.sizes, values)):
            if number == begin:
                break
        return self._tried(self.region.ops[begin:end], values)

    # --- the program that was saved ---

    def _damaged(self, saved: bytes) -> Culprit | None:
        """The op of the first line in which a program differs from one made now."""
        self.step("comparing programs")
        try:
            anew = decode(replace(self.bench, timed=not self.region.symbols).compiled(self.region))
        except (SpyreError, BrokenInvariant):
            return None
        then = decode(saved)
        pairs = zip_longest(_instructions(then), _instructions(anew))
        first = next((one or other for one, other in pairs if one != other), None)
        if first is None:
            return None
        source = then.sources[first.origin] if 0 <= first.origin < len(then.sources) else ""
        op = next((op for op in self.region.ops if source in (op.source, op.name)), None)
        how = "the program is not what this version compiles"
        if op is None:
            return Culprit("", source, "", f"{how}: {type(first).__name__} instructions differ")
        return self._named(op.name, how)

    def _named(
        self, name: str, how: str, *, stage: str = "", difference: Difference | None = None
    ) -> Culprit:
        op = self.region.by_name[name]
        return Culprit(
            name, op.source, print_op(op, self.region), how, stage=stage, difference=difference
        )


def _instructions(program: Program) -> Iterator[Instr]:
    """In order."""
    for section in program.sections:
        yield from _inside(section.body)


def _inside(body: Sequence[Node]) -> Iterator[Instr]:
    for node in body:
        if isinstance(node, TileLoop):
            yield from _inside(node.body)
        else:
            yield node


def _failed(op: Op, error: Exception) -> Difference:
    """What stands for the values where there are none."""
    del error
    return Difference(op.out.tensor, 0, 0, (), float(np.nan), float(np.nan), np.inf, 0.0)


def _first(low: int, high: int, bad: Callable[[int], bool]) -> int:
    """The smallest number that is bad; `high` is."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bad(middle) else (middle + 1, high)
    return low


def _last(low: int, high: int, bad: Callable[[int], bool]) -> int:
    """The largest number that is bad; `low` is."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bad(middle) else (low, middle - 1)
    return low
