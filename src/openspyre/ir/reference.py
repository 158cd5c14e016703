"""What a Kernel means, in numpy on whole tensors: the oracle that no stage may change.

Plan tables are ignored. Arrays have a tensor's logical shape; strides do not matter here. numpy
has no bfloat16 and no fp8: such a tensor is a float32 array whose values are exact in the dtype
(`cast` rounds to it). Sums and products of floats are taken in float64 and rounded to float32
once. Elements that nothing has written are poison (NaN, or the most negative integer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openspyre.errors import CardError, InvalidKernel
from openspyre.ir.index import Binary, Expr, Name
from openspyre.ir.kernel import (
    Call,
    Const,
    Dim,
    DType,
    Index,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Scalar,
    Tensor,
    operand,
)
from openspyre.ir.ops import TABLE, Array, Rounded

STORAGE: Mapping[DType, np.dtype[Any]] = MappingProxyType(
    {
        DType.F16: np.dtype(np.float16),
        DType.BF16: np.dtype(np.float32),
        DType.F32: np.dtype(np.float32),
        DType.I64: np.dtype(np.int64),
        DType.I32: np.dtype(np.int32),
        DType.I16: np.dtype(np.int16),
        DType.I8: np.dtype(np.int8),
        DType.U8: np.dtype(np.uint8),
        DType.BOOL: np.dtype(np.bool_),
        DType.F8E4M3: np.dtype(np.float32),
        DType.F8E5M2: np.dtype(np.float32),
    }
)
_REDUCE: Mapping[str, np.ufunc] = MappingProxyType(
    {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "any": np.logical_or,
    }
)


def evaluate(
    kernel: Kernel,
    inputs: Mapping[str, ArrayLike],
    sizes: Mapping[str, int] = MappingProxyType({}),
    *,
    keep_locals: bool = False,
    numbers: Numbers | None = None,
) -> dict[str, Array]:
    """The outputs and mutated inputs of a kernel (with `keep_locals` every local as well).

    Args:
        inputs: an array for every input, mutated input and scalar; an output that is given starts
            from it (an output may be written in part).
        sizes: the value of every symbol.
        numbers: how it computes; by default as the kernel says.

    Raises:
        InvalidKernel: an input that is missing or has the wrong shape, an unguarded index that
            leaves its tensor.
        CardError: a lookup outside its range.
    """
    values: dict[str, Array] = {}
    for _ in stepped(kernel, inputs, sizes, values, numbers=numbers):
        pass
    returned = {Role.OUTPUT, Role.MUTATED} | ({Role.LOCAL} if keep_locals else set())
    return {name: values[name] for name, t in kernel.tensors.items() if t.role in returned}


def stepped(
    kernel: Kernel,
    inputs: Mapping[str, ArrayLike],
    sizes: Mapping[str, int],
    values: dict[str, Array],
    *,
    numbers: Numbers | None = None,
) -> Iterator[Op]:
    """Evaluates a kernel op by op: every op is given before it runs.

    Args:
        values: holds every tensor as the ops so far have left it.
    """
    missing = [symbol for symbol in kernel.symbols if symbol not in sizes]
    if missing:
        raise InvalidKernel(f"no size for {', '.join(missing)}", why="the kernel's symbols")
    how = numbers or Numbers()
    with np.errstate(all="ignore"):
        for name, tensor in kernel.tensors.items():
            values[name] = _start(tensor, inputs, sizes, how)
    for op in kernel.ops:
        yield op
        with np.errstate(all="ignore"):
            _Nest(kernel, op, values, sizes, how).run()


class Numbers:
    """How a kernel is computed: this one rounds where the kernel says so, and nowhere else."""

    storage: Mapping[DType, np.dtype[Any]] = STORAGE

    def cast(self, values: Array, dtype: DType) -> Array:
        """Rounds (or wraps) to a dtype."""
        return cast(values, dtype)

    def widened(self, values: Array, dtype: DType) -> Array:
        """Stored elements of a dtype as values of its compute class."""
        return values.astype(self.storage[dtype.compute], copy=False)

    def called(self, meaning: Callable[..., Array], args: list[Array], dtype: DType) -> Array:
        """The value of an op of the table."""
        return meaning(*args).astype(self.storage[dtype.compute], copy=False)

    def summed(self, total: Array, spread: Callable[[], Array]) -> Array:
        """A sum of floats that was taken in float64.

        Args:
            spread: the root of the sum of the squares of what was added, times that of their count.
        """
        return total.astype(self.storage[DType.F32])


class Exact(Numbers):
    """Every float is a float64: what the kernel would compute if nothing were rounded."""

    storage = MappingProxyType(
        {d: np.dtype(np.float64) if d.is_float else kind for d, kind in STORAGE.items()}
    )

    def cast(self, values: Array, dtype: DType) -> Array:
        return values.astype(np.float64) if dtype.is_float else cast(values, dtype)

    def called(self, meaning: Callable[..., Array], args: list[Array], dtype: DType) -> Array:
        exact = meaning.exact if isinstance(meaning, Rounded) else meaning
        return np.asarray(exact(*args)).astype(self.storage[dtype.compute], copy=False)


class Noisy(Numbers):
    """Like `Numbers`, but every result of floats is off by as much as a unit of the card may be.

    What differs between two of them is what no comparison can hold against the card.
    """

    def __init__(self, seed: int, size: float = 2.0**-22) -> None:
        self._random = np.random.default_rng(seed)
        self._size = size

    def called(self, meaning: Callable[..., Array], args: list[Array], dtype: DType) -> Array:
        found = super().called(meaning, args, dtype)
        if found.dtype.kind != "f" or not isinstance(meaning, (Rounded, np.ufunc)):
            return found
        if meaning in _EXACT:
            return found
        return found * self._factors(found.shape)

    def summed(self, total: Array, spread: Callable[[], Array]) -> Array:
        off = spread() * (self._factors(total.shape) - 1)
        return super().summed(np.where(np.isfinite(off), total + off, total), spread)

    def _factors(self, shape: tuple[int, ...]) -> Array:
        drawn = self._random.random(shape, np.float32)
        return np.asarray(1 + np.float32(self._size) * (2 * drawn - 1))


# Ops whose results every unit rounds in the same way.
_EXACT = (np.negative, np.abs, np.minimum, np.maximum, np.floor, np.ceil, np.trunc, np.rint)


def cast(values: Array, dtype: DType) -> Array:
    """Rounds (or wraps) to a dtype; the result has its storage dtype.

    Floats round to nearest even, to integers toward zero; integers wrap; bool is `!= 0`.
    """
    target = STORAGE[dtype]
    if dtype is DType.BOOL:
        return np.asarray(values != 0)
    if dtype.is_float:
        single = np.asarray(values, np.float32)
        if dtype is DType.BF16:
            return _bfloat16(single)
        if dtype.is_fp8:
            return fp8_values(fp8_codes(single, dtype), dtype)
        return single.astype(target)
    if values.dtype.kind == "f" and target.itemsize < 4:
        return values.astype(np.int32).astype(target)
    return values.astype(target)


def widened(values: Array, dtype: DType) -> Array:
    """Stored elements of a dtype as values of its compute class."""
    return values.astype(STORAGE[dtype.compute], copy=False)


def _bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    kept = np.where(np.isnan(values), np.uint32(0x7FC00000), rounded).astype(np.uint32)
    return kept.view(np.float32).reshape(np.shape(values))


# Fraction bits, bias, the code of what is too large.
_FP8: Mapping[DType, tuple[int, int, int]] = MappingProxyType(
    {DType.F8E4M3: (3, 7, 0x7E), DType.F8E5M2: (2, 15, 0x7C)}
)


def fp8_codes(values: Array, dtype: DType) -> Array:
    """The codes of float32 values, rounded once to nearest even."""
    fraction, bias, limit = _FP8[dtype]
    size = np.abs(values.astype(np.float64))
    binade = np.maximum(np.frexp(np.where(np.isfinite(size), size, 1.0))[1] - 1, 1 - bias)
    binade = np.where(size == 0, 1 - bias, binade)
    steps = np.rint(np.ldexp(np.where(np.isfinite(size), size, 0.0), fraction - binade))
    codes = ((binade + bias - 1) << fraction) + steps.astype(np.int64)
    codes = np.where(np.isinf(size), limit, np.minimum(codes, limit))
    codes = np.where(np.isnan(size), 0x7F, codes)
    return np.asarray(codes | np.where(np.signbit(values), 0x80, 0), np.uint8)


def fp8_values(codes: Array, dtype: DType) -> Array:
    """The values of codes, as float32."""
    fraction, bias, limit = _FP8[dtype]
    rest = codes.astype(np.int64) & 0x7F
    exponent, steps = rest >> fraction, rest & ((1 << fraction) - 1)
    steps = steps + np.where(exponent == 0, 0, 1 << fraction)
    size = np.ldexp(steps.astype(np.float64), np.maximum(exponent, 1) - bias - fraction)
    if dtype is DType.F8E5M2:
        size = np.where(rest == limit, np.inf, size)
    size = np.where(rest > limit, np.nan, size)
    return np.asarray(np.where(codes & 0x80, -size, size), np.float32)


def _start(
    tensor: Tensor, inputs: Mapping[str, ArrayLike], sizes: Mapping[str, int], numbers: Numbers
) -> Array:
    shape = tuple(extent.evaluate(sizes) for extent in tensor.shape)
    dtype = numbers.storage[tensor.dtype]
    given = inputs.get(tensor.name)
    if given is not None:
        array = np.asarray(given)
        if array.shape != shape:
            raise InvalidKernel(f"{tensor.name} has shape {array.shape}", why=f"not {shape}")
        return numbers.cast(array, tensor.dtype).copy()
    if tensor.role in (Role.INPUT, Role.MUTATED, Role.SCALAR):
        raise InvalidKernel(f"no value for the {tensor.role.value} {tensor.name}")
    poison = np.nan if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min
    return np.full(shape, poison, dtype)


@dataclass(frozen=True, slots=True)
class _Looked:
    """A lookup's values over the space; `low` and `high` are its extremes."""

    lookup: Lookup
    values: Array
    inside: bool


