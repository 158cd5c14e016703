"""Flat addresses back to one index per dim."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.frontend.addresses import Domain, Placement, divided, indices
from openspyre.frontend.sizes import Symbols
from openspyre.ir.index import Expr, parse

SIZES = Symbols({"s": (2, 1000), "n": (2, 1000)})


def domain(**extents: str | int) -> Domain:
    return Domain({d: (Expr.of(0), parse(str(e)) - 1) for d, e in extents.items()}, SIZES)


def exprs(text: str) -> tuple[Expr, ...]:
    return tuple(map(parse, text.split(", ")))


def placed(shape: str, strides: str) -> Placement:
    return Placement(exprs(shape), exprs(strides))


def found(address: str, where: Placement, inside: Domain) -> tuple[tuple[Expr, ...], bool]:
    return indices(parse(address), where, inside)


def test_by_strides() -> None:
    where, inside = placed("4, 12, 64", "768, 64, 1"), domain(i0=4, i1=12, i2=61)
    assert found("768*i0 + 64*i1 + i2 + 3", where, inside) == (exprs("i0, i1, i2 + 3"), True)


def test_merged_dims_carry() -> None:
    where, inside = placed("4, 12, 64", "768, 64, 1"), domain(i0=48, i1=64)
    assert found("64*i0 + i1", where, inside) == (exprs("i0 // 12, i0 % 12, i1"), True)


def test_symbolic_strides() -> None:
    where, inside = placed("2, s + 1, 64", "64*s + 64, 64, 1"), domain(i0=2, i1="s + 1", i2=64)
    address = "64*s*i0 + 64*i0 + 64*i1 + i2"
    assert found(address, where, inside) == (exprs("i0, i1, i2"), True)


def test_merged_symbolic_dims() -> None:
    where, inside = placed("n, s, 8", "8*s, 8, 1"), domain(i0="n*s", i1=8)
    assert found("8*i0 + i1", where, inside) == (exprs("i0 // s, i0 % s, i1"), True)


def test_an_offset_below_zero_is_safe_only_under_its_mask() -> None:
    where, inside = placed("9, 64", "64, 1"), domain(i0=9, i1=64)
    carried = exprs("i0 + (i1 - 32) // 64, (i1 - 32) % 64")
    assert found("64*i0 + i1 - 32", where, inside) == (carried, False)
    masked = inside.refined({"i1": (Expr.of(32), Expr.of(63))})
    assert found("64*i0 + i1 - 32", where, masked) == (exprs("i0, i1 - 32"), True)


def test_absolute_values_have_a_range() -> None:
    assert domain(i0=5, i1=5).interval(parse("max(i0 - i1, i1 - i0)")) == (Expr.of(0), Expr.of(4))


def test_division_of_polynomials() -> None:
    assert divided(parse("12*s*n + 12*n + 5"), parse("s + 1")) == (parse("12*n"), parse("5"))
    assert divided(parse("-32"), parse("64")) == (parse("0"), parse("-32"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_address_is_found_again(data: st.DataObject) -> None:
    """Random dense layouts read through random merges of neighbouring dims."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * shape[d]
    groups = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    extents, address, position = {}, Expr.of(0), 0
    while position < len(order):
        width = groups[position % len(groups)]
        merged = order[position : position + width]
        name = f"i{position}"
        extents[name] = 1
        for d in merged:
            extents[name] *= shape[d]
        address = address + Expr.var(name) * strides[merged[-1]]
        position += width
    where = Placement(tuple(map(Expr.of, shape)), tuple(map(Expr.of, strides)))
    index, safe = indices(address, where, domain(**extents))
    assert safe
    for point in itertools.product(*map(range, extents.values())):
        values = dict(zip(extents, point, strict=True))
        place = [i.evaluate(values) for i in index]
        assert all(0 <= p < e for p, e in zip(place, shape, strict=True))
        reached = sum(p * s for p, s in zip(place, strides, strict=True))
        assert reached == address.evaluate(values)


def test_sizes_that_shrink_with_a_symbol() -> None:
    """The extents of a convolution's result are positive, whatever the symbols' names."""
    for large, small in (("n", "s"), ("s", "n")):
        extent = f"{large} - {small} + 3"
        where = placed(f"2, {extent}", f"{extent}, 1")
        inside = domain(i0=2, i1=extent)
        address = f"{large}*i0 - {small}*i0 + 3*i0 + i1"
        assert found(address, where, inside) == (exprs("i0, i1"), True)


def test_windows_end_inside() -> None:
    """4 * ((n - s) // 4) + s is at most n."""
    where, inside = placed("2, n", "n, 1"), domain(i0=2, i1="(n - s) // 4 + 1", r0="s")
    assert found("n*i0 + 4*i1 + r0", where, inside) == (exprs("i0, 4*i1 + r0"), True)
    assert SIZES.lower(parse("4*(n // 4) - n")) == -3
    assert SIZES.lower(parse("3*(n // 4) - n")) is None
