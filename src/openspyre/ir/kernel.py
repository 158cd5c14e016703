"""The Kernel: what to compute, on whole tensors, and the plan tables the stages fill.

A Kernel is a list of ops in order. An op is one loop nest: for every point of its iteration
space it evaluates one scalar expression and stores it (or combines it into a reduction). All of
it is immutable; a stage returns a new Kernel (`dataclasses.replace`).

Arithmetic. A value is of one of four compute classes: f32 (every float dtype widens to it), i64,
i32 (wraps at 32 bits) and bool. A load of f16 or fp8 gives an f32 value, exactly. Rounding to a
narrow float happens where the expression says `cast` to it and where a narrow tensor is stored,
nowhere else (numerics `ieee`). The same holds for int8, int16 and uint8 (wrap on cast, store).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Union

from openspyre.ir.index import Expr


class DType(Enum):
    """Element types; the value is the name in kernel text."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "b1"
    F8E4M3 = "f8e4m3"  # torch.float8_e4m3fn
    F8E5M2 = "f8e5m2"

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.BF16, DType.F32) or self.is_fp8

    @property
    def is_fp8(self) -> bool:
        return self in (DType.F8E4M3, DType.F8E5M2)

    @property
    def compute(self) -> DType:
        """The class a loaded value has: f32, i64, i32 or bool (narrow integers widen to i32)."""
        if self.is_float:
            return DType.F32
        return DType.I32 if self in (DType.I16, DType.I8, DType.U8) else self


_BYTES = {
    DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.I64: 8, DType.I32: 4,
    DType.I16: 2, DType.I8: 1, DType.U8: 1, DType.BOOL: 1,
    DType.F8E4M3: 1, DType.F8E5M2: 1,
}  # fmt: skip


class Role(Enum):
    """Who owns a tensor. Everything but LOCAL is plain bytes at its own strides."""

    INPUT = "input"
    OUTPUT = "output"
    MUTATED = "mutated"  # an input that the kernel also writes
    LOCAL = "local"  # lives only inside the kernel; its strides mean nothing
    SCALAR = "scalar"  # a 0-dim value passed at launch from the host (a float64 CPU tensor)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the kernel.

    Attributes:
        shape: extents, expressions over the kernel's symbols.
        strides: in elements, for every role but LOCAL and SCALAR; the address a launch passes is
            that of element zero. Zero and negative values are legal. Empty for LOCAL.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    role: Role
    strides: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an iteration space, with its extent over the kernel's symbols."""

    name: str
    extent: Expr


# --- scalar expressions: the value of an op at one point ------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """The element of `tensor` at `index`, one expression per dim of the tensor.

    An index is an expression over the op's dims, the kernel's symbols and the names of the op's
    lookups. `guarded` says that the index may leave the tensor; the value is then 0 there and
    the expression around it (a `where`) does not use it.
    """

    tensor: str
    index: tuple[Expr, ...]
    dtype: DType  # compute class of the value
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A literal of a compute class (for bool: 0 or 1)."""

    value: float | int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Index:
    """An index expression used as a value; its class is i64 (or i32 where a range proves it)."""

    value: Expr
    dtype: DType = DType.I64


@dataclass(frozen=True, slots=True)
class Call:
    """`op(*args)`, op a name of the op table (`ir/ops.py`).

    `dtype` is the class of the result. For `cast` it may be any DType: the value is rounded (or
    wrapped) to it and goes on in its compute class.
    """

    op: str
    args: tuple[Scalar, ...]
    dtype: DType


Scalar = Union[Load, Const, Index, Call]


# --- ops ------------------------------------------------------------------------------------


