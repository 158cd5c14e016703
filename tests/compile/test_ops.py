"""Compiled ops against the CPU: dtypes, sizes off the stick, 0 and 1, strides, dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from openspyre.compiler.canonical import canonicalize
from openspyre.ir.kernel import Kind, walk
from openspyre.spec import SPYRE_CARD_V1
from tests.compile.comparing import compare, kernels_in, same, tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32)
SHAPES = ((3, 70), (1, 1), (0, 5), (2, 0), (130,), ())

POINTWISE = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp_log": lambda x: torch.log(torch.exp(x) + 1),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "round": lambda x: torch.round(x * 3) + torch.floor(x) - torch.ceil(x) + torch.trunc(x),
    "divide": lambda x: x / (x * x + 2) + 1 / (x.abs() + 1),
    "remainder": lambda x: x % 0.75 + torch.fmod(x, 0.4),
    "sign": lambda x: torch.sign(x) * torch.signbit(x),
    "pow": lambda x: x**2 + (x.abs() + 0.5) ** 1.5,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_floats(name: str, dtype: torch.dtype) -> None:
    if name in ("remainder", "round") and dtype != torch.float32:
        dtype = torch.float32  # a rounding step away from a jump is no error
    compare(POINTWISE[name], tensor(3, 70, dtype=dtype), wide=True)


QUOTIENTS = {
    "constant": lambda x: x / 127.5,
    "reciprocal": lambda x: 1 / x,
    "zero": lambda x: x / 0.0,
    "bool": lambda x: (x > 0) / 3,
    "no mode": lambda x: torch.div(x, 0.3, rounding_mode=None),
    "truncated": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "floor": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    """Inductor multiplies by a constant's reciprocal on devices that are not the CPU."""
    x = (tensor(9, 70) * 10).round()
    x = (x / 10 if dtype.is_floating_point else x).to(dtype)
    compare(QUOTIENTS[name], x, tolerance={"rtol": 0, "atol": 0})


def test_scales_of_rows_are_divided_by_exactly() -> None:
    def quantized(x: torch.Tensor) -> torch.Tensor:
        return torch.round(x * (1 / (x.abs().amax(-1, keepdim=True) / 127.5)))

    compare(quantized, tensor(9, 70), tolerance={"rtol": 0, "atol": 0})
    compare(lambda x: torch.div(x, 7, rounding_mode="trunc"), torch.arange(-50, 50))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pointwise_shapes(shape: tuple[int, ...]) -> None:
    compare(lambda x, y: F.gelu(x) * y + 1, tensor(*shape), tensor(*shape, seed=1))


SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.3, 1e-8, 3e4, float("inf"), -float("inf"), float("nan")]
)
COMPOSED = [
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "log1p",
    "expm1",
    "sin",
    "cos",
    "tan",
    "log2",
    "log10",
    "exp2",
    "sqrt",
    "reciprocal",
    "square",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "neg",
    "abs",
]


@pytest.mark.parametrize("name", COMPOSED)
def test_special_values(name: str) -> None:
    compare(getattr(torch, name), SPECIAL, tolerance={"rtol": 1e-5, "atol": 1e-6})


