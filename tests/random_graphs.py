"""Random functions of torch, as text: views, broadcasts, reductions, matmuls, gathers, writes.

A seed always gives the same graph. Every value is kept small and finite on the CPU, and ops that
jump (comparisons, argmax) see exact values only, so that results differ by rounding alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 70, 127, 130)
FLOATS = (torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.float16, torch.bfloat16)
_MOST_ELEMENTS = 9000
_LARGEST = 200.0  # values, so that sums keep their digits


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a graph takes.

    Attributes:
        form: how it lies: plain, transposed, strided, or expanded along its first dim.
        below: for an index, what it stays below; its values are distinct along the last dim.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    form: str = "plain"
    below: int = 0

    def tensor(self) -> torch.Tensor:
        made = torch.Generator().manual_seed(sum(map(ord, repr(self))))
        if self.below:
            draws = torch.rand((*self.shape[:-1], self.below), generator=made)
            return draws.argsort(-1)[..., : self.shape[-1]].contiguous()
        if self.form == "transposed":
            return self._values(self.shape[::-1], made).permute(*range(len(self.shape))[::-1])
        if self.form == "strided":
            wide = (*self.shape[:-1], self.shape[-1] * 2 + 1)
            return self._values(wide, made)[..., 1::2]
        if self.form == "expanded":
            return self._values((1, *self.shape[1:]), made).expand(self.shape)
        return self._values(self.shape, made)

    def _values(self, shape: tuple[int, ...], made: torch.Generator) -> torch.Tensor:
        if self.dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=made).bool()
        if self.dtype.is_floating_point:
            return torch.randn(shape, generator=made).to(self.dtype)
        return torch.randint(-5, 6, shape, generator=made).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a graph: `name = text`, where {0}, {1}, ... stand for the operands.

    Attributes:
        writes: it changes its first operand.
    """

    name: str
    text: str
    operands: tuple[str, ...]
    writes: bool = False

    def line(self) -> str:
        return f"{self.name} = {self.text.format(*self.operands)}"


@dataclass(frozen=True, slots=True)
class Graph:
    """A function of its inputs.

    Attributes:
        forms: shape and dtype of every value.
        outputs: the values that it returns.
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    forms: dict[str, tuple[tuple[int, ...], torch.dtype]]
    outputs: tuple[str, ...]

    @property
    def text(self) -> str:
        names = ", ".join(x.name for x in self.inputs)
        lines = [node.line() for node in self.nodes]
        lines.append(f"return ({', '.join(self.outputs)},)")
        return f"def graph({names}):\n" + "".join(f"    {line}\n" for line in lines)

    @property
    def narrow(self) -> torch.dtype | None:
        """The narrowest float in it, where that is not float32."""
        found = {dtype for _, dtype in self.forms.values()}
        return next((d for d in (torch.bfloat16, torch.float16) if d in found), None)

    def function(self, *, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The graph to call; `wide` computes in float32 what is narrower."""
        text = self.text
        if wide:
            for dtype in NARROW:
                text = text.replace(str(dtype), "torch.float32")
        found: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(text, found)  # the text is made here
        function: Callable[..., tuple[torch.Tensor, ...]] = found["graph"]
        return function

    def tensors(self) -> list[torch.Tensor]:
        return [x.tensor() for x in self.inputs]

    def described(self) -> str:
        given = [f"{x.name}: {x.dtype}{list(x.shape)} {x.form}\n" for x in self.inputs]
        return "".join(given) + self.text


# --- making one -------------------------------------------------------------------------------


def random_graph(seed: int) -> Graph:
    """The graph of a seed: 2 to 12 ops."""
    return _Maker(random.Random(seed)).graph()


