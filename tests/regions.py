"""Real regions as kernels: reads `tests/data/regions`, what Inductor hands over for real models.

`load_region("minilm_captured")` is the kernel of the file's first region, `number` picks another.
The dumps leave out names (long lists end in `...`) and repeated blocks; both are filled in by
position, which gives a valid kernel of the same structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from openspyre.ir.index import Expr
from openspyre.ir.kernel import Dim, DType, Kernel, Op, Role, Tensor, loads
from openspyre.ir.text import contiguous_strides
from tests.region_bodies import NestReader, index_expr

DATA = Path(__file__).parent / "data" / "regions"
NAMES = tuple(sorted(path.stem for path in DATA.glob("*.txt")))
_GROUP = re.compile(r"(\w+)\[([^\]]*)\](?: strides \[([^\]]*)\])?(?: x(\d+))?: (.*)")
_NEST = re.compile(r"  (n\d+) op(\d+) (?:as (n\d+) on (.*)|(\w+)(?: (\w+))?\s+(.*))$")
_REPEAT = re.compile(r"  n(\d+)\.\.n\d+: n(\d+)\.\.n(\d+) repeated (\d+) more times")
_ROLES = {"input": Role.INPUT, "output": Role.OUTPUT, "local": Role.LOCAL, "view": Role.LOCAL}


@dataclass(frozen=True, slots=True)
class Group:
    """A line's `dtype[shape] x n: names`."""

    role: Role
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None
    count: int
    names: tuple[str, ...]
    complete: bool

    def tensor(self, name: str) -> Tensor:
        if self.role is Role.LOCAL:
            return Tensor(name, self.dtype, self.shape, self.role)
        strides = contiguous_strides(self.shape) if self.strides is None else self.strides
        return Tensor(name, self.dtype, self.shape, self.role, strides)


@dataclass(slots=True)
class Nest:
    """A nest of the dump: its text, or the nest it repeats with other buffers."""

    name: str
    op: int
    kind: str = ""
    dims: tuple[Dim, ...] = ()
    rdims: tuple[Dim, ...] = ()
    lines: list[str] = field(default_factory=list)

    @property
    def buffers(self) -> list[str]:
        """In order of first use, the written one last."""
        *named, store = self.lines
        values = dict(line.strip().split(" = ", 1) for line in named)
        text = store.partition("<-")[2]
        while re.search(r"\bt\d+\b", text):
            text = re.sub(r"\bt\d+\b", lambda match: values[match[0]], text)
        read = re.findall(r"\b((?:arg|buf)\w*)\[", text)
        written = re.match(r"\s*(\w+)\[", store)
        assert written
        return [*dict.fromkeys(n for n in read if n != written[1]), written[1]]

    def renamed(self, name: str, op: int, buffers: list[str]) -> Nest:
        renaming = dict(zip(self.buffers, buffers, strict=True))
        lines = [
            re.sub(r"\b(?:arg|buf)\w*(?=\[)", lambda m: renaming[m[0]], line) for line in self.lines
        ]
        return Nest(name, op, self.kind, self.dims, self.rdims, lines)


@lru_cache
def load_region(name: str, number: int = 0) -> Kernel:
    """The kernel of region `number` of the dump `name`; every symbol ranges from 2 to its hint."""
    return _Region(name, _section(name, number)).kernel()


def _section(name: str, number: int) -> list[str]:
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"region {number}:"))
    stop = next((i for i in range(start + 1, len(lines)) if not lines[i].strip()), len(lines))
    return lines[start + 1 : stop]