def test_special_values_of_two() -> None:
    x, y = (t.flatten() for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    for function in (torch.atan2, torch.hypot, torch.copysign, torch.maximum, torch.minimum):
        compare(function, x, y, tolerance={"rtol": 1e-5, "atol": 1e-6})


INTEGER: dict[str, Callable[..., torch.Tensor]] = {
    "arithmetic": lambda x, y: x * 7 - y + x // (y.abs() + 1) - x % (y.abs() + 2),
    "bits": lambda x, y: (x & y) | (x ^ ~y),
    "shifts": lambda x, y: (x << 2) + (y >> 1),
    "division": lambda x, y: torch.div(x, y.abs() + 3, rounding_mode="trunc"),
    "true_division": lambda x, y: x / (y.abs() + 1),
    "extremes": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y) + x.abs() + torch.sign(y),
    "comparison": lambda x, y: (x < y) | (x == y) & ~(x >= 3) ^ (y != 2),
    "where": lambda x, y: torch.where(x > y, x, y + 1),
    "power": lambda x, y: x**3 + y,
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_integers(name: str, dtype: torch.dtype) -> None:
    compare(INTEGER[name], tensor(5, 33, dtype=dtype), tensor(5, 33, dtype=dtype, seed=3))


def test_integers_wrap() -> None:
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        high = torch.iinfo(dtype).max
        x = torch.tensor([high, high - 1, 0, 1], dtype=dtype)
        compare(lambda x: x + 3, x)
        compare(lambda x: (x * 5 > x, x * x), x)


def test_large_int64_stays_exact() -> None:
    x = torch.tensor([2**53 + 1, -(2**61) + 3, 2**31, -(2**31) - 1])
    compare(lambda x: (x + x, x // 3, x * 3, x > 2**40), x)


def test_bools() -> None:
    x, y = tensor(4, 9, dtype=torch.bool), tensor(4, 9, dtype=torch.bool, seed=5)
    compare(lambda x, y: (x & ~y, x | y, x ^ y, x & True, torch.logical_and(x, y)), x, y)
    compare(lambda x, y: (x.sum(), x.any(1), y.all(0), x.int() + y, x * 1.5), x, y)


@pytest.mark.parametrize("source", [*FLOATS, *INTS, torch.bool], ids=str)
def test_conversions(source: torch.dtype) -> None:
    x = tensor(3, 7, dtype=source) * (1 if source == torch.bool else 3)
    for target in (*FLOATS, *INTS, torch.int8, torch.bool):
        compare(lambda x, target=target: x.to(target), x)


REDUCTIONS = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "amax": lambda x, d: x.amax(d),
    "amin": lambda x, d: x.amin(d),
    "var": lambda x, d: x.var(d, correction=1),
    "norm": lambda x, d: (x * x).sum(d).sqrt(),
    "any": lambda x, d: (x > 1).any(d),
    "all": lambda x, d: (x > -1).all(d),
    "logsumexp": lambda x, d: torch.logsumexp(x, d),
}


@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dims: tuple[int, ...]) -> None:
    compare(REDUCTIONS[name], tensor(3, 5, 67), dims)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_sums(dtype: torch.dtype) -> None:
    compare(lambda x: (x.sum(), x.sum(0), x.prod(1)), tensor(4, 6, dtype=dtype), wide=True)


def test_short_reductions_stay_one_nest() -> None:
    compare(lambda x: x.sum(-1), tensor(4, 3), launches=1)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions(name: str) -> None:
    x = torch.tensor([[1.0, 5, 5, 2], [float("nan"), 1, 9, float("nan")], [-1, -1, -1, -1]])
    compare(lambda x: (getattr(x, name)(), getattr(x, name)(1), getattr(x, name)(0)), x)
    compare(lambda x: getattr(x, name)(-1), tensor(3, 40, dtype=torch.int64))


def test_empty_reductions() -> None:
    compare(lambda x: (x.sum(1), x.prod(1), x.sum(0), (x > 0).any(1)), tensor(3, 0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 197), (2, 3, 1), (5, 64), (1, 1000), (0, 4)], ids=str)
def test_softmax(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(*shape, dtype=dtype)
    compare(lambda x: F.softmax(x, -1), x, wide=True)
    compare(lambda x: F.log_softmax(x, 0), x, wide=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 197), (2, 3, 33), (1, 64), (0, 64)], ids=str)
def test_layer_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(*shape, dtype=dtype)
    w, b = tensor(shape[-1], dtype=dtype, seed=1), tensor(shape[-1], dtype=dtype, seed=2)
    compare(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), x, w, b, wide=True)
    compare(lambda x: F.layer_norm(x, x.shape[-2:]), x, wide=True)


def test_other_norms() -> None:
    x = tensor(2, 6, 35)
    compare(lambda x, w: F.rms_norm(x, (35,), w), x, tensor(35))
    compare(lambda x: F.group_norm(x, 3), x)


MATMULS = (((3, 5), (5, 4)), ((1, 70), (70, 1)), ((130, 65), (65, 129)), ((2, 0), (0, 3)),
           ((0, 4), (4, 2)), ((4, 1), (1, 5)), ((7,), (7, 3)), ((2, 3, 9), (9, 4)),
           ((2, 3, 9), (2, 9, 4)), ((2, 1, 3, 9), (5, 9, 4)))  # fmt: skip


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for dtype in (torch.float32, torch.float16):
        x, y = (tensor(*s, dtype=dtype, seed=k) for k, s in enumerate(shapes))
        compare(torch.matmul, x, y, wide=True, tolerance={"rtol": 3e-3, "atol": 1e-3})


def test_matmul_of_views_and_integers() -> None:
    x, y = tensor(33, 20), tensor(33, 17)
    compare(lambda x, y: x.t() @ y, x, y)
    compare(lambda x, y: (x[::2].t() @ y[1::2]).t(), x[:32], y[:32])
    compare(torch.mm, tensor(3, 4, dtype=torch.int64), tensor(4, 5, dtype=torch.int64))


