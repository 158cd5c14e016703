"""Canonical form: values stay, indices become affine, masks become pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.ir import verify
from openspyre.ir.kernel import Kernel, Kind, Load, Role, walk
from openspyre.ir.reference import STORAGE, evaluate
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.regions import load_region


def inputs(kernel: Kernel, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random values; integers are 0 or 1, so that they index anything."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in kernel.tensors.values():
        if tensor.role in (Role.LOCAL, Role.OUTPUT):
            continue
        shape = tuple(e.evaluate(sizes) for e in tensor.shape)
        if tensor.dtype.is_float:
            found[tensor.name] = rng.standard_normal(shape).astype(np.float32) * 0.25
        else:
            found[tensor.name] = rng.integers(0, 2, shape).astype(STORAGE[tensor.dtype])
    return found


def canonical(kernel: Kernel) -> Kernel:
    changed = canonicalize(kernel, SPYRE_CARD_V1)
    assert list(verify.canonical(changed, SPYRE_CARD_V1)) == []
    return changed


def same_values(kernel: Kernel, **sizes: int) -> Kernel:
    """The canonical kernel, after comparing its values with the original's."""
    changed = canonical(kernel)
    given = inputs(kernel, sizes)
    expected, found = evaluate(kernel, given, sizes), evaluate(changed, given, sizes)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            found[name].astype(np.float64), values.astype(np.float64), rtol=1e-3, atol=1e-5
        )
    return changed


def kinds(kernel: Kernel) -> list[Kind]:
    return [op.kind for op in kernel.ops]


def guarded(kernel: Kernel) -> int:
    return sum(isinstance(n, Load) and n.guarded for op in kernel.ops for n in walk(op.body))


@pytest.mark.parametrize(
    "name", ["gpt2_captured", "t5_captured", "vit_captured", "whisper_captured"]
)
def test_real_regions_keep_their_values(name: str) -> None:
    same_values(load_region(name))


def test_division_and_remainder_split_a_dim() -> None:
    kernel = same_values(
        parse_kernel("""
kernel heads
arguments c w y
input c: f16[5, 12, 32]
input w: f16[7, 384]
output y: f32[5, 7]
op dot contract i0:5 i1:7 | r0:384
  y[i0, i1] <- sum: c[i0, r0 // 32, r0 % 32] * w[i1, r0]
""")
    )
    (op,) = kernel.ops
    assert [str(d.extent) for d in op.rdims] == ["12", "32"]
    assert op.kind is Kind.CONTRACT


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (0, 4), (4, 0)])
def test_flattened_dims_split_by_a_symbol(sizes: tuple[int, int]) -> None:
    kernel = same_values(
        parse_kernel("""
kernel rows
symbols b s
arguments x y
input x: f16[b, s, 3]
output y: f16[b*s, 3]
op copy map i0:b*s i1:3
  y[i0, i1] <- f16(x[i0 // s, i0 % s, i1] + 1.0)
"""),
        b=sizes[0],
        s=sizes[1],
    )
    assert [str(d.extent) for d in kernel.ops[0].dims] == ["b", "s", "3"]


def test_what_does_not_split_is_looked_up() -> None:
    kernel = same_values(
        parse_kernel("""
kernel odd
arguments x y
input x: f32[10, 4]
output y: f32[13, 4]
op pick map i0:13 i1:4
  y[i0, i1] <- x[(i0*5) // 7, (i0 + i1) % 4] + f32(idx[(i0 * 3) // 5])
""")
    )
    assert Kind.GATHER in kinds(kernel)
    assert kernel.ops[-1].lookups


def test_a_store_at_a_computed_place_is_a_scatter() -> None:
    kernel = parse_kernel("""
kernel place
arguments x y
input x: f32[10]
output y: f32[4]
op put map i0:10
  y[i0 // 3] <- x[i0]
""")
    assert Kind.SCATTER in kinds(same_values(kernel))


def test_concatenation_becomes_pieces_without_guards() -> None:
    kernel = same_values(
        parse_kernel("""
kernel cat
arguments a b y
input a: f16[3, 5]
input b: f16[3, 7]
output y: f16[3, 12]
op cat map i0:3 i1:12
  y[i0, i1] <- where(idx[i1] < 5, a?[i0, i1], b?[i0, i1 - 5])
""")
    )
    assert guarded(kernel) == 0
    assert [str(op.dims[1].extent) for op in kernel.ops] == ["5", "7"]


@pytest.mark.parametrize("size", [1, 2, 9])
def test_symbolic_rotation_becomes_pieces(size: int) -> None:
    kernel = same_values(
        parse_kernel("""
kernel rope
symbols n
limits n:1..64
arguments x y
input x: f32[3, 2*n]
output y: f32[3, 2*n]
op turn map i0:3 i1:2*n
  y[i0, i1] <- where(idx[i1] < idx[n], neg(x?[i0, i1 + n]), x?[i0, i1 - n]) * x[i0, i1 % n]
"""),
        n=size,
    )
    assert guarded(kernel) == 0
    assert kinds(kernel) == [Kind.MAP, Kind.MAP]


