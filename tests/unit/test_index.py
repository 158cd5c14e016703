"""Index expressions: equal ones compare equal, text round-trips, values are Python's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openspyre.errors import InvalidKernel
from openspyre.ir.index import Expr, Size, ceil_div, combine, parse

NAMES = ("a", "b", "n")


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.integers(-5, 5).map(Expr.of), st.sampled_from(NAMES).map(Expr.var))
    return st.recursive(leaves, _larger, max_leaves=6)


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    positive = st.integers(1, 7).map(Expr.of)
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, positive).map(lambda p: p[0] // p[1]),
        st.tuples(inner, positive).map(lambda p: p[0] % p[1]),
        st.tuples(inner, inner).map(lambda p: combine("min", *p)),
        st.tuples(inner, inner).map(lambda p: combine("max", *p)),
    )


values = st.fixed_dictionaries({name: st.integers(-9, 9) for name in NAMES})


@given(expressions())
def test_text_round_trips(expr: Expr) -> None:
    assert parse(str(expr)) == expr
    assert hash(parse(str(expr))) == hash(expr)


@given(expressions(), values)
def test_text_means_what_python_says(expr: Expr, at: dict[str, int]) -> None:
    assert eval(str(expr), {"min": min, "max": max}, dict(at)) == expr.evaluate(at)


@given(expressions(), expressions(), values)
def test_arithmetic_is_that_of_the_values(a: Expr, b: Expr, at: dict[str, int]) -> None:
    x, y = a.evaluate(at), b.evaluate(at)
    assert (a + b).evaluate(at) == x + y
    assert (a - b).evaluate(at) == x - y
    assert (a * b).evaluate(at) == x * y
    assert combine("max", a, b).evaluate(at) == max(x, y)
    if y > 0 and b.constant is not None:
        assert (a // b).evaluate(at) == x // y
        assert (a % b).evaluate(at) == x % y


@given(expressions(), expressions(), values)
def test_substitution_is_evaluation_in_two_steps(a: Expr, b: Expr, at: dict[str, int]) -> None:
    substituted = a.substitute({"a": b})
    assert substituted.evaluate(at) == a.evaluate({**at, "a": b.evaluate(at)})
    assert substituted.names <= (a.names - {"a"}) | b.names


@given(expressions(), expressions())
def test_order_of_building_does_not_show(a: Expr, b: Expr) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert a + b - b == a
    assert a - a == Expr.of(0)


def test_exact_division_needs_no_operator() -> None:
    i, n = Expr.var("i"), Expr.var("n")
    assert (6 * i * n + 4 * n) // (2 * n) == 3 * i + 2
    assert (6 * i) % 3 == Expr.of(0)
    assert i // 1 == i
    assert str((i + 1) // 2) == "(i + 1) // 2" or parse(str((i + 1) // 2)) == (i + 1) // 2


def test_ceil_div() -> None:
    n = Expr.var("n")
    assert [ceil_div(n, 64).evaluate({"n": v}) for v in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_coefficients_of_affine_expressions() -> None:
    i, j, n = (Expr.var(name) for name in "ijn")
    expr = 3 * i * n + j + 7 + n
    assert expr.coefficient("i") == 3 * n
    assert expr.coefficient("k") == Expr.of(0)
    assert expr.without(frozenset("ij")) == n + 7
    assert expr.is_affine_in(frozenset("ij"))
    assert not (i * j).is_affine_in(frozenset("ij"))
    assert not (i // 2).is_affine_in(frozenset("i"))
    with pytest.raises(ValueError, match="not affine in i"):
        (i * i).coefficient("i")
    with pytest.raises(ValueError, match="not affine in i"):
        (n * ((i + 1) // 2)).coefficient("i")


@pytest.mark.parametrize("size", [0, 1, -3, Expr.of(0)])
def test_constants_are_found(size: Size) -> None:
    expected = size if isinstance(size, int) else 0
    assert Expr.of(size).constant == expected
    assert (Expr.var("n") - Expr.var("n") + size).constant == expected


@pytest.mark.parametrize("text", ["", "a +", "a.b", "f(a)", "a[0]", "1.5", "True", "a if b else c"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidKernel, match="cannot read the index expression"):
        parse(text)


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(InvalidKernel, match="division by zero"):
        parse("4 // 0")


@given(expressions())
def test_coefficients_and_what_is_left_are_the_whole(expr: Expr) -> None:
    names = frozenset(("a", "b"))
    try:
        terms, rest = expr.affine(names)
    except ValueError:
        assert not expr.is_affine_in(names)
        return
    assert terms == {n: c for n in names if (c := expr.coefficient(n)) != Expr.of(0)}
    assert rest == expr.without(names)