def test_addmm_and_friends() -> None:
    c, a, b = tensor(4), tensor(3, 5), tensor(5, 4)
    compare(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), c, a, b)
    compare(lambda c, a, b: torch.addmm(c, a, b, beta=0), c * float("nan"), a, b)
    compare(torch.baddbmm, tensor(2, 3, 4), tensor(2, 3, 5), tensor(2, 5, 4))
    compare(lambda a, b: F.relu(F.linear(a, b)), a, tensor(6, 5))
    compare(lambda a, b, c: F.linear(a, b, c), tensor(2, 3, 5), tensor(6, 5), tensor(6))
    compare(F.linear, tensor(0, 5), tensor(6, 5), tensor(6))


def attended(mask: str, **options: object) -> Callable[..., torch.Tensor]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        given = {"none": {}, "causal": {"is_causal": True}}.get(mask, {"attn_mask": m})
        return F.scaled_dot_product_attention(q, k, v, **given, **options)

    return attend


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "keys"), [(257, 257), (300, 200), (200, 300), (1100, 1100)])
@pytest.mark.parametrize("heads", [4, 2])
def test_causal_attention_in_blocks_of_rows(
    rows: int, keys: int, heads: int, dtype: torch.dtype
) -> None:
    m = torch.zeros(())
    q, k, v = (
        tensor(*s, dtype=dtype) for s in ((4, rows, 32), (heads, keys, 32), (heads, keys, 16))
    )
    attend = attended("causal", enable_gqa=heads < 4)
    compare(attend, q, k, v, m, wide=True, launches=1)


@pytest.mark.parametrize(("tokens", "ahead"), [(300, True), (5600, False)])
def test_scores_of_a_block_are_made_ahead_only_if_lx_holds_both(tokens: int, ahead: bool) -> None:
    q, k, v = (tensor(1, tokens, 16, dtype=torch.float16, seed=n) for n in range(3))
    code = compare(attended("causal"), q, k, v, torch.zeros(()), wide=True, launches=1)
    (kernel,) = kernels_in(code)
    cut = canonicalize(kernel, SPYRE_CARD_V1)
    products = [n for n, op in enumerate(cut.ops) if op.kind is Kind.CONTRACT]
    assert (products[1] == products[0] + 1) == ahead


def test_what_makes_queries_walks_their_blocks() -> None:
    q, k, v = (tensor(1, 1024, 16, dtype=torch.float16, seed=n) for n in range(3))
    attend = attended("causal")
    code = compare(lambda q, k, v, m: attend(q.sin(), k, v, m), q, k, v, torch.zeros(()), wide=True)
    (kernel,) = kernels_in(code)
    maps = [op for op in canonicalize(kernel, SPYRE_CARD_V1).ops if op.kind is Kind.MAP]
    (made,) = (op for op in maps if any(getattr(n, "op", "") == "sin" for n in walk(op.body)))
    assert [d.extent.constant for d in made.dims] == [8, 128, 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "additive"])
def test_attention(mask: str, dtype: torch.dtype) -> None:
    q, k, v = (tensor(2, 3, n, 20, dtype=dtype, seed=n) for n in (7, 9, 9))
    m = tensor(2, 1, 7, 9, dtype=torch.bool)
    m[0, 0, 2] = False  # no key at all: zeros
    if mask == "additive":
        m = torch.where(m, 0.5, -float("inf")).to(dtype)
    compare(attended(mask), q, k, v, m, wide=True, launches=1)
    compare(attended(mask, scale=0.3), q, k, v, m, wide=True)


def test_attention_of_grouped_heads_and_other_shapes() -> None:
    q, k = tensor(2, 6, 5, 16), tensor(2, 2, 8, 16)
    v = tensor(2, 2, 8, 12)
    m = tensor(5, 8, dtype=torch.bool)
    compare(attended("bool", enable_gqa=True), q, k, v, m)
    compare(attended("causal"), tensor(3, 1, 16), tensor(3, 4, 16), tensor(3, 4, 16), m)
    compare(attended("none"), tensor(1, 2, 4, 8), tensor(1, 2, 0, 8), tensor(1, 2, 0, 8), m)


