"""The ops of an attention, by the rows and keys that they walk, and what of it a mask hides.

Scores [rows, keys] of a contraction go through a softmax over keys into a contraction over keys.
Where a mask compares positions, as in `where(key <= row & key > row - 128, score, -inf)`, ranges
of rows and keys tell that every exponential there is 0 and no maximum comes from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from openspyre.compiler.fold import folded_body
from openspyre.compiler.ranges import Facts
from openspyre.compiler.rewrite import reads, rewritten, sole_name, writes_whole
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Call,
    Const,
    DType,
    Index,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    loads,
    walk,
)

Span = tuple[int, int]
"""The first point, and how many."""
_WALKING = frozenset({Kind.MAP, Kind.GATHER, Kind.REDUCE, Kind.CONTRACT})
_COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_ANY = Const(0, DType.F32)  # stands for any constant
_NEUTRAL: Mapping[str | None, float] = {"max": -inf, "sum": 0.0, "any": 0.0}


@dataclass(frozen=True, slots=True)
class Walk:
    """The dims of an op, or the places of a tensor's index, that walk rows and keys."""

    row: str | int | None
    key: str | int | None


@dataclass(frozen=True, slots=True)
class SoftmaxRows:
    """The ops of a softmax over keys and of its product, in order; the first one makes scores.

    Attributes:
        rows, keys: how many; one row where all rows see the same keys.
        walks: for every op its dims that walk rows and keys.
        tensors: those that nobody else reads, and the places of their indices.
        products: the contractions over keys.
    """

    ops: tuple[Op, ...]
    rows: int
    keys: int
    walks: Mapping[str, Walk]
    tensors: Mapping[str, Walk]
    products: frozenset[str]

    def maxima_of(self, value: Scalar) -> frozenset[str]:
        """Tensors of the maximum over keys of a value, or of something it is at least."""
        same = (value, Call("max", (value, _ANY), value.dtype))
        return frozenset(
            op.out.tensor
            for op in self.ops
            if op.reduce == "max" and any(_alike(op.body, s) for s in same)
        )

    @property
    def sums(self) -> frozenset[str]:
        """Tensors of sums over keys of exponentials."""
        powers = {op.out.tensor for op in self.ops if _is_power(op.body)}
        summed = (op for op in self.ops if op.reduce == "sum")
        return frozenset(
            op.out.tensor
            for op in summed
            if _is_power(op.body) or (isinstance(op.body, Load) and op.body.tensor in powers)
        )


def _alike(one: Scalar, other: Scalar) -> bool:
    """Whether two bodies do the same to elements of the same tensors."""
    match one, other:
        case _, Const() if other is _ANY:
            return isinstance(one, Const)
        case Load(tensor=a), Load(tensor=b):
            return a == b
        case Index(), Index():
            return True
        case Call(op=a, args=xs), Call(op=b, args=ys):
            return a == b and len(xs) == len(ys) and all(map(_alike, xs, ys))
    return one == other


def _is_power(body: Scalar) -> bool:
    match body:
        case Call("cast", (inner,)):
            return _is_power(inner)
        case Call("exp" | "exp2"):
            return True
    return False


