"""Kernel text: what is printed parses to the same kernel; what does not parse says why."""

import math
import sys
import textwrap
from dataclasses import replace
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import openspyre.ir.text as text_module
from openspyre.errors import InvalidKernel
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    Dim,
    Division,
    DType,
    Index,
    Kernel,
    Kind,
    Load,
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
)  # fmt: skip
from openspyre.ir.ops import TABLE
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.ir.text_body import result_class
from tests.regions import NAMES, load_region

P, J, N = Expr.var("i"), Expr.var("j"), Expr.var("n")
F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL


def small_kernel(body: Scalar, *, dtype: DType = F32) -> Kernel:
    tensors = (
        Tensor("x", DType.F16, (N, Expr.of(4)), Role.INPUT, (Expr.of(4), Expr.of(1))),
        Tensor("k", I64, (N,), Role.INPUT, (Expr.of(-2),)),
        Tensor("b", BOOL, (N,), Role.INPUT, (Expr.of(0),)),
        Tensor("y", dtype, (N, Expr.of(4)), Role.OUTPUT, (Expr.of(4), Expr.of(1))),
    )
    op = Op("op0", Kind.MAP, (Dim("i", N), Dim("j", Expr.of(4))), body, Access("y", (P, J)))
    return Kernel("small", ("n",), ("x", "k", "b", "y"), {t.name: t for t in tensors}, (op,))


def full_kernel() -> Kernel:
    """Every field of the IR with a value of its own."""
    tensors = (
        Tensor(
            "table", DType.BF16, (Expr.of(9), Expr.of(4)), Role.INPUT, (Expr.of(-4), Expr.of(2))
        ),
        Tensor("ids", DType.I32, (N,), Role.INPUT, (Expr.of(1),)),
        Tensor("eps", F32, (), Role.SCALAR),
        Tensor("acc", F32, (Expr.of(9), Expr.of(4)), Role.MUTATED, (Expr.of(4), Expr.of(1))),
        Tensor("t.1", F32, (N, Expr.of(4)), Role.LOCAL),
        Tensor("s", F32, (N,), Role.OUTPUT, (Expr.of(3),)),
    )
    row = Lookup("r", "ids", (P,), Expr.of(9), wrap=True)
    first = Op(
        "gather0", Kind.GATHER, (Dim("i", N), Dim("j", Expr.of(4))),
        Call("add", (Load("table", (Expr.var("r"), J), F32), Load("eps", (), F32)), F32),
        Access("t.1", (P, J)), lookups=(row,), source='model.py:3 "embed"\nline two',
    )  # fmt: skip
    second = Op(
        "sum1", Kind.REDUCE, (Dim("i", N),), Load("t.1", (P, J - 1), F32, guarded=True),
        Access("s", (P,)), rdims=(Dim("j", Expr.of(4)),), reduce="sum",
    )  # fmt: skip
    third = Op(
        "scatter2", Kind.SCATTER, (Dim("i", N), Dim("j", Expr.of(4))), Load("t.1", (P, J), F32),
        Access("acc", (Expr.var("r"), J)), lookups=(row,), accumulate=True,
    )  # fmt: skip
    step = Step(
        "s0", ("gather0", "sum1"), (Dim("a", N * 2 + 1),),
        {"gather0": {"i": "a"}, "sum1": {}}, (Loop("a", 64),), {"sum1": (Loop("j", 2),)},
    )  # fmt: skip
    return Kernel(
        "a name, quoted", ("n",), ("table", "ids", "eps", "acc", "s"),
        {t.name: t for t in tensors}, (first, second, third), {"n": (0, 4096)},
        {"t.1": StickLayout((1, 0))}, (step, Step("s1", ("scatter2",), (), {})),
        {"s0": Division((Part("a", 8, 4, 64), Part("j", 4, 1))), "s1": Division()},
        {
            "t.1": Residency(Space.LX, 256, 1024, 0, 1),
            "u": Residency(Space.DEVICE, 0, 8, 1, 1),
        },
    )  # fmt: skip


