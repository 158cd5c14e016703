"""The oracle: what kernels mean, each case against numpy written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from openspyre.errors import CardError, InvalidKernel
from openspyre.ir.kernel import DType, Kernel, Role
from openspyre.ir.reference import STORAGE, cast, evaluate
from openspyre.ir.text import parse_kernel
from tests.regions import load_region

RNG = np.random.default_rng(0)


def kernel(lines: str) -> Kernel:
    return parse_kernel("kernel k\n" + lines)


def run(lines: str, inputs: dict[str, object], **sizes: int) -> dict[str, np.ndarray]:
    return evaluate(kernel(lines), inputs, sizes)  # type: ignore[arg-type]


# --- dtypes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.00390625, 1.0),  # half way between 1 and 1 + 2**-7: to the even one
        (1.01171875, 1.015625),  # half way: up, to the even one
        (1.004, 1.0078125),
        (3.4e38, np.inf),
        (-3.39e38, -3.3895314e38),
        (1e-45, 0.0),
        (9.2e-41, 9.183549e-41),  # the smallest denormal of bfloat16
        (-0.0, -0.0),
        (np.inf, np.inf),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, expected: float) -> None:
    got = cast(np.asarray([value], np.float32), DType.BF16)
    np.testing.assert_array_equal(got, np.asarray([expected], np.float32))
    assert np.signbit(got[0]) == np.signbit(np.float32(expected))


def test_bfloat16_keeps_nan() -> None:
    bits = np.asarray([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    assert np.isnan(cast(bits.view(np.float32), DType.BF16)).all()


def test_casts_round_wrap_and_truncate() -> None:
    floats = np.asarray([-1.9, 0.5, 2.5, 300.7], np.float32)
    assert cast(floats, DType.I64).tolist() == [-1, 0, 2, 300]
    assert cast(floats, DType.U8).tolist() == [255, 0, 2, 44]
    assert cast(floats, DType.BOOL).tolist() == [True, True, True, True]
    assert cast(np.asarray([0.0, -0.0, np.nan]), DType.BOOL).tolist() == [False, False, True]
    wide = np.asarray([2**32 + 5, -(2**31) - 1, 129], np.int64)
    assert cast(wide, DType.I32).tolist() == [5, 2**31 - 1, 129]
    assert cast(wide, DType.I8).tolist() == [5, -1, -127]
    with np.errstate(over="ignore"):
        assert cast(np.asarray([65519.0, 65520.0]), DType.F16).tolist() == [65504.0, np.inf]


def test_narrow_floats_round_only_at_casts_and_stores() -> None:
    lines = """
    input x: f16[1]
    output wide: f16[1]
    output cut: f16[1]
    op a map i:1
      wide[i] <- ((x[i] + 1.0) - x[i])
    op b map i:1
      cut[i] <- (f16(x[i] + 1.0) - x[i])
    """
    got = run(lines, {"x": np.asarray([4096.0])})
    assert got["wide"].tolist() == [1.0]  # in float32 nothing is lost
    assert got["cut"].tolist() == [0.0]  # 4097 is no float16
    assert got["cut"].dtype == np.float16


def test_integers_wrap_in_their_class() -> None:
    lines = """
    input x: i32[2]
    output narrow: i32[2]
    output wide: i64[2]
    op a map i:2
      narrow[i] <- (x[i] * x[i])
    op b map i:2
      wide[i] <- (i64(x[i]) * i64(x[i]))
    """
    got = run(lines, {"x": [70000, -3]})
    assert got["narrow"].tolist() == [70000 * 70000 - 2**32, 9]
    assert got["wide"].tolist() == [4900000000, 9]


def test_narrow_integers_compute_in_i32() -> None:
    lines = "input x: u8[1]\noutput y: i32[1]\noutput z: u8[1]\n" + (
        "op a map i:1\n  y[i] <- (x[i] + 100:i32)\nop b map i:1\n  z[i] <- (x[i] + 100:i32)"
    )
    got = run(lines, {"x": [200]})
    assert got["y"].tolist() == [300]
    assert got["z"].tolist() == [44]


# --- loads ----------------------------------------------------------------------------------


def test_loads_broadcast_reverse_and_split() -> None:
    lines = """
    input x: f32[6]
    input b: f32[2, 1]
    output y: f32[2, 3]
    op a map i:2 j:3
      y[i, j] <- (x[5 - 3*i - j] + b[i, 0])
    """
    x, b = np.arange(6.0), np.asarray([[10.0], [20.0]])
    assert np.array_equal(run(lines, {"x": x, "b": b})["y"], x[::-1].reshape(2, 3) + b)


def test_guarded_loads_are_zero_outside() -> None:
    lines = "input x: f32[3]\noutput y: f32[5]\nop a map i:5\n  y[i] <- x?[i - 1]"
    assert run(lines, {"x": [1, 2, 3]})["y"].tolist() == [0, 1, 2, 3, 0]


def test_guarded_loads_of_nothing_are_zero() -> None:
    lines = "input x: f32[0, 2]\noutput y: f32[2]\nop a map i:2\n  y[i] <- x?[i, i]"
    assert run(lines, {"x": np.zeros((0, 2))})["y"].tolist() == [0, 0]


def test_unguarded_loads_outside_are_refused() -> None:
    lines = "input x: f32[3]\noutput y: f32[5]\nop a map i:5\n  y[i] <- x[i - 1]"
    with pytest.raises(InvalidKernel, match=r"a: x\[i - 1\] leaves the tensor"):
        run(lines, {"x": [1, 2, 3]})


def test_stores_outside_are_refused() -> None:
    lines = "input x: f32[3]\noutput y: f32[3]\nop a map i:3\n  y[i + 1] <- x[i]"
    with pytest.raises(InvalidKernel, match="a stores outside of y"):
        run(lines, {"x": [1, 2, 3]})


def test_index_values_and_scalars() -> None:
    lines = "symbols n\nscalar s: f32[]\noutput y: f32[n]\nop a map i:n\n"
    got = run(lines + "  y[i] <- (f32(idx[n - i // 2]) * s[])", {"s": 0.5}, n=4)
    assert got["y"].tolist() == [2.0, 2.0, 1.5, 1.5]


def test_missing_and_misshaped_inputs_are_named() -> None:
    lines = "symbols n\ninput x: f32[n]\noutput y: f32[n]\nop a map i:n\n  y[i] <- x[i]"
    with pytest.raises(InvalidKernel, match="no size for n"):
        run(lines, {"x": [1.0]})
    with pytest.raises(InvalidKernel, match="no value for the input x"):
        run(lines, {}, n=1)
    with pytest.raises(InvalidKernel, match=r"x has shape \(2,\)\n.*not \(1,\)"):
        run(lines, {"x": [1.0, 2.0]}, n=1)


# --- lookups --------------------------------------------------------------------------------

GATHER = """
symbols n
input table: f16[5, 2]
input ids: i64[n]
output y: f16[n, 2]
op g gather i:n j:2
  at "model.py:7 embedding"
  lookup r = ids[i] size 5 {wrap}
  y[i, j] <- table{guard}[r, j]