class _Maker:
    """A graph under construction; every value is computed on the CPU as it is added."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.values: dict[str, torch.Tensor] = {}
        self.rough: set[int] = set()  # storages with values that are not exact

    def graph(self) -> Graph:
        rng = self.rng
        dtype = rng.choice((*FLOATS, torch.int64, torch.int32))
        for _ in range(rng.randint(1, 3)):
            self.input(self.shape(), dtype)
        count = rng.randint(2, 12)
        for _ in range(20 * count):
            if len(self.nodes) == count:
                break
            self.attempt(rng.choice(_KINDS))
        forms = {name: (tuple(v.shape), v.dtype) for name, v in self.values.items()}
        read = {operand for node in self.nodes for operand in node.operands}
        ends = [n.name for n in self.nodes if n.name not in read or rng.random() < 0.1]
        return Graph(tuple(self.inputs), tuple(self.nodes), forms, tuple(ends))

    def shape(self) -> tuple[int, ...]:
        while True:
            shape = tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 4)))
            if self.rng.random() < 0.02:
                shape = (0, *shape[1:])
            if torch.Size(shape).numel() <= _MOST_ELEMENTS:
                return shape

    def input(self, shape: tuple[int, ...], dtype: torch.dtype, below: int = 0) -> str:
        form = "plain" if below or not shape else self.rng.choice(("plain", "plain", *_FORMS))
        given = Input(f"x{len(self.inputs)}", shape, dtype, form, below)
        self.inputs.append(given)
        self.values[given.name] = given.tensor()
        return given.name

    def attempt(self, kind: _Kind) -> None:
        """Adds an op of a kind, where it makes something of use."""
        inputs = len(self.inputs)
        made = kind(self)
        if made is None or not self.add(*made):
            for given in self.inputs[inputs:]:
                del self.values[given.name]
            del self.inputs[inputs:]

    def add(self, text: str, operands: tuple[str, ...], exact: bool, writes: bool) -> bool:
        node = Node(f"v{len(self.nodes)}", text, operands, writes)
        given = [self.values[o] for o in operands]
        before = given[0].clone() if writes else None
        try:
            known = {"torch": torch, "F": torch.nn.functional, **self.values}
            value = eval(text.format(*operands), known)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        if not _fit(value):
            if before is not None:
                given[0].copy_(before)
            return False
        self.nodes.append(node)
        self.values[node.name] = value
        if not (exact and all(self.exact(o) for o in operands)):
            self.rough.add(_storage(value))
        return True

    def exact(self, name: str) -> bool:
        value = self.values[name]
        return not value.dtype.is_floating_point or _storage(value) not in self.rough

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda _: True) -> str | None:
        """A value, a late one rather than an early one."""
        names = [name for name, v in self.values.items() if test(v) and not self.is_index(name)]
        if not names:
            return None
        return self.rng.choice(names[-3:] if self.rng.random() < 0.7 else names)

    def is_index(self, name: str) -> bool:
        return any(x.name == name and x.below for x in self.inputs)


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _fit(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.numel() > _MOST_ELEMENTS:
        return False
    if value.dtype not in (*FLOATS, torch.int64, torch.int32, torch.bool):
        return False
    if not value.numel() or value.dtype == torch.bool:
        return True
    return bool(value.isfinite().all()) and float(value.double().abs().max()) < _LARGEST


# --- kinds of ops ---------------------------------------------------------------------------

_Made = tuple[str, tuple[str, ...], bool, bool] | None  # text, operands, exact, writes
_Kind = Callable[[_Maker], _Made]
_FORMS = ("transposed", "strided", "expanded")
_EXACT_UNARY = ("{0}.relu()", "{0}.abs()", "-{0}", "{0}.clamp(-1, 1)", "{0} * 2", "{0}.clone()")
_ROUGH_UNARY = (
    "{0}.tanh()", "{0}.sigmoid()", "{0}.clamp(-4, 4).exp()", "{0}.sin()", "{0} + 1.5",
    "{0} * 0.3", "F.gelu({0})", "F.silu({0})", "({0}.abs() + 1).rsqrt()", "({0}.abs() + 1).log()",
    "{0}.abs().sqrt()", "{0}.to(torch.float16, copy=True)", "{0}.to(torch.float32, copy=True)",
)  # fmt: skip
_BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / ({1}.abs() + 1)", "{0} + {1} * 0.5")
_CHOICES = ("torch.maximum({0}, {1})", "torch.minimum({0}, {1})")
_COMPARISONS = ("{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}")


def _is_float(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point


def _numeric(value: torch.Tensor) -> bool:
    return value.dtype != torch.bool


def _unary(m: _Maker) -> _Made:
    if m.rng.random() < 0.4:
        x = m.pick(_numeric)
        return (x and (m.rng.choice(_EXACT_UNARY), (x,), True, False)) or None
    x = m.pick(_is_float)
    return (x and (m.rng.choice(_ROUGH_UNARY), (x,), False, False)) or None


def _binary(m: _Maker) -> _Made:
    x = m.pick(_numeric)
    y = x and _partner(m, x)
    if not x or not y:
        return None
    operands = (x, y) if m.rng.random() < 0.5 else (y, x)
    if m.rng.random() < 0.25:
        return m.rng.choice(_CHOICES), operands, True, False
    return m.rng.choice(_BINARY), operands, False, False


def _partner(m: _Maker, name: str) -> str | None:
    """A value that broadcasts with another one: one that there is, or a new input."""
    shape = m.values[name].shape
    found = m.pick(lambda v: _numeric(v) and _broadcast(v.shape, shape))
    if found and found != name and m.rng.random() < 0.8:
        return found
    cut = m.rng.randint(0, len(shape))
    small = tuple(1 if m.rng.random() < 0.3 else n for n in shape[cut:])
    return m.input(small, m.values[name].dtype)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _compare(m: _Maker) -> _Made:
    x = m.pick(_numeric)
    if not x or not m.exact(x):
        return None
    y = _partner(m, x)
    if not y or not m.exact(y):
        return None
    if m.rng.random() < 0.3:
        return m.rng.choice(_COMPARISONS), (x, y), True, False
    return f"torch.where({m.rng.choice(_COMPARISONS)}, {{0}}, {{1}} * 2)", (x, y), True, False


def _select(m: _Maker) -> _Made:
    condition = m.pick(lambda v: v.dtype == torch.bool)
    x = condition and _partner(m, condition)
    if not condition or not x or m.values[x].dtype == torch.bool:
        return None
    return m.rng.choice(("torch.where({0}, {1}, 3)", "{1}.masked_fill({0}, -1)")), (
        condition, x), True, False  # fmt: skip


def _view(m: _Maker) -> _Made:
    x = m.pick()
    if not x:
        return None
    v, rng = m.values[x], m.rng
    texts = [f"{{0}}.unsqueeze({rng.randint(0, v.dim())})", "{0}.squeeze()", "{0}.reshape(-1)"]
    if v.dim():
        d, e = rng.randrange(v.dim()), rng.randrange(v.dim())
        n = v.shape[d]
        begin = rng.randint(0, max(n - 1, 0))
        every = rng.choice((1, 1, 2, 3))
        cut = ", ".join([":"] * d + [f"{begin}:{n}:{every}"])
        texts += [f"{{0}}[{cut}]", f"{{0}}[{cut}]", f"{{0}}.transpose({d}, {e})"]
        texts += [f"{{0}}.select({d}, {begin})", f"{{0}}.flip({d})", f"{{0}}.movedim({d}, 0)"]
        texts += [f"{{0}}.roll({rng.randint(1, 3)}, {d})", f"{{0}}.unfold({d}, {min(n, 3)}, 2)"]
        texts.append(f"{{0}}.unsqueeze({d}).expand({', '.join(_stretched(v.shape, d))})")
        for factor in (2, 3, 4, 5):
            if n % factor == 0 and n:
                texts.append(f"{{0}}.unflatten({d}, ({factor}, {n // factor}))")
    if v.dim() > 1:
        texts += ["{0}.mT", "{0}.flatten(-2)", "{0}.diagonal(0, -2, -1)"]
    return rng.choice(texts), (x,), True, False


def _stretched(shape: torch.Size, dim: int) -> Iterator[str]:
    yield from ("3" if d == dim else f"{n}" for d, n in enumerate((*shape[:dim], 1, *shape[dim:])))


def _join(m: _Maker) -> _Made:
    x = m.pick(lambda v: v.dim() > 0)
    if not x:
        return None
    v = m.values[x]
    d = m.rng.randrange(v.dim())
    other = [n for n, w in m.values.items() if not m.is_index(n) and w.dtype == v.dtype
             and w.dim() == v.dim() and all(a == b or i == d for i, (a, b)
             in enumerate(zip(w.shape, v.shape, strict=True)))]  # fmt: skip
    texts = [f"torch.cat([{{0}}, {{1}}], {d})", f"torch.cat([{{1}}, {{0}}, {{1}}], {d})"]
    if _numeric(v) and m.rng.random() < 0.3:
        return f"F.pad({{0}}, ({m.rng.randint(0, 3)}, {m.rng.randint(1, 2)}))", (x,), True, False
    return m.rng.choice(texts), (x, m.rng.choice(other)), True, False


def _reduction(m: _Maker) -> _Made:
    x = m.pick(lambda v: _numeric(v) and v.dim() > 0)
    if not x:
        return None
    v, rng = m.values[x], m.rng
    d = rng.randrange(v.dim())
    keep = rng.choice((", keepdim=True", ""))
    if not v.dtype.is_floating_point or rng.random() < 0.25:
        texts = [f"{{0}}.amax({d}{keep})", f"{{0}}.amin({d}{keep})", f"({{0}} > 0).any({d}{keep})"]
        texts += [f"{{0}}.argmax({d}{keep})", f"{{0}}.sum({d}{keep})", f"{{0}}.cumsum({d})"]
        if not m.exact(x):
            texts = texts[:2]
        text = rng.choice(texts)
        return text, (x,), not v.dtype.is_floating_point or "sum" not in text, False
    if not v.numel():
        return f"{{0}}.sum({d}{keep})", (x,), True, False  # torch warns of others over nothing
    texts = [
        f"{{0}}.mean({d}{keep})",
        f"{{0}}.sum({d}{keep})",
        f"{{0}}.var({d}, correction=0{keep})",
    ]
    texts += [f"{{0}}.softmax({d})", f"{{0}}.log_softmax({d})", f"{{0}}.logsumexp({d}{keep})"]
    texts += [
        f"{{0}}.cumsum({d})",
        "{0}.mean()",
        f"F.layer_norm({{0}}, {tuple(v.shape[d:])}, eps=0.1)",
    ]
    texts += [f"{{0}} * ({{0}}.square().mean({d}, keepdim=True) + 0.1).rsqrt()"]
    if v.dim() > 1:
        texts += ["{0}.sum((-2, -1))", "{0}.mean((0, -1), keepdim=True)"]
    return rng.choice(texts), (x,), False, False


def _matmul(m: _Maker) -> _Made:
    x = m.pick(lambda v: _is_float(v) and v.dim() > 0)
    if not x:
        return None
    v = m.values[x]
    k, n = v.shape[-1], m.rng.choice(SIZES)
    scale = round((k or 1) ** -0.5, 3)
    form = m.rng.randrange(4)
    if form == 0:
        return f"F.linear({{0}}, {{1}}) * {scale}", (x, m.input((n, k), v.dtype)), False, False
    if form == 1 and v.dim() > 1:
        return f"({{0}} @ {{0}}.mT) * {scale}", (x,), False, False
    batch = tuple(v.shape[:-2]) if m.rng.random() < 0.5 else ()
    if form == 2:
        y = m.input((*batch, n, k), v.dtype)
        return f"({{0}} @ {{1}}.transpose(-1, -2)) * {scale}", (x, y), False, False
    return f"({{0}} @ {{1}}) * {scale}", (x, m.input((*batch, k, n), v.dtype)), False, False


def _gather(m: _Maker) -> _Made:
    x = m.pick(lambda v: v.dim() > 0 and v.numel() > 0)
    if not x:
        return None
    v, rng = m.values[x], m.rng
    d = rng.randrange(v.dim())
    count = rng.randint(1, v.shape[d])
    if rng.random() < 0.3:
        wide = (*v.shape[:d], *v.shape[d + 1 :], count)
        index = m.input(wide, torch.int64, v.shape[d])
        return f"torch.gather({{0}}, {d}, {{1}}.movedim(-1, {d}))", (x, index), True, False
    index = m.input((count,), torch.int64, v.shape[d])
    texts = [f"{{0}}[{', '.join([':'] * d + ['{1}'])}]", f"{{0}}.index_select({d}, {{1}})"]
    if v.dim() == 2 and d == 0:
        texts.append("F.embedding({1}, {0})")
    return rng.choice(texts), (x, index), True, False


def _write(m: _Maker) -> _Made:
    x = m.pick(lambda v: _numeric(v) and v.dim() > 0)
    if not x:
        return None
    v, rng = m.values[x], m.rng
    if _overlapping(v):
        return None
    y = m.pick(lambda w: w.dtype == v.dtype and _fits_into(w.shape, v.shape))
    begin = rng.randint(0, max(v.shape[0] - 1, 0))
    texts = ["{0}.mul_(2)", "{0}.relu_()", f"{{0}}[{begin}:].neg_()", f"{{0}}[{begin}:].zero_()"]
    if y and _storage(m.values[y]) != _storage(v) and rng.random() < 0.8:
        if v.shape[0] and m.values[y].shape == v.shape and rng.random() < 0.4:
            index = m.input((v.shape[0],), torch.int64, v.shape[0])
            writes = ("{0}.index_copy_(0, {2}, {1})", "{0}.index_add_(0, {2}, {1})")
            return rng.choice(writes), (x, y, index), False, True
        texts = ["{0}.add_({1})", "{0}.copy_({1})", "{0}.mul_({1})", "{0}.sub_({1})"]
        return rng.choice(texts), (x, y), False, True
    return rng.choice(texts), (x,), True, True


def _fits_into(small: torch.Size, large: torch.Size) -> bool:
    return len(small) <= len(large) and all(
        a in (b, 1) for a, b in zip(reversed(small), reversed(large), strict=False)
    )


def _overlapping(v: torch.Tensor) -> bool:
    """Whether two elements may have one place."""
    reach = 1
    for stride, size in sorted(zip(v.stride(), v.shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


_KINDS: tuple[_Kind, ...] = (
    _unary, _unary, _binary, _binary, _binary, _compare, _select, _view, _view, _view, _join,
    _reduction, _reduction, _reduction, _matmul, _matmul, _gather, _write, _write,
)  # fmt: skip


# --- making it smaller ------------------------------------------------------------------------


def smaller_graphs(graph: Graph) -> Iterator[Graph]:
    """Graphs with one output or one op less; an op's value becomes an input."""
    yield from (g for g in _smaller(graph) if g.outputs and g.nodes)