class Kind(Enum):
    MAP = "map"  # out[i] <- body
    REDUCE = "reduce"  # out[i] <- reduce over r of body
    CONTRACT = "contract"  # out[i] <- sum over r of a * b; body is Call("mul", (Load a, Load b))
    GATHER = "gather"  # a MAP some of whose loads use a lookup
    SCATTER = "scatter"  # a MAP whose store index uses a lookup; points in row-major order
    SCAN = "scan"  # out[i, r] <- running reduce over r (inclusive); r is the last dim


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index read from memory: `name` stands for tensor[index] in loads and the store.

    Attributes:
        tensor: an integer tensor.
        index: affine over the op's dims (no lookup inside a lookup).
        size: the extent of the dim it indexes; a value outside [0, size) (after `wrap`) is an
            error of the user's, raised with the op's source, unless the load is guarded.
        wrap: negative values count from the end.
    """

    name: str
    tensor: str
    index: tuple[Expr, ...]
    size: Expr
    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Where an op stores: a tensor and one index expression per dim of it."""

    tensor: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One loop nest.

    Attributes:
        dims: parallel dims, outermost first. May be empty (a scalar).
        rdims: reduced dims (REDUCE, CONTRACT) or the scanned dim (SCAN). An empty extent gives
            the neutral element.
        body: the value at one point of dims x rdims.
        out: for REDUCE and CONTRACT the index has no rdims. Only the points written change; an
            op may write a part of a tensor (`cat` is one op per piece).
        reduce: sum, max, min, prod, any (bool or); None for MAP, GATHER, SCATTER. Max and min
            propagate NaN. Sums of floats are f32.
        accumulate: SCATTER only: add to what is there instead of replacing it.
        source: the user's line or op names, for messages and reports.
    """

    name: str
    kind: Kind
    dims: tuple[Dim, ...]
    body: Scalar
    out: Access
    rdims: tuple[Dim, ...] = ()
    reduce: str | None = None
    lookups: tuple[Lookup, ...] = ()
    accumulate: bool = False
    source: str = ""


# --- plan tables ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StickLayout:
    """How a region-local tensor lies: its dims from outermost to the stick dim (last)."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """One tile loop: the axis it walks and how many points of it a tile holds at most."""

    axis: str
    tile: int


@dataclass(frozen=True, slots=True)
class Step:
    """Ops that run under the same tile loops on the same cores, in order.

    Attributes:
        axes: the step's shared axes with their extents.
        binding: for every op, which of its dims walks which shared axis.
        loops: tile loops over shared axes, outermost first.
        inner: for an op, tile loops of its own over its private dims, outermost first.
    """

    name: str
    ops: tuple[str, ...]
    axes: tuple[Dim, ...]
    binding: Mapping[str, Mapping[str, str]]  # op -> {dim of the op: shared axis}
    loops: tuple[Loop, ...] = ()
    inner: Mapping[str, tuple[Loop, ...]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Part:
    """One axis of a work division: `parts` cores share it, in units of `granule` points.

    Part p of an axis with extent E holds granules [p*G//parts, (p+1)*G//parts) of its
    G = ceil(E / granule). The core's coordinate is (core // stride) % parts.
    """

    axis: str
    parts: int
    stride: int
    granule: int = 1


@dataclass(frozen=True, slots=True)
class Division:
    """The split of a step over cores; the product of parts is at most the card's cores."""

    parts: tuple[Part, ...] = ()

    @property
    def cores(self) -> int:
        total = 1
        for part in self.parts:
            total *= part.parts
        return total


class Space(Enum):
    DEVICE = "device"
    LX = "lx"


@dataclass(frozen=True, slots=True)
class Residency:
    """Where a local tensor, or a tile of a step, lives.

    For LX: an offset, its bytes per core, its lifetime in steps. `last` is the step of a tile; one
    whose `first` is before that is loaded there, behind all that the earlier step loads.
    """

    space: Space
    offset: int
    bytes: int
    first: int
    last: int


class Fixed(Enum):
    """What a hint fixes."""

    DIVISION = "division"  # parts of an axis
    TILE = "tile"  # points of an axis, or of an op's own dim, in one trip of its loop
    RESIDENCY = "residency"  # where a local tensor lies that crosses steps


@dataclass(frozen=True, slots=True)
class Hint:
    """A decision of the plan that the user has taken.

    Attributes:
        name: an axis of steps (`i0`; `s1.i0` in step s1), an op's own dim (`contract0.r0`), or a
            local tensor.
        value: parts or points; for RESIDENCY a space.
    """

    what: Fixed
    name: str
    value: int | Space

    @property
    def count(self) -> int:
        """The parts or points."""
        if isinstance(self.value, Space):
            raise TypeError(f"{self} has no count")
        return self.value

    def __str__(self) -> str:
        value = self.value.value if isinstance(self.value, Space) else self.value
        return f"{self.what.value} {self.name}: {value}"


def _empty() -> Mapping[str, object]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Kernel:
    """A region: tensors, ops in order, and the plan.

    Attributes:
        symbols: size symbols in the order a launch passes them.
        arguments: names of the tensors a launch passes, in order (every role but LOCAL).
        limits: for every symbol the inclusive range [low, high] this plan must serve.
        hints: what the user has decided of the plan.
        weights: arguments that seldom change from launch to launch and may stay in LX between them.
        prologue: how many of the steps, the first ones, copy weights into local tensors that stay
            in LX; a launch that finds them there leaves these steps out.
        by_name: the ops.
    """

    name: str
    symbols: tuple[str, ...]
    arguments: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    limits: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    layouts: Mapping[str, StickLayout] = field(default_factory=lambda: MappingProxyType({}))
    steps: tuple[Step, ...] = ()
    divisions: Mapping[str, Division] = field(default_factory=lambda: MappingProxyType({}))
    residency: Mapping[str, Residency] = field(default_factory=lambda: MappingProxyType({}))
    hints: tuple[Hint, ...] = ()
    weights: tuple[str, ...] = ()
    prologue: int = 0
    by_name: Mapping[str, Op] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {op.name: op for op in self.ops})


