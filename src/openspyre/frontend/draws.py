"""The kernels of eager random ops: one draw per element, numbered in row-major logical order.

The native side (csrc/device/draw.cpp) asks for one by kind, dtypes and the form of the strides, and
launches it with the generator's seed and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi
from types import MappingProxyType

import torch

from openspyre.frontend import distributions
from openspyre.frontend.values import STORED, Arithmetic, Value
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Dim, DType, Kernel, Kind, Load, Op, Role, Tensor
from openspyre.ir.text import print_kernel
from openspyre.runtime import launch

F32, I64 = torch.float32, torch.int64
_TORCH: Mapping[DType, torch.dtype] = MappingProxyType({d: t for t, d in STORED.items()})
_DIGITS: Mapping[DType, int] = MappingProxyType({DType.F32: 24, DType.F16: 11, DType.BF16: 8})
_STRIDES = (2, 2**40)  # what a stride may be that is not 0 or 1

Form = tuple[str, tuple[int, ...]]  # a tensor's dtype, and its stride per dim: 0, 1, or -1: any


@dataclass(frozen=True, slots=True)
class Point:
    """One element of a draw.

    Attributes:
        bits: 64 random bits of its own.
        read: the elements of the tensors that are read.
        parameters: launch scalars, in order.
        dtype: of the last tensor written.
    """

    a: Arithmetic
    bits: Value
    read: tuple[Value, ...]
    parameters: tuple[Value, ...]
    dtype: DType

    def scaled(self, value: Value, factor: Value, added: Value) -> Value:
        return self.a.apply("add", self.a.apply("mul", value, factor), added)


@dataclass(frozen=True, slots=True)
class Draw:
    """What a kind of draw takes, and its results at a point, one per tensor written.

    Attributes:
        reads: how many tensors are read.
        floats, whole: how many float parameters there are, and int64 ones (two scalars each).
    """

    values: Callable[[Point], Sequence[Value]]
    floats: int = 0
    whole: int = 0
    reads: int = 0


def _uniform(p: Point) -> list[Value]:
    low, high, extent = p.parameters
    part = distributions.fraction(p.a, p.bits, _DIGITS[p.dtype])
    value = p.a.converted(p.scaled(part, extent, low), _TORCH[p.dtype])
    # Rounding may reach the end, which is no part of the range.
    return [p.a.where(p.a.apply("ge", value, high), low, value)]


def _normal(p: Point) -> list[Value]:
    mean, std = p.parameters
    return [p.scaled(distributions.normal(p.a, p.bits), std, mean)]


def _log_normal(p: Point) -> list[Value]:
    return [p.a.apply("exp", value) for value in _normal(p)]


def _exponential(p: Point) -> list[Value]:
    (rate,) = p.parameters
    least = 2.0**-24 if p.dtype is DType.F16 else 2.0**-25  # not 0 when stored
    return [p.a.apply("div", distributions.exponential(p.a, p.bits, least), rate)]


def _cauchy(p: Point) -> list[Value]:
    median, sigma = p.parameters
    angle = p.a.apply("mul", p.a.apply("sub", distributions.fraction(p.a, p.bits), 0.5), pi)
    return [p.scaled(p.a.apply("tan", angle), sigma, median)]


def _geometric(p: Point) -> list[Value]:
    (log_failure,) = p.parameters
    logarithm = p.a.apply("log", distributions.positive_fraction(p.a, p.bits))
    count = p.a.apply("ceil", p.a.apply("div", logarithm, log_failure))
    return [p.a.apply("max", count, 1.0)]


def _integers(p: Point) -> list[Value]:
    low, extent = p.parameters
    return [distributions.whole(p.a, p.bits, low, extent)]


def _chance(p: Point, probability: Value) -> Value:
    return p.a.apply("lt", distributions.fraction(p.a, p.bits), probability)


def _bernoulli(p: Point) -> list[Value]:
    return [_chance(p, p.parameters[0])]


def _bernoulli_each(p: Point) -> list[Value]:
    return [_chance(p, p.read[0])]


def _dropout(p: Point) -> list[Value]:
    keep, scale = p.parameters
    mask = _chance(p, keep)
    kept = p.a.apply("mul", p.read[0], p.a.converted(mask, F32))  # NaN is not dropped
    return [mask, p.a.apply("mul", kept, scale)]


DRAWS: Mapping[str, Draw] = MappingProxyType(
    {
        "uniform": Draw(_uniform, floats=3),  # low, high, high - low
        "normal": Draw(_normal, floats=2),  # mean, standard deviation
        "log_normal": Draw(_log_normal, floats=2),  # of the logarithm
        "exponential": Draw(_exponential, floats=1),  # rate
        "cauchy": Draw(_cauchy, floats=2),  # median, sigma
        "geometric": Draw(_geometric, floats=1),  # log(1 - p)
        "integers": Draw(_integers, whole=2),  # low, extent
        "bernoulli": Draw(_bernoulli, floats=1),  # p
        "bernoulli_each": Draw(_bernoulli_each, reads=1),
        "dropout": Draw(_dropout, floats=2, reads=1),  # 1 - p, scale; writes mask and result
    }
)


def kernel(kind: str, forms: tuple[Form, ...]) -> launch.Kernel:
    """The kernel of a draw: call it with tensors, seed and offset, parameters, sizes, strides.

    An int64 scalar is passed as its low and its high word; strides are those of form -1, tensor by
    tensor.
    """
    return launch.load_kernel(print_kernel(region(kind, forms)))


def region(kind: str, forms: tuple[Form, ...]) -> Kernel:
    """The kernel of a draw, before compilation."""
    build = _Build(DRAWS[kind], forms)
    return Kernel(
        kind, tuple(build.symbols), tuple(build.tensors), build.tensors, build.ops(),
        limits=build.limits,
    )  # fmt: skip


class _Build:
    def __init__(self, draw: Draw, forms: tuple[Form, ...]) -> None:
        self.a, self.draw = Arithmetic(), draw
        rank = len(forms[0][1])
        self.dims = tuple(Dim(f"i{d}", Expr.var(f"n{d}")) for d in range(rank))
        self.place = tuple(Expr.var(dim.name) for dim in self.dims)
        self.symbols = [f"n{d}" for d in range(rank)]
        self.limits: dict[str, tuple[int, int]] = {}
        self.tensors: dict[str, Tensor] = {}
        for number, (dtype, strides) in enumerate(forms):
            self._add_tensor(number, DType(dtype), strides)
        self.limits = {s: self.limits.get(s, (1, 2**40)) for s in self.symbols}
        self.seed, self.offset = self._whole("seed"), self._whole("offset")
        self.parameters = tuple(self._scalar(f"p{k}", F32) for k in range(draw.floats))
        self.parameters += tuple(self._whole(f"q{k}") for k in range(draw.whole))

    def _add_tensor(self, number: int, dtype: DType, strides: tuple[int, ...]) -> None:
        found = []
        for dim, stride in enumerate(strides):
            symbol = f"s{number}_{dim}"
            if stride < 0:
                self.symbols.append(symbol)
                self.limits[symbol] = _STRIDES
            found.append(Expr.var(symbol) if stride < 0 else Expr.of(stride))
        name = f"t{number}"
        role = Role.INPUT if number < self.draw.reads else Role.OUTPUT
        shape = tuple(dim.extent for dim in self.dims)
        self.tensors[name] = Tensor(name, dtype, shape, role, tuple(found))

    def _scalar(self, name: str, dtype: torch.dtype) -> Value:
        self.tensors[name] = Tensor(name, STORED[dtype], (), Role.SCALAR)
        return self.a.load(Load(name, (), STORED[dtype]), dtype)

    def _whole(self, name: str) -> Value:
        low, high = self._scalar(f"{name}_low", I64), self._scalar(f"{name}_high", I64)
        return self.a.apply("or", self.a.apply("shl", high, 32), low)

    def ops(self) -> tuple[Op, ...]:
        names = [name for name, t in self.tensors.items() if t.role is Role.OUTPUT]
        values = self.draw.values(self._point(self.tensors[names[-1]].dtype))
        return tuple(
            self._op(f"draw{k}", name, value)
            for k, (name, value) in enumerate(zip(names, values, strict=True))
        )

    def _op(self, name: str, tensor: str, value: Value) -> Op:
        stored = self.a.converted(value, _TORCH[self.tensors[tensor].dtype])
        return Op(name, Kind.MAP, self.dims, stored.scalar, Access(tensor, self.place))

    def _point(self, dtype: DType) -> Point:
        number = Expr.of(0)
        for dim, place in zip(self.dims, self.place, strict=True):
            number = number * dim.extent + place
        counter = self.a.apply("add", self.a.index(number), self.offset)
        read = tuple(
            self.a.load(Load(t.name, self.place, t.dtype.compute), _TORCH[t.dtype])
            for t in self.tensors.values()
            if t.role is Role.INPUT
        )
        bits = distributions.bits(self.a, self.seed, counter)
        return Point(self.a, bits, read, self.parameters, dtype)
