"""Reads kernel text; `text.py` prints it and describes the form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType

from openspyre.errors import InvalidKernel
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Dim,
    Division,
    Fixed,
    Hint,
    Kernel,
    Kind,
    Lookup,
    Loop,
    Op,
    Part,
    Residency,
    Role,
    Scalar,
    Space,
    Step,
    StickLayout,
    Tensor,
)
from openspyre.ir.ops import REDUCTIONS
from openspyre.ir.text_body import BodyReader, dtype_named, read_expr

_TENSOR = re.compile(r"([\w.]+): (\w+)(\[[^\]]*\])(?: strides (\[[^\]]*\]))?$")
_LOOKUP = re.compile(r"(\w+) = ([\w.]+)(\[[^\]]*\]) size (.*?)( wrap)?$")
_STORE = re.compile(r"([\w.]+)(\[[^\]]*\]) (<-|\+=) (?:(\w+): )?(.*)$")
_SHARED = re.compile(r"(%\d+) = (.*)$")
_PART = re.compile(r"(\w+) parts (\d+) stride (\d+) granule (\d+)$")
_RESIDENCY = re.compile(r"([\w.]+): (\w+) offset (\d+) bytes (\d+) steps (-?\d+)\.\.(-?\d+)$")
_HINT = re.compile(r"(division|tile|residency) ([\w.]+): (\d+|lx|device)$")
_NAMED = re.compile(r"([\w.]+):(?: (.*))?$")
_RANGE = re.compile(r"(\w+):(-?\d+)\.\.(-?\d+)$")


def parse_kernel(text: str) -> Kernel:
    """The kernel that `text` describes.

    Raises:
        InvalidKernel: text that does not parse; names the line, the reason and what to try.
    """
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        try:
            reader.line(stripped)
        except InvalidKernel as error:
            why = error.why or f"in `{stripped}`"
            raise InvalidKernel(error.what, why=why, hint=error.hint, at=f"line {number}") from None
        except RecursionError:
            raise InvalidKernel("the expression nests too deeply", at=f"line {number}") from None
    return reader.kernel()


@dataclass(slots=True)
class _OpenOp:
    """The op whose lines are being read."""

    name: str
    kind: Kind
    dims: tuple[Dim, ...]
    rdims: tuple[Dim, ...]
    lookups: list[Lookup] = field(default_factory=list)
    source: str = ""


class _Reader:
    def __init__(self) -> None:
        self.name: str | None = None
        self.symbols: list[str] = []
        self.arguments: list[str] = []
        self.limits: dict[str, tuple[int, int]] = {}
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.hints: list[Hint] = []
        self.weights: list[str] = []
        self.prologue = 0
        self.layouts: dict[str, StickLayout] = {}
        self.steps: list[Step] = []
        self.divisions: dict[str, Division] = {}
        self.residency: dict[str, Residency] = {}
        self.body = BodyReader(self.tensors)
        self.open: _OpenOp | None = None
        self.words: Mapping[str, Callable[[str], None]] = {
            "kernel": self.read_kernel,
            "symbols": lambda rest: self.symbols.extend(rest.split()),
            "arguments": lambda rest: self.arguments.extend(rest.split()),
            "weights": lambda rest: self.weights.extend(rest.split()),
            "limits": self.read_limits,
            **{role.value: self._tensor_reader(role) for role in Role},
            "op": self.read_op,
            "hint": self.read_hint,
            "layout": self.read_layout,
            "prologue": self.read_prologue,
            "step": self.read_step,
            "axes": lambda rest: self.extend_step(axes=_dims(rest)),
            "bind": self.read_bind,
            "loops": lambda rest: self.extend_step(loops=_loops(rest)),
            "inner": self.read_inner,
            "division": self.read_division,
            "residency": self.read_residency,
        }

    def line(self, line: str) -> None:
        if self.open is not None:
            self.read_op_line(self.open, line)
            return
        word, _, rest = line.partition(" ")
        read = self.words.get(word)
        if read is None:
            close = get_close_matches(word, self.words, 2)
            raise InvalidKernel(f"no line starts with {word!r}", hint=" or ".join(close))
        read(rest.strip())

    def kernel(self) -> Kernel:
        if self.open is not None:
            raise InvalidKernel(
                f"op {self.open.name} has no body", why="the text ends", hint="out[...] <- value"
            )
        if self.name is None:
            raise InvalidKernel("there is no kernel", why="no line `kernel NAME`")
        return Kernel(
            self.name,
            tuple(self.symbols),
            tuple(self.arguments),
            MappingProxyType(self.tensors),
            tuple(self.ops),
            MappingProxyType(self.limits),
            MappingProxyType(self.layouts),
            tuple(self.steps),
            MappingProxyType(self.divisions),
            MappingProxyType(self.residency),
            tuple(self.hints),
            tuple(self.weights),
            self.prologue,
        )

    # --- tensors ---

    def read_kernel(self, rest: str) -> None:
        if self.name is not None:
            raise InvalidKernel("a second `kernel` line", hint="one kernel per text")
        self.name = _string(rest) if rest.startswith('"') else rest

    def read_limits(self, rest: str) -> None:
        for item in rest.split():
            name, low, high = _matched(_RANGE, item, "limits n:1..64").groups()
            self.limits[name] = (int(low), int(high))

    def _tensor_reader(self, role: Role) -> Callable[[str], None]:
        def read(rest: str) -> None:
            form = "x: f32[]" if role is Role.SCALAR else "x: f16[4, n] strides [n, 1]"
            match = _matched(_TENSOR, rest, f"{role.value} {form}")
            name, dtype, shape_text, strides_text = match.groups()
            if name in self.tensors:
                raise InvalidKernel(f"tensor {name} is there already")
            shape = self.body.index(shape_text)
            if strides_text is not None:
                strides = self.body.index(strides_text)
            else:
                strides = default_strides(role, shape)
            self.tensors[name] = Tensor(name, dtype_named(dtype), shape, role, strides)

        return read

    # --- ops ---

    def read_op(self, rest: str) -> None:
        parallel, _, reduced = rest.partition("|")
        name, kind, *dims = [*parallel.split(), "", ""][: max(2, len(parallel.split()))]
        kinds = [k.value for k in Kind]
        if kind not in kinds:
            raise InvalidKernel(f"{kind!r} is no kind of op", hint="one of " + " ".join(kinds))
        self.body.shared.clear()
        self.open = _OpenOp(name, Kind(kind), _dims(" ".join(dims)), _dims(reduced))

    def read_op_line(self, op: _OpenOp, line: str) -> None:
        if line[0] == "%":
            name, text = _matched(_SHARED, line, "%0 = exp(x[i0])").groups()
            self.body.shared[name] = self.body.read(text)
        elif line.startswith("lookup "):
            self.read_lookup(op, line[7:])
        elif line.startswith("at "):
            op.source = _string(line[3:])
        else:
            self.read_store(op, line)

    def read_lookup(self, op: _OpenOp, rest: str) -> None:
        match = _matched(_LOOKUP, rest, "lookup t0 = ids[i0] size 512 wrap")
        name, tensor, index, size, wrap = match.groups()
        op.lookups.append(
            Lookup(name, tensor, self.body.index(index), read_expr(size), wrap is not None)
        )

    def read_store(self, op: _OpenOp, line: str) -> None:
        match = _STORE.match(line)
        if match is None:
            raise InvalidKernel(
                f"op {op.name} has no body yet", why=f"`{line}` is no store",
                hint="out[i0, i1] <- value",
            )  # fmt: skip
        tensor, index, arrow, reduce, text = match.groups()
        if reduce is not None and reduce not in REDUCTIONS:
            raise InvalidKernel(
                f"{reduce!r} is no reduction", hint="one of " + " ".join(REDUCTIONS)
            )
        if tensor not in self.tensors:
            close = get_close_matches(tensor, self.tensors, 3)
            raise InvalidKernel(f"there is no tensor {tensor}", hint=" or ".join(close))
        body: Scalar = self.body.read(text)
        self.ops.append(
            Op(
                op.name,
                op.kind,
                op.dims,
                body,
                Access(tensor, self.body.index(index)),
                op.rdims,
                reduce,
                tuple(op.lookups),
                arrow == "+=",
                op.source,
            )
        )
        self.open = None

    # --- plan tables ---

    def read_hint(self, rest: str) -> None:
        what, name, value = _matched(_HINT, rest, "hint division i0: 8").groups()
        if (what == Fixed.RESIDENCY.value) == value.isdigit():
            raise InvalidKernel(f"{value} is no {what}", hint="hint residency t: lx")
        place = int(value) if value.isdigit() else Space(value)
        self.hints.append(Hint(Fixed(what), name, place))

    def read_layout(self, rest: str) -> None:
        name, order = _named(rest, "layout t: 1 0 2")
        if not all(word.isdigit() for word in order.split()):
            raise InvalidKernel(f"{order!r} is no order of dims", hint="layout t: 1 0 2")
        self.layouts[name] = StickLayout(tuple(map(int, order.split())))

    def read_prologue(self, rest: str) -> None:
        if not rest.isdigit():
            raise InvalidKernel(f"{rest!r} is no number of steps", hint="prologue 1")
        self.prologue = int(rest)

    def read_step(self, rest: str) -> None:
        name, ops = _named(rest, "step s0: op0 op1")
        self.steps.append(Step(name, tuple(ops.split()), (), MappingProxyType({})))

    def extend_step(
        self,
        *,
        axes: tuple[Dim, ...] | None = None,
        loops: tuple[Loop, ...] | None = None,
        bind: Mapping[str, Mapping[str, str]] | None = None,
        inner: Mapping[str, tuple[Loop, ...]] | None = None,
    ) -> None:
        if not self.steps:
            raise InvalidKernel("this line belongs to a step", why="no step stands before it")
        step = self.steps[-1]
        self.steps[-1] = replace(
            step,
            axes=step.axes if axes is None else axes,
            loops=step.loops if loops is None else loops,
            binding=MappingProxyType({**step.binding, **(bind or {})}),
            inner=MappingProxyType({**step.inner, **(inner or {})}),
        )

    def read_bind(self, rest: str) -> None:
        op, pairs = _named(rest, "bind op0: i0=a")
        split = [pair.partition("=") for pair in pairs.split()]
        if not all(dim and axis for dim, _, axis in split):
            raise InvalidKernel(f"cannot read {pairs!r}", hint="bind op0: i0=a i1=b")
        self.extend_step(bind={op: MappingProxyType({dim: axis for dim, _, axis in split})})

    def read_inner(self, rest: str) -> None:
        op, loops = _named(rest, "inner op0: i1/64")
        self.extend_step(inner={op: _loops(loops)})

    def read_division(self, rest: str) -> None:
        form = "division s0: i0 parts 8 stride 1 granule 64"
        name, text = _named(rest, form)
        parts = [_matched(_PART, part.strip(), form).groups() for part in text.split(",") if part]
        self.divisions[name] = Division(
            tuple(Part(axis, int(n), int(stride), int(grain)) for axis, n, stride, grain in parts)
        )

    def read_residency(self, rest: str) -> None:
        match = _matched(_RESIDENCY, rest, "residency t: lx offset 0 bytes 256 steps 0..1")
        name, space, *numbers = match.groups()
        spaces = [s.value for s in Space]
        if space not in spaces:
            raise InvalidKernel(f"{space!r} is no space", hint="one of " + " ".join(spaces))
        offset, size, first, last = map(int, numbers)
        self.residency[name] = Residency(Space(space), offset, size, first, last)


def default_strides(role: Role, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of a tensor line that states none: contiguous where there are strides."""
    return () if role in (Role.LOCAL, Role.SCALAR) else contiguous_strides(shape)


def contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides, in elements."""
    if not shape:
        return ()
    strides = [Expr.of(1)]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _matched(pattern: re.Pattern[str], text: str, form: str) -> re.Match[str]:
    match = pattern.match(text)
    if match is None:
        raise InvalidKernel(f"cannot read `{text}`", hint=f"write it like `{form}`")
    return match


def _named(text: str, form: str) -> tuple[str, str]:
    name, rest = _matched(_NAMED, text, form).groups()
    return name, rest or ""


def _string(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidKernel(f"cannot read the string {text}", why=str(error)) from None
    if not isinstance(value, str):
        raise InvalidKernel(f"{text} is no string", hint="a JSON string in double quotes")
    return value


def _items(text: str, separator: str, form: str) -> Iterator[tuple[str, str]]:
    for item in text.split():
        name, found, value = item.partition(separator)
        if not (name and found and value):
            raise InvalidKernel(f"cannot read `{item}`", hint=f"write it like `{form}`")
        yield name, value


def _dims(text: str) -> tuple[Dim, ...]:
    return tuple(Dim(name, read_expr(extent)) for name, extent in _items(text, ":", "i0:128"))


def _loops(text: str) -> tuple[Loop, ...]:
    loops = []
    for axis, tile in _items(text, "/", "i0/64"):
        if not tile.isdigit():
            raise InvalidKernel(f"{tile!r} is no tile", hint="write it like `i0/64`")
        loops.append(Loop(axis, int(tile)))
    return tuple(loops)
