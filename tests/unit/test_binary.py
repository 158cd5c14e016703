"""Programs: binary and text forms round-trip, damaged ones are refused."""

import math
import struct
import textwrap
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import openspyre.ir.text_program as text_module
from openspyre.errors import InvalidProgram
from openspyre.ir.binary import HEADER_WORDS, decode, encode
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
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)  # fmt: skip
from openspyre.ir.text_program import parse_program, print_program

words = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 2**31)
numbers = st.integers(0, 5)
names = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
values = st.one_of(words, numbers.map(Slot))


def tuples(items: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(items, max_size=most).map(tuple)


dtypes = st.sampled_from(list(DType))
terms = st.builds(Term, numbers, values, st.sampled_from(list(Origin)))
places = st.one_of(
    st.builds(Place, st.just(Space.LX), dtypes, values, tuples(terms), numbers, st.just(-1)),
    st.builds(
        Place, st.just(Space.DEVICE), dtypes, values, tuples(terms), st.just(-1),
        st.integers(-1, 3),
    ),
)  # fmt: skip
axes = tuples(numbers)
origins = st.integers(-1, 9)
copies = st.builds(
    Copy, axes, places, places,
    tuples(st.builds(Indirect, places, values, values, *[st.booleans()] * 3), 2),
    tuples(st.builds(Bound, tuples(terms), values, values), 2), st.booleans(), origins,
)  # fmt: skip
pts = st.builds(Pt, axes, axes, axes, axes, places, places, places, origins)
rows = st.sampled_from(sorted(row.code for row in TABLE.values()))
vec_ops = st.one_of(
    st.builds(VecOp, st.one_of(rows, st.sampled_from([LOAD, SLOT, INDEX])), dtypes, axes),
    st.builds(
        VecOp, st.just(CONST), st.sampled_from([DType.F32, DType.F16]), st.just(()),
        st.floats(allow_nan=False),
    ),
    st.builds(VecOp, st.just(CONST), st.sampled_from([DType.I64, DType.BOOL]), st.just(()), words),
)  # fmt: skip
vecs = st.builds(
    Vec, axes, tuples(places), tuples(st.builds(VecIndex, tuples(terms), values), 2),
    tuples(vec_ops, 4),
    tuples(
        st.builds(
            VecOut, numbers, places, st.sampled_from([None, *REDUCTIONS]), st.booleans()
        ), 2,
    ), origins,
)  # fmt: skip
rings = st.builds(
    Ring, axes, places, places,
    tuples(st.builds(Holding, tuples(terms), values, values, small, small, small, values), 2),
    small, origins,
)  # fmt: skip
nodes: st.SearchStrategy[Node] = st.recursive(
    st.one_of(copies, pts, vecs, rings),
    lambda inner: st.builds(TileLoop, numbers, small, tuples(inner)),
    max_leaves=5,
)
formulas = tuples(
    st.one_of(
        st.tuples(st.just(Calc.CONST), words),
        st.tuples(st.just(Calc.SLOT), numbers),
        st.tuples(st.sampled_from([c for c in Calc if c.value > 1]), st.just(0)),
    ),
    4,
)
slots = st.one_of(
    st.builds(
        SlotDef, st.sampled_from([g for g in Given if g is not Given.FORMULA]), numbers,
        st.just(()), names,
    ),
    st.builds(SlotDef, st.just(Given.FORMULA), numbers, formulas, names),
)  # fmt: skip
programs = st.builds(
    Program, names, tuples(slots, 4), tuples(st.builds(Buffer, names, small, small, numbers)),
    tuples(
        st.builds(
            Section, names, tuples(st.builds(Axis, names, values, small, small, small)),
            tuples(nodes),
        ), 2,
    ),
    small, st.tuples(small, small, small), tuples(names),
)  # fmt: skip


def example() -> Program:
    text = textwrap.dedent((text_module.__doc__ or "").split("\n\n")[1])
    return parse_program(text)


@given(programs)
def test_binary_round_trips(program: Program) -> None:
    assert decode(encode(program)) == program


@given(programs)
def test_text_round_trips(program: Program) -> None:
    assert parse_program(print_program(program)) == program


def test_the_example_in_the_documentation_is_what_is_printed() -> None:
    text = textwrap.dedent((text_module.__doc__ or "").split("\n\n")[1]) + "\n"
    assert print_program(parse_program(text)) == text


def test_not_a_number_survives() -> None:
    op = VecOp(CONST, DType.F32, (), math.nan)
    section = Section("s", (), (Vec((), (), (), (op,), ()),))
    program = Program("p", (), (), (section,), 0, (0, 0, 0), ())
    assert "const nan" in print_program(decode(encode(program)))
    assert "const nan" in print_program(parse_program(print_program(program)))


def test_every_single_damaged_byte_is_noticed() -> None:
    data = encode(example())
    header = range(32)  # the fifth word is reserved
    for at in [*header, *range(8 * HEADER_WORDS, len(data), 7)]:
        broken = bytearray(data)
        broken[at] ^= 0x41
        with pytest.raises(InvalidProgram):
            decode(bytes(broken))


@pytest.mark.parametrize("keep", [0, 7, 8, 39, 40, 48, -8])
def test_a_truncated_program_is_refused(keep: int) -> None:
    with pytest.raises(InvalidProgram, match=r"truncated|corrupted"):
        decode(encode(example())[:keep])


def test_another_version_says_what_to_do() -> None:
    data = bytearray(encode(example()))
    struct.pack_into("<q", data, 8, 99)
    with pytest.raises(InvalidProgram, match=r"version 99\n.*\n.*delete the program cache"):
        decode(bytes(data))


@given(st.lists(st.integers(-3, 40) | words, max_size=60))
def test_words_that_make_no_program_are_refused(body: list[int]) -> None:
    raw = struct.pack(f"<{len(body)}q", *body)
    magic, version = struct.unpack_from("<2q", encode(example()))
    header = struct.pack("<5q", magic, version, len(body), zlib.crc32(raw), 0)
    try:
        program = decode(header + raw)
    except InvalidProgram:
        return
    assert decode(encode(program)) == program


BAD = [
    ("", "there is no program", 'program "name"'),
    ("loop a0 tile 4", "line 1: a loop outside of a section", 'section "name"'),
    ("jump a0", "line 1: no line starts with 'jump'", "text_program.py"),
    ('program "p"', "line 1: cannot read", "another form"),
    ('slot %1 "n" = size 0', "slot 1 stands where slot 0 belongs", ""),
    ('slot %0 "n" = sice 0', "'sice' gives no slot", "one of address"),
    ('section "s"\n  in pool:f16{0}', "line 2: this line belongs to a vec before it", ""),
    ('section "s"\n  vec []\n    in pool:f17{0}', "line 3: 'f17' is no dtype", "one of f16"),
    ('section "s"\n  vec []\n    v0 f32 = ad v0 v1', "line 3: there is no op ad", ""),
    ('section "s"\n  vec []\n    in pool:f16{0 + a1}', "cannot read the term `a1`", "2*a0"),
    ('section "s"\n  vec [0]', "line 2: cannot read the axes [0]", "[a0 a1]"),
]


@pytest.mark.parametrize(("text", "what", "hint"), BAD)
def test_bad_text_says_what_and_where(text: str, what: str, hint: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_program(text)
    assert what in str(caught.value)
    assert hint in str(caught.value)


def test_places_that_text_cannot_carry_are_refused() -> None:
    place = Place(Space.LX, DType.F16, 0, (), 1, argument=2)
    section = Section("s", (), (Copy((), place, place),))
    with pytest.raises(InvalidProgram, match="a place is an argument, the pool or a buffer"):
        print_program(Program("p", (), (), (section,), 0, (0, 0, 0), ()))