SHUFFLES = {
    "transpose": lambda x: x.transpose(0, 2) + 1,
    "permute_copy": lambda x: x.permute(2, 0, 1).contiguous(),
    "reshape": lambda x: x.reshape(-1, 10) * 2,
    "merge_after_transpose": lambda x: x.transpose(1, 2).reshape(3, -1) * 2,
    "split_dims": lambda x: x.view(3, 2, 2, 10).transpose(1, 3).reshape(3, 10, 4) + 0,
    "flip": lambda x: x.flip(1) + 0,
    "roll": lambda x: x.roll(3, 2) + 0,
    "slice_step": lambda x: x[:, 1:, ::3] * 2,
    "negative_slice": lambda x: x[..., -4:] + x[..., :4],
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "cat_last": lambda x: torch.cat([x, x[..., :3]], -1) + 1,
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
    "negative_pad": lambda x: F.pad(x, (-1, 2)),
    "rotate_half": lambda x: torch.cat([-x[..., 5:], x[..., :5]], -1) * 2 + x,
    "expand": lambda x: x[:, :1].expand(3, 5, 10) + 1,
    "repeat": lambda x: x.repeat(1, 2, 1) + 0,
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1) + 0,
    "tril": lambda x: torch.tril(x) + torch.triu(x, 2),
    "diagonal": lambda x: x[0].diagonal() + 1,
    "unfold": lambda x: x.unfold(2, 4, 3).sum(-1),
    "split": lambda x: [p + 1 for p in x.split([3, 7], 2)],
    "broadcast": lambda x: x + x[:1] + x[0, 0] + x[:, :, :1],
    "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(0) + 1,
    "zeros_like": lambda x: torch.zeros_like(x) + torch.full((10,), 2.0, device=x.device),
    "select_scatter": lambda x: x.select_scatter(x[:, 0] * 2, 1, 2),
}


# Inductor's own lowering of diagonal calls a deprecated check.
@pytest.mark.filterwarnings("ignore:.*_prims_common.check:FutureWarning")
@pytest.mark.parametrize("name", SHUFFLES)
def test_movement(name: str) -> None:
    compare(SHUFFLES[name], tensor(3, 4, 10))


def test_inputs_with_strides() -> None:
    x, y = tensor(6, 12).t()[2:9:2], tensor(4, 1).expand(4, 6)
    compare(lambda x, y: (x * y, x.sum(0)), x, y)