"""


def gather(ids: list[int], *, wrap: str = "", guard: str = "") -> np.ndarray:
    table = np.arange(10.0).reshape(5, 2)
    lines = GATHER.replace("{wrap}", wrap).replace("{guard}", guard).replace(" \n", "\n")
    return run(lines, {"table": table, "ids": ids}, n=len(ids))["y"]


def test_gather() -> None:
    assert gather([4, 0, 4]).tolist() == [[8, 9], [0, 1], [8, 9]]
    assert gather([-1, -5], wrap="wrap").tolist() == [[8, 9], [0, 1]]
    assert gather([]).shape == (0, 2)


@pytest.mark.parametrize(("ids", "wrap"), [([5], ""), ([-1], ""), ([-6], "wrap"), ([5], "wrap")])
def test_an_index_out_of_range_is_the_users_error(ids: list[int], wrap: str) -> None:
    with pytest.raises(CardError, match=r"model.py:7 embedding: index out of range") as caught:
        gather(ids, wrap=wrap)
    assert "ids indexes a dim of 5" in str(caught.value)


def test_a_guarded_lookup_may_leave_the_table() -> None:
    assert gather([5, 1, -1], guard="?").tolist() == [[0, 0], [2, 3], [0, 0]]


SCATTER = """
input x: f16[4]
input at: i32[4]
mutated y: f16[3]
op s scatter i:4
  lookup r = at[i] size 3 wrap
  y[r] {arrow} x[i]
