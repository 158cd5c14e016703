"""Reads program text; `text_program.py` prints it and describes the form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from openspyre.errors import InvalidProgram
from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, INDEX, LOAD, REDUCTIONS, SLOT, TABLE
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
    Calc,
    Copy,
    Given,
    Holding,
    Indirect,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Value,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)
from openspyre.ir.text_body import DTYPES

CALCS = {"+": Calc.ADD, "*": Calc.MUL, "//": Calc.FLOORDIV, "%": Calc.MOD, "min": Calc.MIN,
         "max": Calc.MAX}  # fmt: skip
OPERANDS = {"load": LOAD, "const": CONST, "slot": SLOT, "index": INDEX}
_ORIGINS = {"": Origin.ABSOLUTE, ".core": Origin.CORE, ".tile": Origin.TILE}
_GIVEN = {given.name.lower(): given for given in Given}
_CODES = {row.name: row.code for row in TABLE.values()} | OPERANDS

_TEXT = r'("(?:[^"\\]|\\.)*")'
_SUM = r"\{([^}]*)\}"
_PLACE = r"(?:#(\d+)|arg(\d+)|(pool)):(\w+)\{([^}]*)\}"
_VALUE = r"(%\d+|-?\d+)"
_ORIGIN = r"(?: origin (-?\d+))?"
_HEAD = re.compile(rf"program {_TEXT} pool (\d+) arguments (\d+) (\d+) (\d+)(?: prologue (\d+))?$")
_SOURCE = re.compile(rf"source {_TEXT}$")
_SLOT = re.compile(rf"slot %(\d+) {_TEXT} = (\w+)(?: (\d+)$|(?: (\d+):)?((?: \S+)*)$)")
_BUFFER = re.compile(rf"buffer #(\d+) {_TEXT} offset (\d+) bytes (\d+) slots (\d+)$")
_SECTION = re.compile(rf"section {_TEXT}( joins)?$")
_AXIS = re.compile(rf"axis a(\d+) {_TEXT} extent {_VALUE} parts (\d+) stride (\d+) granule (\d+)$")
_LOOP = re.compile(r"loop a(\d+) tile (\d+)$")
_COPY = re.compile(rf"copy \[([^\]]*)\] from {_PLACE} to {_PLACE}( add)?{_ORIGIN}$")
_INDIRECT = re.compile(
    rf"indirect {_PLACE} coefficient {_VALUE} size {_VALUE}( wrap)?( clamp)?( distinct)?$"
)
_BOUND = re.compile(rf"bound {_SUM} size {_VALUE}$")
_PT = re.compile(rf"pt batch \[([^\]]*)\] m \[([^\]]*)\] n \[([^\]]*)\] k \[([^\]]*)\]{_ORIGIN}$")
_OPERAND = re.compile(rf"([abc]) {_PLACE}$")
_VEC = re.compile(rf"vec \[([^\]]*)\]{_ORIGIN}$")
_IN = re.compile(rf"in {_PLACE}$")
_INDEX = re.compile(rf"index {_SUM}$")
_OP = re.compile(r"v(\d+) (\w+) = (\w+)((?: v?-?\d+)*)(?: number (-?\d+))?$")
_CONST = re.compile(r"v(\d+) (\w+) = const (\S+)$")
_OUT = re.compile(rf"out v(\d+) {_PLACE}((?: \w+)*)$")
_RING = re.compile(rf"ring \[([^\]]*)\] from {_PLACE} to {_PLACE} cores (\d+){_ORIGIN}$")
_HELD = re.compile(
    rf"held {_SUM} extent {_VALUE} parts (\d+) stride (\d+) granule (\d+) step {_VALUE}$"
)
_TERM = re.compile(rf"{_VALUE}\*a(\d+)(\.core|\.tile|)$")


def parse_program(text: str) -> Program:
    """The program that `text` describes.

    Raises:
        InvalidProgram: text that does not parse; names the line, the reason and what to try.
    """
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped:
            continue
        try:
            reader.line(stripped, len(line) - len(line.lstrip(" ")))
        except InvalidProgram as error:
            raise InvalidProgram(
                error.what, why=error.why, hint=error.hint, at=f"line {number}"
            ) from None
        except (KeyError, ValueError) as error:
            raise InvalidProgram(f"cannot read the line ({error})", at=f"line {number}") from None
    return reader.program()


@dataclass(slots=True)
class _Block:
    """The nodes at one depth of a section; `loop` holds them once it is closed."""

    indent: int
    loop: TileLoop | None = None
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class _OpenSection:
    name: str
    joins: bool
    axes: list[Axis] = field(default_factory=list)


class _Reader:
    def __init__(self) -> None:
        self.head: tuple[str, int, tuple[int, int, int], int] | None = None
        self.sources: list[str] = []
        self.slots: list[SlotDef] = []
        self.buffers: list[Buffer] = []
        self.sections: list[Section] = []
        self.open: _OpenSection | None = None
        self.blocks: list[_Block] = []

    def line(self, line: str, indent: int) -> None:
        word = line.partition(" ")[0]
        read: Callable[[str, int], None] | None = getattr(self, f"read_{word}", None)
        if read is None and word in ("a", "b", "c"):
            read = self.read_operand
        if read is None and re.match(r"v\d+$", word):
            read = self.read_value
        if read is None:
            raise InvalidProgram(f"no line starts with {word!r}", hint="see ir/text_program.py")
        read(line, indent)

    def program(self) -> Program:
        if self.head is None:
            raise InvalidProgram("there is no program", why='no line `program "name" ...`')
        self.close_section()
        name, pool, arguments, prologue = self.head
        return Program(
            name,
            tuple(self.slots),
            tuple(self.buffers),
            tuple(self.sections),
            pool,
            arguments,
            tuple(self.sources),
            prologue,
        )

    def read_program(self, line: str, indent: int) -> None:
        name, pool, *counts, prologue = _matched(_HEAD, line)
        addresses, sizes, scalars = map(int, counts)
        self.head = (json.loads(name), int(pool), (addresses, sizes, scalars), int(prologue or 0))

    def read_source(self, line: str, indent: int) -> None:
        self.sources.append(json.loads(_matched(_SOURCE, line)[0]))

    def read_slot(self, line: str, indent: int) -> None:
        number, name, given, plain, marked, rest = _matched(_SLOT, line)
        _in_order(number, self.slots, "slot")
        if given not in _GIVEN:
            raise InvalidProgram(f"{given!r} gives no slot", hint="one of " + " ".join(_GIVEN))
        if _GIVEN[given] is Given.FORMULA:
            words = ([plain] if plain else []) + (rest or "").split()
            formula = tuple(_calc(word) for word in words)
            definition = SlotDef(Given.FORMULA, int(marked or 0), formula, json.loads(name))
        else:
            definition = SlotDef(_GIVEN[given], int(plain), (), json.loads(name))
        self.slots.append(definition)

    def read_buffer(self, line: str, indent: int) -> None:
        number, name, *numbers = _matched(_BUFFER, line)
        _in_order(number, self.buffers, "buffer")
        self.buffers.append(Buffer(json.loads(name), *map(int, numbers)))

    # --- sections ---

    def read_section(self, line: str, indent: int) -> None:
        self.close_section()
        name, joins = _matched(_SECTION, line)
        self.open = _OpenSection(json.loads(name), bool(joins))
        self.blocks = [_Block(indent + 2)]

    def close_section(self) -> None:
        if self.open is None:
            return
        self.close_loops(0)
        body = tuple(self.blocks[0].nodes)
        self.sections.append(Section(self.open.name, tuple(self.open.axes), body, self.open.joins))
        self.open = None

    def close_loops(self, indent: int) -> None:
        while len(self.blocks) > 1 and self.blocks[-1].indent > indent:
            block = self.blocks.pop()
            if block.loop is not None:
                self.blocks[-1].nodes.append(replace(block.loop, body=tuple(block.nodes)))

    def add(self, node: Node, indent: int) -> None:
        if self.open is None:
            raise InvalidProgram("an instruction outside of a section", hint='section "name"')
        self.close_loops(indent)
        self.blocks[-1].nodes.append(node)

    def read_axis(self, line: str, indent: int) -> None:
        number, name, extent, *numbers = _matched(_AXIS, line)
        if self.open is None:
            raise InvalidProgram("an axis outside of a section", hint='section "name"')
        _in_order(number, self.open.axes, "axis")
        self.open.axes.append(Axis(json.loads(name), _value(extent), *map(int, numbers)))

    def read_loop(self, line: str, indent: int) -> None:
        axis, tile = map(int, _matched(_LOOP, line))
        if self.open is None:
            raise InvalidProgram("a loop outside of a section", hint='section "name"')
        self.close_loops(indent)
        self.blocks.append(_Block(indent + 2, TileLoop(axis, tile, ())))

    # --- instructions ---

    def read_copy(self, line: str, indent: int) -> None:
        axes, *places, add, origin = _matched(_COPY, line)
        source, target = _place(places[:5]), _place(places[5:])
        node = Copy(_axes(axes), source, target, add=add is not None, origin=_origin(origin))
        self.add(node, indent)

    def last(self, kind: type[Copy] | type[Pt] | type[Vec] | type[Ring]) -> Node:
        node = self.blocks[-1].nodes[-1] if self.blocks and self.blocks[-1].nodes else None
        if not isinstance(node, kind):
            raise InvalidProgram(f"this line belongs to a {kind.__name__.lower()} before it")
        return node

    def change(self, node: Node) -> None:
        self.blocks[-1].nodes[-1] = node

    def read_indirect(self, line: str, indent: int) -> None:
        *place, coefficient, size, wrap, clamp, distinct = _matched(_INDIRECT, line)
        flags = (flag is not None for flag in (wrap, clamp, distinct))
        step = Indirect(_place(place), _value(coefficient), _value(size), *flags)
        match self.last(Copy):
            case Copy() as copy:
                self.change(replace(copy, indirect=(*copy.indirect, step)))

    def read_bound(self, line: str, indent: int) -> None:
        total, size = _matched(_BOUND, line)
        offset, terms = _sum(total)
        match self.last(Copy):
            case Copy() as copy:
                bound = Bound(terms, offset, _value(size))
                self.change(replace(copy, bounds=(*copy.bounds, bound)))

    def read_ring(self, line: str, indent: int) -> None:
        axes, *places, cores, origin = _matched(_RING, line)
        source, target = _place(places[:5]), _place(places[5:])
        self.add(Ring(_axes(axes), source, target, (), int(cores), _origin(origin)), indent)

    def read_held(self, line: str, indent: int) -> None:
        total, extent, parts, stride, granule, step = _matched(_HELD, line)
        offset, terms = _sum(total)
        match self.last(Ring):
            case Ring() as ring:
                held = Holding(
                    terms, offset, _value(extent), int(parts), int(stride), int(granule),
                    _value(step),
                )  # fmt: skip
                self.change(replace(ring, held=(*ring.held, held)))

    def read_pt(self, line: str, indent: int) -> None:
        *axes, origin = _matched(_PT, line)
        batch, m, n, k = map(_axes, axes)
        self.add(Pt(batch, m, n, k, _NOWHERE, _NOWHERE, _NOWHERE, _origin(origin)), indent)

    def read_operand(self, line: str, indent: int) -> None:
        name, *place = _matched(_OPERAND, line)
        operand = _place(place)
        match name, self.last(Pt):
            case "a", Pt() as pt:
                self.change(replace(pt, a=operand))
            case "b", Pt() as pt:
                self.change(replace(pt, b=operand))
            case _, Pt() as pt:
                self.change(replace(pt, c=operand))

    def read_vec(self, line: str, indent: int) -> None:
        axes, origin = _matched(_VEC, line)
        self.add(Vec(_axes(axes), (), (), (), (), _origin(origin)), indent)

    def vec(self) -> Vec:
        match self.last(Vec):
            case Vec() as vec:
                return vec
        raise InvalidProgram("this line belongs to a vec before it")

    def read_in(self, line: str, indent: int) -> None:
        vec = self.vec()
        self.change(replace(vec, inputs=(*vec.inputs, _place(_matched(_IN, line)))))

    def read_index(self, line: str, indent: int) -> None:
        vec = self.vec()
        offset, terms = _sum(_matched(_INDEX, line)[0])
        self.change(replace(vec, indices=(*vec.indices, VecIndex(terms, offset))))

    def read_value(self, line: str, indent: int) -> None:
        vec = self.vec()
        if constant := _CONST.match(line):
            number, dtype, text = constant.groups()
            op = VecOp(CONST, DTYPES[dtype], (), _number(text, DTYPES[dtype]))
        else:
            number, dtype, name, args, extra = _matched(_OP, line)
            if name not in _CODES:
                raise InvalidProgram(f"there is no op {name}")
            numbers = tuple(int(arg.lstrip("v")) for arg in args.split())
            op = VecOp(_CODES[name], DTYPES[dtype], numbers, int(extra or 0))
        _in_order(number, vec.ops, "value")
        self.change(replace(vec, ops=(*vec.ops, op)))

    def read_out(self, line: str, indent: int) -> None:
        vec = self.vec()
        value, *place, words = _matched(_OUT, line)
        flags = words.split()
        reduce = next((flag for flag in flags if flag in REDUCTIONS), None)
        if set(flags) - {reduce, "scan"}:
            raise InvalidProgram(f"cannot read `{words}`", hint="a reduction, scan")
        out = VecOut(int(value), _place(place), reduce, "scan" in flags)
        self.change(replace(vec, outputs=(*vec.outputs, out)))


_NOWHERE = Place(Space.DEVICE, DType.F32, 0, ())


def _matched(pattern: re.Pattern[str], line: str) -> tuple[str, ...]:
    match = pattern.match(line)
    if match is None:
        word = line.partition(" ")[0]
        raise InvalidProgram(
            f"cannot read `{line}`", why=f"a line `{word}` has another form",
            hint="see ir/text_program.py for the forms",
        )  # fmt: skip
    return match.groups()


def _in_order(number: str, before: list[SlotDef] | list[Buffer] | list[Axis] | tuple[VecOp, ...],
              word: str) -> None:  # fmt: skip
    if int(number) != len(before):
        raise InvalidProgram(f"{word} {number} stands where {word} {len(before)} belongs")


def _value(text: str) -> Value:
    return Slot(int(text[1:])) if text[0] == "%" else int(text)


def _number(text: str, dtype: DType) -> float | int:
    if not dtype.is_float:
        return int(text)
    return math.nan if text == "nan" else float(text)


def _calc(word: str) -> tuple[Calc, int]:
    if word in CALCS:
        return CALCS[word], 0
    if word[0] == "%":
        return Calc.SLOT, int(word[1:])
    return Calc.CONST, int(word)


def _axes(text: str) -> tuple[int, ...]:
    words = text.split()
    if not all(re.match(r"a\d+$", word) for word in words):
        raise InvalidProgram(f"cannot read the axes [{text}]", hint="[a0 a1]")
    return tuple(int(word[1:]) for word in words)


def _origin(text: str | None) -> int:
    return -1 if text is None else int(text)


def _sum(text: str) -> tuple[Value, tuple[Term, ...]]:
    base, *terms = text.split(" + ")
    return _value(base), tuple(_term(term) for term in terms)


def _term(text: str) -> Term:
    match = _TERM.match(text)
    if match is None:
        raise InvalidProgram(f"cannot read the term `{text}`", hint="2*a0, %3*a1.tile")
    coefficient, axis, origin = match.groups()
    return Term(int(axis), _value(coefficient), _ORIGINS[origin])


def _place(groups: tuple[str, ...] | list[str]) -> Place:
    buffer, argument, _, dtype, total = groups
    base, terms = _sum(total)
    if dtype not in DTYPES:
        raise InvalidProgram(f"{dtype!r} is no dtype", hint="one of " + " ".join(DTYPES))
    space = Space.LX if buffer is not None else Space.DEVICE
    at = -1 if buffer is None else int(buffer)
    return Place(space, DTYPES[dtype], base, terms, at, -1 if argument is None else int(argument))