class Readers:
    """Who reads the tensors of a kernel, and which of them are formulas of positions."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.writers = Counter(op.out.tensor for op in kernel.ops)
        self.at = {op.name: n for n, op in enumerate(kernel.ops)}
        self.of: dict[str, list[int]] = defaultdict(list)
        for position, op in enumerate(kernel.ops):
            for tensor in dict.fromkeys(t for t, _ in reads(op)):
                self.of[tensor].append(position)
        self.products = {op.out.tensor for op in kernel.ops if op.kind is Kind.CONTRACT}
        self.made = {op.out.tensor: op for op in kernel.ops if self._is_formula(op)}

    def own(self, op: Op) -> bool:
        """Whether the op alone writes its result, which only the kernel reads."""
        tensor = self.kernel.tensors[op.out.tensor]
        return tensor.role is Role.LOCAL and self.writers[tensor.name] == 1

    def _is_formula(self, op: Op) -> bool:
        whole = op.kind is Kind.MAP and writes_whole(op, self.kernel.tensors[op.out.tensor])
        return whole and self.own(op) and any(isinstance(node, Index) for node in walk(op.body))

    def inlined(self, body: Scalar) -> Scalar:
        """The body with formulas in place of loads, where it says what the loads do."""

        def node(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.guarded or value.tensor not in self.made:
                return value
            op = self.made[value.tensor]
            at = {sole_name(e) or "": i for e, i in zip(op.out.index, value.index, strict=True)}
            at.pop("", None)
            dtype = self.kernel.tensors[value.tensor].dtype
            moved = rewritten(op.body, lambda inner: _moved(inner, at))
            found = self.inlined(moved)
            return found if dtype.compute is dtype else Call("cast", (found,), dtype)

        return rewritten(body, node)


def _moved(node: Scalar, at: Mapping[str, Expr]) -> Scalar:
    match node:
        case Load(index=index):
            return replace(node, index=tuple(e.substitute(at) for e in index))
        case Index(value=value):
            return replace(node, value=value.substitute(at))
    return node


def softmax_rows(scores: Op, readers: Readers) -> SoftmaxRows | None:
    """The attention whose scores an op makes, or None."""
    if scores.kind is not Kind.CONTRACT or not readers.own(scores):
        return None
    names = [sole_name(e) for e in scores.out.index]
    for place in (n for n, name in reversed(list(enumerate(names))) if name is not None):
        found = _walked(scores, None, place, readers)
        if found is None:
            continue
        row = next(_compared_places(found, readers), None)
        return found if row is None else _walked(scores, row, place, readers) or found
    return None


def _compared_places(found: SoftmaxRows, readers: Readers) -> Iterator[int]:
    """Places of scores whose positions are compared with those of keys."""
    scores = found.ops[0].out.tensor
    for op in found.ops[1:]:
        key = found.walks[op.name].key
        places = {
            sole_name(e): place
            for load in loads(op)
            if load.tensor == scores
            for place, e in enumerate(load.index)
        }
        for node in walk(readers.inlined(op.body)):
            if isinstance(node, Call) and node.op in _COMPARED:
                names = {n for v in walk(node) if isinstance(v, Index) for n in v.value.names}
                if key in names:
                    yield from (places[n] for n in sorted(names) if n != key and n in places)


def _walked(scores: Op, row: int | None, key: int, readers: Readers) -> SoftmaxRows | None:
    """The ops that follow scores along rows and keys, or None if they are no attention."""
    walking = _Walking(readers, scores, row, key)
    waiting, taken = list(readers.of[scores.out.tensor]), set[int]()
    while waiting:
        position = heappop(waiting)
        if position in taken:
            continue
        taken.add(position)
        op = readers.kernel.ops[position]
        if not walking.take(op):
            return None
        if op.out.tensor in walking.tensors:
            for other in readers.of[op.out.tensor]:
                heappush(waiting, other)
    return walking.found()


class _Walking:
    """Ops that are taken in order, with what they walk."""

    def __init__(self, readers: Readers, scores: Op, row: int | None, key: int) -> None:
        self.readers = readers
        self.tensors = {scores.out.tensor: Walk(row, key)}
        self.ops = [scores]
        self.products: set[str] = set()
        self.read_elsewhere: set[str] = set()
        names = [sole_name(e) for e in scores.out.index]
        dims = Walk(None if row is None else names[row], names[key])
        self.walks = {scores.name: dims}
        sizes = {d.name: d.extent.constant for d in scores.dims}
        self.rows = 1 if row is None else sizes.get(str(dims.row))
        self.keys = sizes.get(str(dims.key))

    def take(self, op: Op) -> bool:
        """Lets an op follow if it reads what is walked; False where that cannot be cut."""
        if any(k.tensor in self.tensors for k in op.lookups):
            return False
        read = [load for load in loads(op) if load.tensor in self.tensors]
        if all(load.tensor in self.products for load in read):
            self.read_elsewhere |= {load.tensor for load in read}
            return True
        walk_of = self._dims(op, read)
        if walk_of is None or op.kind not in _WALKING or op.accumulate:
            return False
        if any(self._is_score(load, walk_of) for load in loads(op)):
            return False
        self.ops.append(op)
        self.walks[op.name] = walk_of
        return self._keep(op, walk_of, any(load.tensor in self.products for load in read))

    def _is_score(self, load: Load, dims: Walk) -> bool:
        """Whether a load is of another product of rows and keys, which would have to be whole."""
        if load.tensor in self.tensors or load.tensor not in self.readers.products:
            return False
        walked = {n for e in load.index for n in e.names}
        return dims.row in walked and dims.key in walked

    def _dims(self, op: Op, read: list[Load]) -> Walk | None:
        rows, keys = set[str | None](), set[str | None]()
        for load in read:
            places = self.tensors[load.tensor]
            for place, names in ((places.row, rows), (places.key, keys)):
                if place is not None:
                    names.add(sole_name(load.index[int(place)]))
            if load.guarded:
                return None
        if None in rows | keys or max(len(rows), len(keys)) > 1:
            return None
        found = Walk(next(iter(rows), None), next(iter(keys), None))
        sizes = {d.name: d.extent.constant for d in (*op.dims, *op.rdims)}
        for name, extent in ((found.row, self.rows), (found.key, self.keys)):
            if name is not None and sizes.get(str(name)) != extent:
                return None
        return None if found.row in {d.name for d in op.rdims} else found

    def _keep(self, op: Op, dims: Walk, reads_product: bool) -> bool:
        """Notes what an op writes; False where it leaves keys behind that nobody reads here."""
        places = [_place(op, name) for name in (dims.row, dims.key)]
        reduces = dims.key in {d.name for d in op.rdims}
        if dims.row is not None and places[0] is None:
            return False
        if dims.key is not None and not reduces:
            if places[1] is None or not self.readers.own(op):
                return False
            self.tensors[op.out.tensor] = Walk(*places)
            return True
        if reduces and len(op.rdims) > 1:
            return False
        if self.readers.own(op) and not reads_product:
            self.tensors[op.out.tensor] = Walk(places[0], None)
            if op.kind is Kind.CONTRACT:
                self.products.add(op.out.tensor)
        return True

    def found(self) -> SoftmaxRows | None:
        over = [op for op in self.ops if self.walks[op.name].key in {d.name for d in op.rdims}]
        products = frozenset(op.name for op in over if op.kind is Kind.CONTRACT)
        if self.rows is None or self.keys is None:
            return None
        if not products or all(op.reduce != "max" for op in over):
            return None
        tensors = {t: w for t, w in self.tensors.items() if t not in self.read_elsewhere}
        return SoftmaxRows(tuple(self.ops), self.rows, self.keys, self.walks, tensors, products)


def _place(op: Op, name: str | int | None) -> int | None:
    """The place of a result's index that is a dim, if that is the only one that has it."""
    places = [n for n, e in enumerate(op.out.index) if name in e.names]
    return places[0] if len(places) == 1 and sole_name(op.out.index[places[0]]) == name else None