class _Region:
    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.groups: list[Group] = []
        self.hints: dict[str, int] = {}
        self.views: dict[str, tuple[str, int]] = {}
        self.twins: list[tuple[str, str]] = []  # (a name, another of the same type)
        self.tensors: dict[str, Tensor] = {}
        self.nests: dict[str, Nest] = {}
        for line in lines:
            self.read(line)
        for group in self.groups:
            for listed in group.names:
                self.tensors[listed] = group.tensor(listed)
        self.name_views()
        self.name_twins()
        self.name_rest()

    def read(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if line.startswith("      "):
            list(self.nests.values())[-1].lines.append(line)
        elif word == "symbols:":
            self.hints = {s: int(h) for s, h in re.findall(r"(\w+) \(hint (\d+)\)", rest)}
        elif word in _ROLES:
            self.groups += _groups(_ROLES[word], rest.partition(": ")[2])
        elif word == "views":
            for view, base, offset in re.findall(r"(\w+) = (\w+) \+ (\d+)", rest):
                self.views[view] = (base, int(offset))
        elif match := _REPEAT.match(line):
            self.repeat(*map(int, match.groups()))
        elif match := _NEST.match(line):
            self.read_nest(*match.groups())
        else:
            raise ValueError(f"{self.name}: cannot read {line!r}")

    def read_nest(
        self, name: str, op: str, model: str, buffers: str, kind: str, reduce: str, rest: str
    ) -> None:
        if model:
            self.nests[name] = self.nests[model].renamed(name, int(op), buffers.split())
            self.same_tensors(self.nests[model], self.nests[name])
            return
        if kind != "reduce" and reduce:
            rest = f"{reduce} {rest}"
        parallel, _, reduced = rest.partition("|")
        self.nests[name] = Nest(name, int(op), kind, _dims(parallel), _dims(reduced))

    def same_tensors(self, model: Nest, nest: Nest) -> None:
        """A nest that repeats another reads and writes tensors of the same types."""
        self.twins += zip(model.buffers, nest.buffers, strict=True)

    def repeat(self, first: int, start: int, stop: int, times: int) -> None:
        block = [self.nests[f"n{i}"] for i in range(start, stop + 1)]
        span = block[-1].op - block[0].op + 1
        fixed = {n for g in self.groups if g.complete and g.count <= times for n in g.names}
        used = {b for nest in block for b in nest.buffers if b.startswith("arg")} - fixed
        low = min(map(_number, used))
        weights = [n for n in range(low, low + 10_000) if not fixed & {f"arg{n}_1"}]
        position = {n: i for i, n in enumerate(weights)}

        def shifted(name: str, turn: int) -> str:
            if name in fixed:
                return name
            if name.startswith("buf"):
                return f"buf{_number(name) + turn * span}"
            return f"arg{weights[position[_number(name)] + turn * len(used)]}_1"

        for turn in range(1, times + 1):
            for offset, nest in enumerate(block):
                name = f"n{first + (turn - 1) * len(block) + offset}"
                buffers = [shifted(b, turn) for b in nest.buffers]
                self.nests[name] = nest.renamed(name, nest.op + turn * span, buffers)
                self.same_tensors(nest, self.nests[name])

    # --- names that the dump leaves out ---

    def name_views(self) -> None:
        for old, new in self.twins:
            if old in self.views and new not in self.views:
                base, offset = self.views[old]
                named = f"buf{_number(new) + _number(base) - _number(old)}"
                self.views[new] = (named, offset)
                self.twins.append((base, named))

    def name_twins(self) -> None:
        """Types travel between twins until nothing changes."""
        changed = True
        while changed:
            changed = False
            for pair in self.twins:
                for old, new in (pair, pair[::-1]):
                    if old in self.tensors and new not in self.tensors:
                        self.tensors[new] = self.typed_like(self.tensors[old], new)
                        changed = True

    def typed_like(self, tensor: Tensor, name: str) -> Tensor:
        based = name in {base for base, _ in self.views.values()}
        role = Role.INPUT if name.startswith("arg") else Role.OUTPUT if based else Role.LOCAL
        strides = () if role is Role.LOCAL else tensor.strides or contiguous_strides(tensor.shape)
        return replace(tensor, name=name, role=role, strides=strides)

    def name_rest(self) -> None:
        """A name in no list belongs to a shortened list whose shape fits the nest that uses it."""
        for nest in self.nests.values():
            for name, index in re.findall(r"\b((?:arg|buf)\w*)\[([^\]]*)\]", " ".join(nest.lines)):
                if name not in self.tensors:
                    self.tensors[name] = self.fitting(name, index, nest).tensor(name)
                    self.name_twins()

    def fitting(self, name: str, index: str, nest: Nest) -> Group:
        extents = {d.name: d.extent for d in nest.dims + nest.rdims}
        want = [extents.get(part.strip()) for part in index.split(",")]
        for group in self.groups:
            fits = len(group.shape) == len(want) and all(
                w is None or w == have for w, have in zip(want, group.shape, strict=True)
            )
            if fits and not group.complete and (group.role is Role.INPUT) == name.startswith("arg"):
                return group
        raise ValueError(f"{self.name}: no list has room for {name}[{index}]")

    # --- the kernel ---

    def kernel(self) -> Kernel:
        reader = NestReader(dict(self.tensors), self.views, tuple(self.hints))
        ops: list[Op] = [op for nest in self.nests.values() for op in reader.ops(nest)]
        used = [b for op in ops for b in (*_read(op), op.out.tensor)]
        tensors = {name: reader.tensors[name] for name in sorted(set(used), key=_order)}
        return Kernel(
            self.name,
            tuple(self.hints),
            tuple(n for n, t in tensors.items() if t.role is not Role.LOCAL),
            tensors,
            tuple(ops),
            {symbol: (2, hint) for symbol, hint in self.hints.items()},
        )


def _read(op: Op) -> list[str]:
    return [load.tensor for load in loads(op)] + [lookup.tensor for lookup in op.lookups]


def _order(name: str) -> tuple[bool, int, str]:
    return (not name.startswith("arg"), _number(name), name)


def _number(name: str) -> int:
    match = re.match(r"[a-z]+(\d+)", name)
    assert match, name
    return int(match[1])


def _dims(text: str) -> tuple[Dim, ...]:
    pairs = [word.split(":") for word in text.split() if ":" in word]
    return tuple(Dim(name, index_expr(extent)) for name, extent in pairs)


def _shape(text: str) -> tuple[Expr, ...]:
    return tuple(index_expr(part) for part in text.split(",") if part.strip())


def _groups(role: Role, text: str) -> list[Group]:
    groups = []
    for part in text.split("; "):
        match = _GROUP.match(part)
        assert match, part
        dtype, shape, strides, count, names = match.groups()
        listed = tuple(n for n in names.split() if n != "...")
        groups.append(
            Group(
                role,
                DType(dtype),
                _shape(shape),
                None if strides is None else _shape(strides),
                int(count or 1),
                listed,
                "..." not in names,
            )
        )
    return groups