class _Nest:
    """One op over its space; every axis of an array is a dim (extent 1: it does not vary)."""

    def __init__(
        self, kernel: Kernel, op: Op, values: dict[str, Array], sizes: Mapping[str, int],
        numbers: Numbers,
    ) -> None:  # fmt: skip
        self.kernel, self.op, self.values, self.numbers = kernel, op, values, numbers
        self.space: tuple[Dim, ...] = op.dims + op.rdims
        self.extents = tuple(dim.extent.evaluate(sizes) for dim in self.space)
        self.axis = {dim.name: axis for axis, dim in enumerate(self.space)}
        self.env: dict[str, Array] = {s: np.asarray(v, np.int64) for s, v in sizes.items()}
        for axis, (dim, extent) in enumerate(zip(self.space, self.extents, strict=True)):
            shape = [1] * len(self.space)
            shape[axis] = extent
            self.env[dim.name] = np.arange(extent, dtype=np.int64).reshape(shape)
        self.lookups: dict[str, _Looked] = {}
        self.memo: dict[int, Array] = {}

    def run(self) -> None:
        op = self.op
        if 0 in self.extents[: len(op.dims)] or (op.kind is Kind.SCAN and 0 in self.extents):
            return
        if 0 in self.extents:
            self.store(self.neutral(), op.dims)
            return
        for lookup in op.lookups:
            self.look_up(lookup)
        match op.kind:
            case Kind.CONTRACT:
                self.store(self.contraction(), op.dims)
            case Kind.REDUCE:
                self.store(self.reduction(), op.dims)
            case Kind.SCAN:
                self.store(self.running(), self.space)
            case Kind.MAP | Kind.GATHER | Kind.SCATTER:
                self.store(self.value(op.body), self.space)

    # --- indices ---

    def look_up(self, lookup: Lookup) -> None:
        stored, inside = self.elements(lookup.tensor, lookup.index)
        values = stored.astype(np.int64)
        size = self.index(lookup.size)
        if lookup.wrap:
            values = np.where(values < 0, values + size, values)
        fits = bool(np.all((values >= 0) & (values < size) & inside))
        self.lookups[lookup.name] = _Looked(lookup, values, fits)
        self.env[lookup.name] = values

    def index(self, expr: Expr) -> Array:
        """An index expression over the whole space."""
        total: Array = np.zeros((1,) * len(self.space), np.int64)
        for monomial, coefficient in expr.terms:
            product: Array = np.asarray(coefficient, np.int64)
            for atom in monomial:
                match atom:
                    case Name(name):
                        product = product * self.env[name]
                    case Binary("//", left, right):
                        product = product * (self.index(left) // self.index(right))
                    case Binary("%", left, right):
                        product = product * (self.index(left) % self.index(right))
                    case Binary("min", left, right):
                        product = product * np.minimum(self.index(left), self.index(right))
                    case Binary(_, left, right):
                        product = product * np.maximum(self.index(left), self.index(right))
            total = total + product
        return total

    def check_lookups(self, index: tuple[Expr, ...]) -> None:
        for expr in index:
            for name in expr.names & self.lookups.keys():
                looked = self.lookups[name]
                if looked.inside:
                    continue
                values, size = looked.values, int(self.index(looked.lookup.size).reshape(-1)[0])
                bad = values[(values < 0) | (values >= size)]
                raise CardError(
                    f"index out of range: {int(bad.reshape(-1)[0]) if bad.size else '?'}",
                    why=f"{looked.lookup.tensor} indexes a dim of {size}",
                    hint="check the indices against the size of what they index",
                    at=self.op.source or self.op.name,
                )

    def elements(self, name: str, index: tuple[Expr, ...]) -> tuple[Array, Array]:
        """The stored elements at an index (0 outside of the tensor), and where it is inside."""
        array = self.values[name]
        if (view := self.plain_view(array, index)) is not None:
            return view, np.asarray(True)
        inside: Array = np.asarray(True)
        places = []
        for expr, extent in zip(index, array.shape, strict=True):
            at = self.index(expr)
            inside = inside & (at >= 0) & (at < extent)
            places.append(np.clip(at, 0, max(extent - 1, 0)))
        if array.size == 0:
            return np.zeros(np.broadcast_shapes(inside.shape), array.dtype), np.asarray(False)
        found = array[tuple(places)] if places else array.reshape((1,) * len(self.space))
        return np.where(inside, found, np.zeros((), array.dtype)), inside

    def plain_view(self, array: Array, index: tuple[Expr, ...]) -> Array | None:
        """The elements as a view, when every index is a dim of its own or a constant inside."""
        cuts: list[slice] = []
        fixed: list[int] = []  # dims of the tensor that a constant picks
        walked: dict[int, int] = {}  # axis of the space -> dim of the tensor
        for place, (expr, extent) in enumerate(zip(index, array.shape, strict=True)):
            if (constant := expr.constant) is not None:
                if not 0 <= constant < extent:
                    return None
                cuts.append(slice(constant, constant + 1))
                fixed.append(place)
                continue
            axis = self.axis.get(str(expr))
            if axis is None or axis in walked or self.extents[axis] > extent:
                return None
            cuts.append(slice(0, self.extents[axis]))
            walked[axis] = place
        shape = [self.extents[a] if a in walked else 1 for a in range(len(self.space))]
        order = fixed + [walked[axis] for axis in sorted(walked)]
        part = array[tuple(cuts)] if cuts else array
        return part.transpose(order).reshape(shape)

    # --- values ---

    def value(self, node: Scalar) -> Array:
        """A scalar expression over the space, in its compute class."""
        if (known := self.memo.get(id(node))) is not None:
            return known
        storage = self.numbers.storage
        match node:
            case Load(tensor, index, dtype, guarded):
                found = self.load(tensor, index, guarded=guarded)
                found = found.astype(storage[dtype], copy=False)
            case Const(value, dtype):
                found = np.full((1,) * len(self.space), value).astype(storage[dtype])
            case Index(value, dtype):
                found = self.index(value).astype(storage[dtype])
            case Call("cast", (arg,), dtype):
                found = self.numbers.widened(self.numbers.cast(self.value(arg), dtype), dtype)
            case Call(op, args, dtype):
                meaning = TABLE[op].meaning
                if meaning is None:
                    raise InvalidKernel(f"{op} has no meaning on {len(args)} arguments")
                found = self.numbers.called(meaning, [self.value(arg) for arg in args], dtype)
        self.memo[id(node)] = found
        return found

    def load(self, tensor: str, index: tuple[Expr, ...], *, guarded: bool) -> Array:
        if not guarded:
            self.check_lookups(index)
        found, inside = self.elements(tensor, index)
        if not guarded and not np.all(inside):
            raise InvalidKernel(
                f"{tensor}[{', '.join(map(str, index))}] leaves the tensor",
                why=f"its shape is {self.values[tensor].shape}, the space {self.extents}",
                at=self.op.name,
            )
        return self.numbers.widened(found, self.kernel.tensors[tensor].dtype)

    def neutral(self) -> Array:
        """What a reduction over nothing gives."""
        dtype = self.numbers.storage[self.op.body.dtype.compute]
        highest: float = np.inf if dtype.kind == "f" else 1
        lowest: float = -np.inf if dtype.kind == "f" else 0
        if dtype.kind == "i":
            lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
        by_name = {"prod": 1, "max": lowest, "min": highest}
        return np.full((1,) * len(self.op.dims), by_name.get(self.op.reduce or "", 0), dtype)

    def reduction(self) -> Array:
        values = np.broadcast_to(self.value(self.op.body), self.extents)
        axes = tuple(range(len(self.op.dims), len(self.space)))
        reduce = self.reduce_name()
        if values.dtype.kind == "f" and reduce in ("sum", "prod"):
            total = np.asarray(_REDUCE[reduce].reduce(values, axis=axes, dtype=np.float64))
            return self.numbers.summed(total, lambda: _spread(values, axes))
        return np.asarray(_REDUCE[reduce].reduce(values, axis=axes, dtype=values.dtype))

    def running(self) -> Array:
        values = np.broadcast_to(self.value(self.op.body), self.extents)
        wide = np.dtype(np.float64) if values.dtype.kind == "f" else values.dtype
        return (
            _REDUCE[self.reduce_name()]
            .accumulate(values.astype(wide), axis=-1, dtype=wide)
            .astype(values.dtype)
        )

    def reduce_name(self) -> str:
        reduce = self.op.reduce
        if reduce is None or reduce not in _REDUCE:
            raise InvalidKernel(f"{self.op.name} reduces by {reduce}", why="no such reduction")
        return reduce

    def contraction(self) -> Array:
        if not self.op.body.dtype.is_float:
            return self.reduction()
        match self.op.body:
            case Call("mul", (left, right)) if operand(left) and operand(right):
                return self.matmul(self.value(left), self.value(right))
        raise InvalidKernel(f"{self.op.name} is no product of two loads", why="it is a contract")

    def matmul(self, left: Array, right: Array) -> Array:
        """sum over the rdims of left * right; wide, and only over the axes that each has."""
        count, outer = len(self.space), len(self.op.dims)
        operands: list[Any] = []
        for array in (left, right):
            axes = [a for a in range(count) if array.shape[a] != 1]
            operands += [array.reshape([array.shape[a] for a in axes]).astype(np.float64), axes]
        present = {axis for axes in operands[1::2] for axis in axes}
        kept = [a for a in range(outer) if a in present]
        total = np.asarray(np.einsum(*operands, kept, optimize=True))
        for axis in range(outer, count):
            if axis not in present:
                total = total * self.extents[axis]
        shape = [self.extents[a] if a in present else 1 for a in range(outer)]

        def spread() -> Array:
            a, b = (np.square(operands[i], dtype=np.float32) for i in (0, 2))
            squares = np.einsum(a, operands[1], b, operands[3], kept, optimize=True)
            points = prod(self.extents[outer:])
            return np.asarray(np.sqrt(squares * points))

        return self.numbers.summed(total, spread).reshape(shape)

    # --- stores ---

    def store(self, values: Array, dims: tuple[Dim, ...]) -> None:
        op = self.op
        array = self.values[op.out.tensor]
        dtype = self.kernel.tensors[op.out.tensor].dtype
        extents = self.extents[: len(dims)]
        stored = np.broadcast_to(self.numbers.cast(values, dtype), extents)
        self.check_lookups(op.out.index)
        if not op.accumulate and not op.lookups and len(dims) == len(self.space):
            view = self.plain_view(array, op.out.index)
            if view is not None and view.shape == stored.shape:
                view[...] = stored
                return
        places = self.places(array, len(dims), extents)
        flat = array.reshape(-1)
        if op.accumulate:
            _accumulate(flat, places, stored.reshape(-1), dtype, self.numbers)
        else:
            flat[places] = stored.reshape(-1)
        self.values[op.out.tensor] = flat.reshape(array.shape)

    def places(self, array: Array, count: int, extents: tuple[int, ...]) -> Array:
        """Flat positions of the store, in row-major order of the space."""
        flat: Array = np.zeros((1,) * count, np.int64)
        for expr, extent in zip(self.op.out.index, array.shape, strict=True):
            at = self.index(expr)
            if at.size and not (at.min() >= 0 and at.max() < extent):
                raise InvalidKernel(
                    f"{self.op.name} stores outside of {self.op.out.tensor}",
                    why=f"index {expr} over {self.extents}, extent {extent}",
                )
            flat = flat * extent + at.reshape(at.shape[:count])
        return np.broadcast_to(flat, extents).reshape(-1)


def _spread(values: Array, axes: tuple[int, ...]) -> Array:
    """How far sums over axes may be off, in units of the last place."""
    count = prod(values.shape[axis] for axis in axes)
    return np.asarray(np.sqrt(np.square(values, dtype=np.float64).sum(axis=axes) * count))


def _accumulate(flat: Array, places: Array, values: Array, dtype: DType, numbers: Numbers) -> None:
    """Adds in order, rounding after every addition: all first hits, then all second ones, ..."""
    order = np.argsort(places, kind="stable")
    hit = places[order]
    first = np.flatnonzero(np.r_[True, hit[1:] != hit[:-1]]) if hit.size else hit
    rank = np.arange(hit.size) - np.repeat(first, np.diff(np.r_[first, hit.size]))
    for turn in range(int(rank.max()) + 1 if rank.size else 0):
        chosen = order[rank == turn]
        total = numbers.widened(flat[places[chosen]], dtype)
        total = total + numbers.widened(values[chosen], dtype)
        flat[places[chosen]] = numbers.cast(total, dtype)