"""


def test_scatter_keeps_the_last_value_and_what_nobody_writes() -> None:
    inputs = {"x": [1, 2, 3, 4], "at": [0, -1, 0, 2], "y": [7, 8, 9]}
    assert run(SCATTER.replace("{arrow}", "<-"), inputs)["y"].tolist() == [3, 8, 4]


def test_scatter_order_is_row_major_whatever_varies() -> None:
    lines = """
    input x: f32[2, 3]
    input at: i64[3]
    output y: f32[1]
    op s scatter j:3 i:2
      lookup r = at[j] size 1
      y[r] <- x[i, j]
    """
    got = run(lines, {"x": np.arange(6).reshape(2, 3), "at": [0, 0, 0]})
    assert got["y"].tolist() == [5]


def test_accumulation_adds_in_order_and_rounds_each_time() -> None:
    inputs = {"x": [2048, 1, 1, 3], "at": [0, 0, 0, 1], "y": [0, 1, 5]}
    got = run(SCATTER.replace("{arrow}", "+="), inputs)["y"]
    assert got.tolist() == [2048, 4, 5]  # 2048 + 1 is no float16; 2050 would be one sum of all
    assert inputs["y"] == [0, 1, 5]


def test_scatter_out_of_range() -> None:
    inputs = {"x": [1, 2, 3, 4], "at": [0, 3, 0, 2], "y": [0, 0, 0]}
    with pytest.raises(CardError, match="index out of range: 3"):
        run(SCATTER.replace("{arrow}", "<-"), inputs)


# --- reductions -----------------------------------------------------------------------------


def reduced(op: str, values: np.ndarray, dtype: str) -> object:
    rows, columns = values.shape
    lines = (
        f"symbols n m\ninput x: {dtype}[n, m]\noutput y: {dtype}[n]\n"
        f"op r reduce i:n | j:m\n  y[i] <- {op}: x[i, j]"
    )
    return run(lines, {"x": values}, n=rows, m=columns)["y"].tolist()


def test_reductions() -> None:
    floats = np.asarray([[1.5, -2.0, 3.0], [0.0, 0.5, -1.0]], np.float32)
    assert reduced("sum", floats, "f32") == [2.5, -0.5]
    assert reduced("prod", floats, "f32") == [-9.0, 0.0]
    assert reduced("max", floats, "f32") == [3.0, 0.5]
    assert reduced("min", floats, "f32") == [-2.0, -1.0]
    ints = np.asarray([[2**31 - 1, 1, 5]])
    assert reduced("sum", ints, "i32") == [-(2**31) + 5]
    assert reduced("max", ints, "i64") == [2**31 - 1]
    truths = np.asarray([[False, True], [False, False]])
    assert reduced("any", truths, "b1") == [True, False]


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_reductions_propagate_nan(op: str) -> None:
    values = np.asarray([[1.0, np.nan, 2.0]], np.float32)
    assert np.isnan(reduced(op, values, "f32"))


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("sum", "f32", 0.0),
        ("prod", "f32", 1.0),
        ("max", "f32", -np.inf),
        ("min", "f32", np.inf),
        ("max", "i64", -(2**63)),
        ("min", "i32", 2**31 - 1),
        ("any", "b1", False),
    ],
)
def test_empty_reductions_give_the_neutral_element(op: str, dtype: str, expected: object) -> None:
    assert reduced(op, np.zeros((2, 0), STORAGE[DType(dtype)]), dtype) == [expected, expected]


def test_sums_of_narrow_floats_are_wide() -> None:
    values = np.full((1, 4096), 1.0009765625, np.float16)
    lines = "input x: f16[1, 4096]\noutput y: f32[1]\nop r reduce i:1 | j:4096\n  "
    got = run(lines + "y[i] <- sum: x[i, j]", {"x": values})
    assert got["y"].tolist() == [4100.0]


def test_a_reduction_of_what_does_not_vary() -> None:
    lines = "input x: f32[2]\noutput y: f32[2]\nop r reduce i:2 | j:3 k:4\n  y[i] <- sum: x[i]"
    assert run(lines, {"x": [1.0, 2.0]})["y"].tolist() == [12.0, 24.0]


def test_a_reduction_to_a_scalar() -> None:
    lines = "input x: f32[2, 3]\noutput y: f32[]\nop r reduce | i:2 j:3\n  y[] <- sum: x[i, j]"
    got = run(lines, {"x": np.ones((2, 3))})["y"]
    assert got.shape == ()
    assert got == 6.0


def test_scans_are_inclusive() -> None:
    lines = "input x: i64[2, 4]\noutput y: i64[2, 4]\nop s scan i:2 | r:4\n  y[i, r] <- {}: x[i, r]"
    x = np.asarray([[3, -1, 4, 1], [5, 9, -2, 6]])
    assert np.array_equal(run(lines.format("sum"), {"x": x})["y"], np.cumsum(x, 1))
    assert np.array_equal(run(lines.format("max"), {"x": x})["y"], np.maximum.accumulate(x, 1))


# --- contractions ---------------------------------------------------------------------------


def test_contractions() -> None:
    lines = """
    symbols b m n k
    input x: f16[b, m, k]
    input w: f16[n, k]
    output y: f32[b, n, m]
    op c contract h:b i:m j:n | r:k
      y[h, j, i] <- sum: (x[h, i, r] * w[j, r])
    """
    for sizes in ((2, 3, 4, 5), (1, 1, 1, 1), (2, 3, 1, 7), (0, 3, 4, 5), (2, 3, 4, 0)):
        b, m, n, k = sizes
        x = RNG.standard_normal((b, m, k)).astype(np.float16)
        w = RNG.standard_normal((n, k)).astype(np.float16)
        got = run(lines, {"x": x, "w": w}, b=b, m=m, n=n, k=k)["y"]
        wanted = np.einsum("bmk,nk->bnm", x.astype(np.float64), w.astype(np.float64))
        np.testing.assert_array_equal(got, wanted.astype(np.float32))


def test_contractions_over_split_and_absent_dims() -> None:
    lines = """
    input x: f32[2, 6]
    input w: f32[4]
    output y: f32[2, 4]
    op c contract i:2 j:4 | r:6 q:3
      y[i, j] <- sum: (x[i, r] * w[j])
    op d contract i:2 j:4 | r:3
      y[i, j] <- sum: (x[i, 2*r + 1] * w[3 - j])
    """
    x, w = np.arange(12.0).reshape(2, 6), np.arange(4.0)
    got = run(lines, {"x": x, "w": w})["y"]
    assert np.array_equal(got, np.outer(x[:, 1::2].sum(1), w[::-1]))
    first = evaluate(kernel(lines.partition("op d")[0]), {"x": x, "w": w})["y"]
    assert np.array_equal(first, np.outer(x.sum(1) * 3, w))


def test_nan_and_infinity_pass_through_contractions() -> None:
    lines = "input x: f32[2, 2]\noutput y: f32[2]\nop c contract i:2 | r:2\n"
    got = run(lines + "  y[i] <- sum: (x[i, r] * x[i, r])", {"x": [[np.nan, 0], [np.inf, 1]]})["y"]
    assert np.isnan(got[0])
    assert np.isposinf(got[1])


# --- whole kernels --------------------------------------------------------------------------


def test_parts_of_a_tensor_and_order_of_ops() -> None:
    lines = """
    symbols n
    input x: f32[n]
    output y: f32[2*n]
    op low map i:n
      y[i] <- x[i]
    op high map i:n
      y[i + n] <- (y[i] * 2.0)
    """
    assert run(lines, {"x": [1, 2]}, n=2)["y"].tolist() == [1, 2, 2, 4]
    assert run(lines, {"x": []}, n=0)["y"].shape == (0,)


def test_what_nobody_writes_is_poison() -> None:
    lines = "input x: f32[1]\noutput y: f32[2]\noutput z: i32[2]\nop a map i:1\n  y[i] <- x[i]"
    got = run(lines, {"x": [1]})
    assert np.isnan(got["y"][1])
    assert got["z"].tolist() == [-(2**31)] * 2


def test_mutated_inputs_are_returned_and_not_changed() -> None:
    lines = "mutated x: f32[2]\nop a map i:2\n  x[i] <- (x[i] + 1.0)"
    x = np.asarray([1.0, 2.0], np.float32)
    assert run(lines, {"x": x})["x"].tolist() == [2.0, 3.0]
    assert x.tolist() == [1.0, 2.0]


def test_locals_on_request() -> None:
    lines = "input x: f32[1]\nlocal t: f32[1]\nop a map i:1\n  t[i] <- x[i]"
    assert evaluate(kernel(lines), {"x": [3]}) == {}
    assert evaluate(kernel(lines), {"x": [3]}, keep_locals=True)["t"].tolist() == [3]


def region_inputs(region: Kernel, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    low = {lo.tensor: lo.size.constant or 2 for op in region.ops for lo in op.lookups}
    inputs = {}
    for tensor in region.tensors.values():
        shape = tuple(extent.evaluate(sizes) for extent in tensor.shape)
        if tensor.role is not Role.INPUT:
            continue
        if tensor.dtype.is_float:
            inputs[tensor.name] = (rng.standard_normal(shape) * 0.1).astype(np.float16)
        else:
            inputs[tensor.name] = rng.integers(0, min(2, low.get(tensor.name, 2)), shape)
    return inputs


def first_layer(region: Kernel, last: str) -> Kernel:
    """The ops up to the one that writes `last`."""
    stop = next(i for i, op in enumerate(region.ops) if op.out.tensor == last)
    return replace(region, ops=region.ops[: stop + 1])


def test_two_lowerings_of_one_model_agree() -> None:
    """MiniLM with linear, sdpa and layer_norm kept whole, and as stock Inductor lowers them."""
    whole, stock = load_region("minilm_captured"), load_region("minilm_stock")
    inputs = region_inputs(whole, {})
    first = evaluate(first_layer(whole, "buf30"), inputs, keep_locals=True)["buf30"]
    second = evaluate(first_layer(stock, "buf29"), inputs, keep_locals=True)["buf29"]
    assert first.std() > 0.05
    np.testing.assert_allclose(first.astype(float), second.astype(float), atol=2e-3)


def test_symbols_are_sizes() -> None:
    fixed, dynamic = load_region("minilm_captured"), load_region("minilm_dyn_captured")
    arguments = dict(zip(fixed.arguments, dynamic.arguments, strict=True))
    small = {"s97": 1, "s98": 5}
    inputs = region_inputs(dynamic, small)
    out = evaluate(dynamic, inputs, small)["buf160"]
    assert out.shape == (1, 5, 384)
    assert not np.isnan(out).any()
    renamed = {old: inputs.get(new) for old, new in arguments.items() if old != "buf160"}
    assert len(renamed) == len(inputs)