# --- what a mask hides ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Masked:
    """An attention with the bodies of its ops as functions of positions.

    Attributes:
        maxima: tensors of the maxima that are subtracted from what they are the maxima of.
    """

    of: SoftmaxRows
    kernel: Kernel
    bodies: Mapping[str, Scalar]
    maxima: frozenset[str]

    @staticmethod
    def of_rows(found: SoftmaxRows, readers: Readers) -> Masked:
        walked = [op for op in found.ops[1:] if found.walks[op.name].key is not None]
        bodies = {op.name: readers.inlined(op.body) for op in walked}
        under = _subtracted(op.body for op in walked)
        maxima = frozenset(t for value, t in under if t in found.maxima_of(value))
        return Masked(found, readers.kernel, bodies, maxima)

    def hides(self, rows: Span, keys: Span) -> bool:
        """Whether nothing of some keys counts for any of some rows."""
        known: dict[str, float] = {}
        for op in self.of.ops:
            if op.name not in self.bodies:
                continue
            walks = self.of.walks[op.name]
            if op.name in self.of.products:
                if all(known.get(load.tensor) != 0 for load in loads(op)):
                    return False
                continue
            value = self._constant(self._restricted(op, rows, keys), known)
            if walks.key in {d.name for d in op.dims}:
                if value is not None:
                    known[op.out.tensor] = value
            elif value is None or not _is_neutral(op, value):
                return False
        return True

    def _restricted(self, op: Op, rows: Span, keys: Span) -> Scalar:
        """The body of an op on a part of its rows and keys."""
        walks = self.of.walks[op.name]
        spans = {walks.row: rows, walks.key: keys}
        at = {str(n): Expr.var(str(n)) + first for n, (first, _) in spans.items() if n is not None}
        extents = {d.name: d.extent for d in (*op.dims, *op.rdims)}
        extents |= {str(n): Expr.of(count) for n, (_, count) in spans.items() if n is not None}
        body = rewritten(self.bodies[op.name], lambda node: _moved(node, at))
        return folded_body(body, Facts(extents, self.kernel.limits), self.kernel)

    def _constant(self, node: Scalar, known: Mapping[str, float]) -> float | None:
        """The value that a body has whatever it loads, or None.

        A row whose maximum is -inf or NaN is NaN by the keys that are left.
        """
        match node:
            case Const(value=value):
                return float(value)
            case Load(tensor=tensor):
                return known.get(tensor)
            case Call("sub", (one, other)) if _row_tensor(other) in self.maxima:
                return -inf if self._constant(one, known) == -inf else None
            case Call("div", (one, other)) if _row_tensor(other) in self.of.sums:
                return 0.0 if self._constant(one, known) == 0 else None
            case Call(op=op, args=args, dtype=dtype):
                values = [self._constant(a, known) for a in args]
                given = [v for v in values if v is not None]
                if len(given) == len(values):
                    return _applied(op, given, dtype)
        return None