def _smaller(graph: Graph) -> Iterator[Graph]:
    if len(graph.outputs) > 1:
        for name in graph.outputs:
            yield _living(replace(graph, outputs=(name,)))
    for number, node in enumerate(graph.nodes):
        rest = graph.nodes[:number] + graph.nodes[number + 1 :]
        if node.writes and graph.forms[node.name] == graph.forms[node.operands[0]]:
            yield _living(_renamed(replace(graph, nodes=rest), node.name, node.operands[0]))
            continue
        name = f"x{1 + max((int(x.name[1:]) for x in graph.inputs), default=-1)}"
        shape, dtype = graph.forms[node.name]
        made = replace(graph, nodes=rest, inputs=(*graph.inputs, Input(name, shape, dtype)),
                       forms={**graph.forms, name: (shape, dtype)})  # fmt: skip
        yield _living(_renamed(made, node.name, name))


def _renamed(graph: Graph, old: str, new: str) -> Graph:
    nodes = tuple(
        replace(n, operands=tuple(new if o == old else o for o in n.operands)) for n in graph.nodes
    )
    return replace(graph, nodes=nodes, outputs=tuple(o for o in graph.outputs if o != old))


def _living(graph: Graph) -> Graph:
    """Without ops whose values nobody needs; what writes stays."""
    needed, nodes = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if node.name in needed or node.writes:
            nodes.append(node)
            needed.update(node.operands)
    inputs = tuple(x for x in graph.inputs if x.name in needed)
    return replace(graph, nodes=tuple(reversed(nodes)), inputs=inputs)