OVERLAPPING = {
    "unfold": lambda x: x.unfold(0, 8, 3),
    "shifted rows": lambda x: x.as_strided((20, 11), (1, 2), 3),
    "coprime strides": lambda x: x.as_strided((10, 10), (2, 3)),
    "three dims": lambda x: x.as_strided((3, 4, 5), (4, 3, 2), 1),
    "no elements": lambda x: x.as_strided((5, 0, 8), (2, 3, 1)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_inputs_whose_dims_share_elements(name: str, dynamic: bool) -> None:
    def reversed_(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flip(tuple(range(x.dim()))) + 1, x.reshape(-1)[1::2] * 2

    base, view = tensor(60), OVERLAPPING[name]
    torch._dynamo.reset()
    ours = torch.compile(reversed_, dynamic=dynamic, fullgraph=True)(view(base.to("spyre")))
    for actual, expected in zip(ours, reversed_(view(base)), strict=True):
        same(actual, expected)


@pytest.mark.parametrize("name", ["softmax", "cumsum", "roll", "roll_flip"])
def test_dynamic_strides(name: str) -> None:
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "softmax": lambda x: torch.softmax(x + x.flip(0), 1),
        "cumsum": lambda x: x.cumsum(1).flip(0) + torch.arange(x.shape[1], device=x.device),
        "roll": lambda x: x.roll(-2, 0) + 1,
        "roll_flip": lambda x: x.roll(-2, 0) + x.roll(-2, 0).flip(0),
    }
    torch._dynamo.reset()
    compiled = torch.compile(functions[name], dynamic=True, fullgraph=True)
    for rows, columns in ((3, 130), (6, 10)):
        base = tensor(rows, columns)
        same(compiled(base.to("spyre")[:, ::2]), functions[name](base[:, ::2]))


LOOKUPS = {
    "embedding": lambda t, i: F.embedding(i, t),
    "index": lambda t, i: t[i] + 1,
    "index_column": lambda t, i: t[:, i[0] % 5],
    "two_indices": lambda t, i: t[i, i % 5],
    "negative_index": lambda t, i: t[i - 11],
    "gather": lambda t, i: torch.gather(t, 1, i % 5),
    "index_select": lambda t, i: t.index_select(0, i[0]),
    "nested": lambda t, i: t[i[0][i[1] % 4]],
    "embedding_sum": lambda t, i: (F.embedding(i, t) * 2).sum(-1),
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name: str, dtype: torch.dtype) -> None:
    table = tensor(11, 5)
    index = torch.tensor([[0, 3, 10, 7], [1, 1, 2, 3]], dtype=dtype)
    if name == "gather":
        index, table = index.long(), table[:2]
    compare(LOOKUPS[name], table, index)


def test_scatters() -> None:
    x, index = tensor(7, 5), torch.tensor([[0, 3], [6, 3]])
    source = tensor(2, 2, 5, seed=8)
    compare(lambda x, i, s: x.index_put((i,), s, accumulate=True), x, index, source)
    compare(lambda x, i, s: x.index_copy(0, i[0], s[0]), x, index, source)
    compare(lambda x, i, s: torch.scatter(x, 0, i, s[:, :, 0]), x, index, source)
    compare(lambda x, i, s: torch.scatter_add(x, 1, i % 5, s[:, :, 1]), x, index, source)


def test_rows_of_a_cache() -> None:
    """Counted rows, which cores share, and given ones, which may repeat: the last one wins."""
    cache, rows = tensor(1, 3, 40, 70), tensor(1, 3, 33, 70, seed=5)
    start = torch.tensor(7)

    def counted(c: torch.Tensor, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return c.index_copy(2, torch.arange(33, device=r.device) + s, r + 1)

    def given(c: torch.Tensor, r: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        c = c.clone()
        if r.is_cpu:  # the CPU's threads share the rows: of those for one place any may be last
            for i, row in enumerate(at.tolist()):
                c[:, :, row] = r[:, :, min(i, r.shape[2] - 1)]
        else:
            c[:, :, at] = r
        return c

    compare(counted, cache, rows, start)
    compare(given, cache, rows, torch.arange(33) % 5 - 3)
    compare(given, cache, rows[:, :, :1], torch.arange(33) % 5 - 3)
    each = (torch.arange(33 * 70).reshape(1, 1, 33, 70) * 7 % 40).expand(1, 3, 33, 70).contiguous()
    compare(lambda c, r, i: torch.scatter(c, 2, i, r), cache, rows, each)
    compare(lambda c, r, i: torch.scatter_add(c, 2, i, r), cache, rows, each)


def test_scans() -> None:
    compare(lambda x: (x.cumsum(1), x.cumsum(0)), tensor(3, 40))
    compare(lambda x: x.cumsum(-1), tensor(2, 5, dtype=torch.int64))
    compare(lambda x: x.cumprod(-1), tensor(2, 5))


def test_long_scans() -> None:
    whole = tensor(300_001, dtype=torch.int64)
    compare(lambda x: (x.cumsum(0), x.view(-1, 1).flip(0).cumsum(0)), whole)


def test_factories() -> None:
    def made(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grid = torch.arange(6, device=x.device)
        return grid * 2, torch.arange(0, 1, 0.25, device=x.device), grid[:, None] < grid, x + grid

    compare(made, tensor(6))


def test_host_scalars() -> None:
    compare(lambda x, s: x * s + 1.5, tensor(3, 4), 2.5, dynamic=True)


def test_numbers_of_any_sign_and_size() -> None:
    def used(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        count = torch.arange(4, device=x.device)
        return x * n, count + n, count * n, count > n, torch.where(count + n > -1, x, 0)

    torch._dynamo.reset()
    compiled, x = torch.compile(used, dynamic=True, fullgraph=True), tensor(4)
    for n in (5, 2, 0, -1, -5, 2**31, -(2**31) - 7, 2**62, -(2**63) + 9):
        for actual, expected in zip(compiled(x.to("spyre"), n), used(x, n), strict=True):
            same(actual, expected)


def test_in_place() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        x[1:] *= 2
        return x.sum()

    x, y = tensor(4, 5), tensor(5)
    card = x.to("spyre")
    torch._dynamo.reset()
    ours = torch.compile(update, fullgraph=True)(card, y.to("spyre"))
    theirs = update(x, y)
    torch.testing.assert_close(ours.cpu(), theirs)
    torch.testing.assert_close(card.cpu(), x)


@pytest.mark.parametrize("sizes", [(3, 70), (5, 64), (2, 2)], ids=str)
def test_dynamic_sizes(sizes: tuple[int, int]) -> None:
    b, s = sizes

    def block(x: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q = F.linear(x, w).view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, q, q, keep[:, None, None, :])
        o = o.transpose(1, 2).reshape(x.shape[0], x.shape[1], 32)
        return F.layer_norm(torch.cat([o, x[:, :1]], 1), (32,)).flatten(0, 1).sum(0)

    keep = torch.ones(b, s, dtype=torch.bool)
    compare(block, tensor(b, s, 32), tensor(32, 32) / 6, keep, dynamic=True, launches=1,
            tolerance={"rtol": 1e-4, "atol": 1e-4})  # fmt: skip