def _row_tensor(node: Scalar) -> str | None:
    """The tensor that a value is loaded from, be it bounded from below."""
    match node:
        case Call("max", (Load(tensor=tensor), Const())) | Call(
            "max", (Const(), Load(tensor=tensor))
        ):
            return tensor
        case Load(tensor=tensor):
            return tensor
    return None


def _subtracted(bodies: Iterable[Scalar]) -> Iterator[tuple[Scalar, str]]:
    """What tensors of a row each are subtracted from."""
    for body in bodies:
        for node in walk(body):
            match node:
                case Call("sub", (one, other)) if (tensor := _row_tensor(other)) is not None:
                    yield one, tensor


def _is_neutral(op: Op, value: float) -> bool:
    match op.body:
        case Call("max", (_, Const(value=least))) if op.reduce == "max" and least == value:
            return True  # what others are at least
    return _NEUTRAL.get(op.reduce) == value


def _applied(op: str, values: Sequence[float], dtype: DType) -> float | None:
    """A function of constants, where no rounding is in doubt."""
    match op, values:
        case "cast", [x] if dtype.compute is dtype or x in (0, inf, -inf):
            return x if dtype.is_float else None
        case (("exp" | "exp2"), [x]) if x == -inf:
            return 0.0
        case "mul", [x, y] if abs(x) == inf and y > 0:
            return x
        case "mul", [x, y] if abs(y) == inf and x > 0:
            return y
        case "add", [x, y] if -inf in (x, y) and inf not in (x, y):
            return -inf
        case "max", [x, y]:
            return max(x, y)
        case "min", [x, y]:
            return min(x, y)
        case "where", [_, x, y] if x == y:
            return x
    return None