@pytest.mark.parametrize("group", [2, 4, 8, 16])
def test_a_stack_behind_a_view_becomes_pieces(group: int) -> None:
    """`stack((a, b), 1).view(-1, group)`: dims of the view say which part a point lies in."""
    at, flat = f"({group}*i1 + i2) % 8", f"{group}*i1 + i2"
    place = f"4*(({at}) // 4) + 4*(({flat}) // 8) + ({flat}) % 4"
    kernel = same_values(
        parse_kernel(f"""
kernel stack
arguments a b y
input a: f16[3, 8]
input b: f16[3, 8]
output y: f16[3, {16 // group}, {group}]
op stack map i0:3 i1:{16 // group} i2:{group}
  y[i0, i1, i2] <- where(idx[{at}]:i32 < 4:i32, a?[i0, {place}], b?[i0, {place} - 4])
""")
    )
    assert guarded(kernel) == 0
    assert Kind.GATHER not in kinds(kernel)


def test_a_guard_that_no_single_dim_explains_stays() -> None:
    kernel = parse_kernel("""
kernel diagonal
arguments x y
input x: f32[6]
output y: f32[4, 4]
op band map i0:4 i1:4
  y[i0, i1] <- where((idx[i0] - idx[i1]) >= 0, x?[i0 - i1], 0.0)
""")
    assert guarded(same_values(kernel)) == 1


def test_true_conditions_and_useless_casts_vanish() -> None:
    kernel = same_values(
        parse_kernel("""
kernel mask
arguments x y
input x: f16[8]
output y: f16[8]
op m map i0:8
  y[i0] <- f16(where(1:b1 & (idx[i0] >= 0), f16(x[i0]) * 1.0, 7.0))
""")
    )
    assert isinstance(kernel.ops[0].body, Load)


def test_a_transposed_copy_is_read_through() -> None:
    kernel = same_values(
        parse_kernel("""
kernel through
arguments x y
input x: f16[4, 6]
output y: f16[6, 4]
local t: f16[6, 4]
op copy map i0:6 i1:4
  t[i0, i1] <- x[i1, i0]
op double map i0:6 i1:4
  y[i0, i1] <- f16(t[i0, i1] * 2.0)
""")
    )
    assert len(kernel.ops) == 1
    assert "t" not in kernel.tensors


def test_a_copy_taken_before_a_write_stays() -> None:
    kernel = same_values(
        parse_kernel("""
kernel before
arguments x y
mutated x: f32[4]
output y: f32[4]
local t: f32[4]
op copy map i0:4
  t[i0] <- x[i0]
op change map i0:4
  x[i0] <- x[i0] + 1.0
op use map i0:4
  y[i0] <- t[i0] * 2.0
""")
    )
    assert len(kernel.ops) == 3


def test_reading_elsewhere_what_is_written_goes_through_a_tensor() -> None:
    kernel = same_values(
        parse_kernel("""
kernel flip
arguments x
mutated x: f32[9]
op flip map i0:9
  x[i0] <- x[8 - i0]
""")
    )
    assert len(kernel.ops) == 2


def test_equal_ops_are_computed_once_and_dead_ones_not_at_all() -> None:
    kernel = same_values(
        parse_kernel("""
kernel twice
arguments x y
input x: f32[5, 8]
output y: f32[5]
local a: f32[5]
local b: f32[5]
local dead: f32[5]
op one reduce i0:5 | r0:8
  a[i0] <- sum: x[i0, r0]
op two reduce i0:5 | r1:8
  b[i0] <- sum: x[i0, r1]
op three map i0:5
  dead[i0] <- a[i0]
op use map i0:5
  y[i0] <- a[i0] * b[i0]
""")
    )
    assert [op.name for op in kernel.ops] == ["one", "use"]


@pytest.mark.parametrize(
    ("dtype", "expected"), [("i64", Kind.REDUCE), ("f16", Kind.CONTRACT), ("b1", Kind.REDUCE)]
)
def test_contractions(dtype: str, expected: Kind) -> None:
    kernel = same_values(
        parse_kernel(f"""
kernel dot
arguments a b y
input a: {dtype}[3, 5]
input b: {dtype}[4, 5]
output y: {"f32" if dtype == "f16" else dtype}[3, 4]
op dot contract i0:3 i1:4 | r0:5
  y[i0, i1] <- sum: a[i0, r0] * b[i1, r0]
""")
    )
    assert kinds(kernel) == [expected]