def walk(body: Scalar) -> Iterator[Scalar]:
    """Every node of a scalar expression, arguments before their call."""
    return iter(_nodes(body, []))


def _nodes(body: Scalar, found: list[Scalar]) -> list[Scalar]:
    if isinstance(body, Call):
        for arg in body.args:
            _nodes(arg, found)
    found.append(body)
    return found


_HOLDS = {  # exactly
    DType.F8E4M3: (DType.F16, DType.BF16, DType.F32),
    DType.F8E5M2: (DType.F16, DType.BF16, DType.F32),
    DType.I8: (DType.F16, DType.BF16, DType.F32),
    DType.U8: (DType.F16, DType.BF16, DType.F32),
    DType.F16: (DType.F32,),
    DType.BF16: (DType.F32,),
}


def pt_dtypes(a: DType, b: DType) -> tuple[DType, DType] | None:
    """What PT takes operands of these dtypes as, or None: one float dtype for both, to which the
    narrower one is widened in LX, or either kind of fp8 for each.
    """
    if (a is b and a.is_float) or (a.is_fp8 and b.is_fp8):
        return a, b
    for narrow, wide in ((a, b), (b, a)):
        if wide in _HOLDS.get(narrow, ()):
            return wide, wide
    return None


def operand(value: Scalar) -> Load | None:
    """The load that an operand of a canonical contraction is, or of which it is computed in LX,
    cast to what PT takes: of its loads the one that walks most.
    """
    match value:
        case Load():
            return value
        case Call(op="cast", dtype=dtype) if dtype.is_float:
            found = [node for node in walk(value) if isinstance(node, Load)]
            return max(found, key=lambda x: len(_walked(x)), default=None)
    return None


def operand_dtype(value: Scalar, tensors: Mapping[str, Tensor]) -> DType:
    """That of an operand: as it is loaded, or as it is computed."""
    return tensors[value.tensor].dtype if isinstance(value, Load) else value.dtype


def _walked(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(e.names for e in load.index))


def loads(op: Op) -> tuple[Load, ...]:
    """The distinct loads of an op's body, in order."""
    return tuple(dict.fromkeys(n for n in walk(op.body) if isinstance(n, Load)))