def test_every_field_round_trips() -> None:
    kernel = full_kernel()
    assert parse_kernel(print_kernel(kernel)) == kernel


def test_the_example_in_the_documentation_round_trips() -> None:
    example = textwrap.dedent((text_module.__doc__ or "").split("\n\n")[1]) + "\n"
    assert print_kernel(parse_kernel(example)) == example


@pytest.mark.parametrize("name", NAMES)
def test_real_regions_round_trip(name: str) -> None:
    kernel = load_region(name)
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert print_kernel(parse_kernel(text)) == text


def test_parsing_a_real_model_takes_few_calls() -> None:
    """A compiled module pays this at every import."""
    text = print_kernel(load_region("minilm_captured"))
    calls = 0

    def count(_frame: FrameType, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        parse_kernel(text)
    finally:
        sys.setprofile(None)
    assert calls < 2 * len(text)


floats = st.one_of(
    st.sampled_from([math.inf, -math.inf, 0.0, -0.0, 1e-45, 3.4e38, 1 / 3, 0.1767766952966369]),
    st.floats(allow_nan=False),
)
leaves: st.SearchStrategy[Scalar] = st.one_of(
    floats.map(lambda v: Const(v, F32)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: Const(v, I64)),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: Const(v, I32)),
    st.booleans().map(lambda v: Const(int(v), BOOL)),
    st.sampled_from([
        Load("x", (P, J), F32), Load("x", (P - 1, J // 2), F32, guarded=True),
        Load("k", (P,), I64), Load("b", (P,), BOOL), Load("k", (P,), I32),
        Index(P * 4 + J), Index(P % 3, I32),
    ]),
)  # fmt: skip


def _calls(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    def of(op: str) -> st.SearchStrategy[Scalar]:
        arity = TABLE[op].arity
        args = st.tuples(*[inner] * arity)
        if op == "cast":
            return st.tuples(args, st.sampled_from(list(DType))).map(lambda p: Call(op, *p))
        stated = st.sampled_from([None, F32, I32])
        return st.tuples(args, stated).map(lambda p: Call(op, p[0], p[1] or result_class(op, p[0])))

    return st.sampled_from(sorted(TABLE)).flatmap(of)


@given(st.recursive(leaves, _calls, max_leaves=12))
def test_every_expression_round_trips(body: Scalar) -> None:
    kernel = small_kernel(body)
    parsed = parse_kernel(print_kernel(kernel))
    assert parsed == kernel
    assert repr(parsed.ops[0].body) == repr(body)  # tells 0.0 from -0.0, and 1 from 1.0


def test_nan_round_trips() -> None:
    text = print_kernel(small_kernel(Const(math.nan, F32)))
    match parse_kernel(text).ops[0].body:
        case Const(value, dtype):
            assert math.isnan(value)
            assert dtype is F32


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ("x[i, j] + 2.0 * x[i, j]", "(x[i, j] + (2.0 * x[i, j]))"),
        ("x[i, j] - 1.0 - 2.0", "((x[i, j] - 1.0) - 2.0)"),
        ("(x[i, j]) * (exp((x[i, j])))", "(x[i, j] * exp(x[i, j]))"),
        ("idx[i] - idx[j] >= 0 & 1", "((idx[i] - idx[j]) >= (0 & 1))"),
        ("k[i] | 1 ^ 2 & 3 << 1", "(k[i] | (1 ^ (2 & (3 << 1))))"),
    ],
)
def test_brackets_may_be_left_out_as_in_python(loose: str, strict: str) -> None:
    text = print_kernel(small_kernel(Const(0.0, F32), dtype=F32))
    first, second = (parse_kernel(text.replace("<- 0.0", f"<- {v}")) for v in (loose, strict))
    assert first == second
    assert f"<- {strict}\n" in print_kernel(first)


def test_shared_values_are_printed_once() -> None:
    body: Scalar = Load("x", (P, J), F32)
    for _ in range(60):  # written out, this would be 2**60 terms
        body = Call("add", (body, body), F32)
    text = print_kernel(small_kernel(body))
    assert len(text) < 6000
    assert print_kernel(parse_kernel(text)) == text


def test_contiguous_strides_are_not_printed() -> None:
    kernel = full_kernel()
    text = print_kernel(kernel)
    assert "mutated acc: f32[9, 4]\n" in text
    assert "input table: bf16[9, 4] strides [-4, 2]\n" in text


BAD = [
    ("kernel", "kernl a", "line 1: no line starts with 'kernl'", "try: kernel"),
    ("no kernel", "symbols n", "there is no kernel", "no line `kernel NAME`"),
    ("dtype", "kernel a\ninput x: f17[4]", "line 2: 'f17' is no dtype", "one of f16"),
    ("tensor", "kernel a\ninput x f16[4]", "line 2: cannot read", "input x: f16[4, n]"),
    ("twice", "kernel a\nlocal x: f16[4]\nlocal x: f16[4]", "line 3: tensor x is there", ""),
    ("kind", "kernel a\nop o mapp i:4", "line 2: 'mapp' is no kind", "one of map"),
    ("dim", "kernel a\nop o map i4", "line 2: cannot read `i4`", "i0:128"),
    ("no body", "kernel a\nop o map i:4", "op o has no body", "out[...] <- value"),
    ("limits", "kernel a\nlimits n:4", "line 2: cannot read", "limits n:1..64"),
    ("plan", "kernel a\nloops i/4", "line 2: this line belongs to a step", ""),
    ("division", "kernel a\ndivision s: i by 4", "line 2: cannot read", "i0 parts 8"),
    ("space", "kernel a\nresidency t: hbm offset 0 bytes 4 steps 0..1", "'hbm' is no space", "lx"),
]
BAD_BODIES = [
    ("y[i] <- exq(x[i])", "there is no op exq", "exp"),
    ("y[i] <- exp(x[i], x[i])", "exp takes 1 arguments, not 2", ""),
    ("y[i] <- xx[i]", "there is no tensor xx", "x"),
    ("yy[i] <- x[i]", "there is no tensor yy", "y"),
    ("y[i] <- sam: x[i]", "'sam' is no reduction", "one of sum"),
    ("y[i] <- (x[i] + 1.0", "expected ')'", ""),
    ("y[i] <- x[i] 1.0", "'1.0' does not belong there", ""),
    ("y[i] <- x[i] < 1.0 < 2.0", "comparisons do not chain", "brackets"),
    ("y[i] <- %3", "%3 is not defined", ""),
    ("y[i] <- x[i +]", "cannot read the index expression", ""),
    ("y[i] <- ?", "expected a value", ""),
    ("y[i] <- ", "op o has no body yet", "out[i0, i1] <- value"),
    ("y[i] <- $", "cannot read '$'", ""),
    ("y[i] = x[i]", "op o has no body yet", "out[i0, i1] <- value"),
]


@pytest.mark.parametrize(("text", "what", "hint"), [case[1:] for case in BAD])
def test_bad_lines_say_what_and_what_to_try(text: str, what: str, hint: str) -> None:
    with pytest.raises(InvalidKernel) as caught:
        parse_kernel(text)
    assert what in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(("store", "what", "hint"), BAD_BODIES)
def test_bad_bodies_say_what_and_where(store: str, what: str, hint: str) -> None:
    head = "kernel a\ninput x: f32[4]\noutput y: f32[4]\nop o map i:4\n  "
    with pytest.raises(InvalidKernel) as caught:
        parse_kernel(head + store)
    assert str(caught.value).startswith(f"line 5: {what}")
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "3x", "", "idx", "a[0]"])
def test_names_that_text_cannot_carry_are_refused(name: str) -> None:
    kernel = small_kernel(Const(0.0, F32))
    tensor = replace(kernel.tensors["k"], name=name)
    with pytest.raises(InvalidKernel, match="cannot stand in kernel text"):
        print_kernel(replace(kernel, tensors={**kernel.tensors, name: tensor}))