def contracted(text: str) -> tuple[Kernel, Kernel]:
    """The kernel of a text, and the same with its only reduction called a contraction."""
    kernel = parse_kernel(text)
    (op,) = kernel.ops
    return kernel, canonical(replace(kernel, ops=(replace(op, kind=Kind.CONTRACT),)))


def test_casts_of_both_operands_are_plain_loads() -> None:
    _, kernel = contracted("""
kernel dot
arguments a b y
input a: f16[3, 5]
input b: f16[4, 5]
output y: f32[3, 4]
op dot reduce i0:3 i1:4 | r0:5
  y[i0, i1] <- sum: f32(a[i0, r0]) * f32(b[i1, r0])
""")
    assert kinds(kernel) == [Kind.CONTRACT]


def test_operands_that_are_computed_get_tensors() -> None:
    plain, kernel = contracted("""
kernel dot
arguments a b ids y
input a: f16[3, 5]
input b: f32[9, 5]
input ids: i64[4]
output y: f32[3, 4]
op dot reduce i0:3 i1:4 | r0:5
  lookup t = ids[i1] size 9
  y[i0, i1] <- sum: (a[i0, r0] * 2.0) * b[t, r0]
""")
    given = inputs(plain, {})
    expected, found = evaluate(plain, given)["y"], evaluate(kernel, given)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert kinds(kernel) == [Kind.MAP, Kind.CONTRACT]
    assert [k.tensor for k in kernel.ops[-1].lookups] == ["ids"]


def test_an_inner_product_of_vectors_is_a_reduction() -> None:
    kernel = same_values(
        parse_kernel("""
kernel dot
arguments a b y
input a: f16[5]
input b: f16[5]
output y: f32[]
op dot contract | r0:5
  y[] <- sum: a[r0] * b[r0]
""")
    )
    assert kinds(kernel) == [Kind.REDUCE]


def test_an_empty_contraction_is_zero() -> None:
    kernel = same_values(
        parse_kernel("""
kernel none
arguments a b y
input a: f16[2, 0]
input b: f16[3, 0]
output y: f16[2, 3]
op dot contract i0:2 i1:3 | r0:0
  y[i0, i1] <- sum: a[i0, r0] * b[i1, r0]
""")
    )
    assert kinds(kernel) == [Kind.MAP]


@pytest.mark.parametrize("dtype", ["f32", "i64", "i32", "b1"])
@pytest.mark.parametrize("reduce", ["sum", "max", "min", "prod", "any"])
def test_a_reduction_over_nothing_is_neutral(dtype: str, reduce: str) -> None:
    kernel = same_values(
        parse_kernel(f"""
kernel none
arguments x y
input x: {dtype}[3, 0]
output y: {dtype}[3]
local t: {dtype}[3, 0]
op copy map i0:3 i1:0
  t[i0, i1] <- x[i0, i1]
op all reduce i0:3 | r0:0
  y[i0] <- {reduce}: t[i0, r0]
""")
    )
    assert kinds(kernel) == [Kind.MAP]


def test_nested_lookups_become_steps_of_one() -> None:
    kernel = same_values(
        parse_kernel("""
kernel nested
arguments table a b y
input table: f32[2, 3]
input a: i64[4]
input b: i64[2]
output y: f32[4, 3]
op pick gather i0:4 i1:3
  lookup t = a[i0] size 2
  lookup u = b[t] size 2
  y[i0, i1] <- table[u, i1]
""")
    )
    assert all(not e.names & {k.name for k in op.lookups} for op in kernel.ops
               for k in op.lookups for e in k.index)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "steps"), [("100, 1024", 2), ("1, 102400", 2), ("102400, 1", 2), ("10, 10", 1)]
)
@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_large_reductions_are_shared(shape: str, steps: int, reduce: str) -> None:
    rows, columns = shape.split(", ")
    kernel = same_values(
        parse_kernel(f"""
kernel all
arguments x y
input x: f16[{shape}]
output y: f16[]
op all reduce | r0:{rows} r1:{columns}
  y[] <- {reduce}: x[r0, r1]
""")
    )
    rows_cut = steps > 1  # what goes across lanes comes in parts side by side
    assert len(kernel.ops) == steps + rows_cut


@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_cores_share_a_reduction_along_the_dim_that_fills_no_sticks(reduce: str) -> None:
    kernel = same_values(
        parse_kernel(f"""
kernel all
arguments table ids y
input table: f32[9, 256]
input ids: i64[2, 16]
output y: f32[]
op all reduce | r0:2 r1:16 r2:256
  lookup k0 = ids[r0, r1] size 9
  y[] <- {reduce}: table[k0, r2]
""")
    )
    first, *others = kernel.ops
    assert [d.extent.constant for d in first.dims][:1] == [16]
    assert [bool(op.lookups) for op in kernel.ops] == [True, *(False for _ in others)]
