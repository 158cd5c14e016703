"""Eager ops run on the card, each as a kernel: right for all arguments, compiled once."""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from openspyre import _C
from openspyre.frontend import one_node, patterns
from openspyre.runtime.launch import kernels

pytestmark = pytest.mark.usefixtures("counted")


def same(found: Any, wanted: Any, tolerance: float = 2e-6) -> None:
    """Equal dtypes, shapes, strides, and values within rounding."""
    pairs = zip(_tensors(found), _tensors(wanted), strict=True)
    for x, y in pairs:
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        assert x.is_spyre
        narrow = y.dtype in (torch.float16, torch.bfloat16)
        bound = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[y.dtype] if narrow else tolerance
        torch.testing.assert_close(x.cpu(), y, rtol=bound, atol=bound, equal_nan=True)


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def both(function: Callable[..., Any], *arguments: torch.Tensor, tolerance: float = 2e-6) -> None:
    """The same on the card as on the CPU, without a fallback."""
    given = [moved(a) for a in arguments]
    wanted = function(*arguments)
    torch.spyre.reset_fallbacks()
    found = function(*given)
    assert torch.spyre.fallback_reasons() == {}
    same(found, wanted, tolerance)


def moved(x: torch.Tensor) -> torch.Tensor:
    """`x` on the card, with its strides and its place in a larger storage."""
    size = x.untyped_storage().nbytes() // x.element_size()
    whole = torch.as_strided(x, (size,), (1,), 0)
    return torch.as_strided(whole.to("spyre"), x.shape, x.stride(), x.storage_offset())


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype in (torch.bool, torch.uint8) else -4, 5, shape).to(dtype)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "0-d": lambda: values(),
    "empty": lambda: values(3, 0, 2),
    "one": lambda: values(1, 1),
    "odd": lambda: values(7, 1, 5),
    "transposed": lambda: values(5, 9).t(),
    "permuted": lambda: values(2, 3, 4).permute(1, 2, 0),
    "offset": lambda: values(6, 9)[1:, 2:7],
    "stepped": lambda: values(11, 8)[::3, 1::2],
    "expanded": lambda: values(5, 1).expand(5, 6),
    "channels last": lambda: values(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "large": lambda: values(129, 70),
}
FLOATING = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pointwise_on_every_layout(layout: str) -> None:
    x = LAYOUTS[layout]()
    both(lambda x: x + x, x)
    both(lambda x: torch.exp(x).mul(0.5), x)
    both(lambda x: x > 0, x)
    both(lambda x: torch.where(x > 0, x, x * 2), x)
    both(lambda x: x.neg().relu(), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reductions_on_every_layout(layout: str) -> None:
    x = LAYOUTS[layout]()
    both(lambda x: x.sum(), x, tolerance=2e-5)
    both(lambda x: (x > 0).any(), x)
    if x.dim():
        both(lambda x: x.sum(-1), x, tolerance=1e-5)
        both(lambda x: x.mean(0, keepdim=True), x, tolerance=1e-5)
        both(lambda x: x.softmax(-1), x)
        both(lambda x: x.cumsum(0), x, tolerance=1e-5)
    if x.numel():
        both(lambda x: x.amax(), x)


@pytest.mark.parametrize("layout", ["transposed", "offset", "stepped", "expanded", "large"])
def test_matrix_products_on_every_layout(layout: str) -> None:
    x = LAYOUTS[layout]()
    both(lambda x: x @ x.t(), x, tolerance=2e-5)
    both(lambda x: torch.bmm(x[None], x.t()[None]), x, tolerance=2e-5)
    both(lambda x: torch.addmm(x[:, 0], x, x.t(), beta=0.5, alpha=2.0), x, tolerance=5e-5)
    both(lambda x: torch.mv(x, x[0]), x, tolerance=2e-5)


@pytest.mark.parametrize(("left", "right"), [*itertools.product(FLOATING + WHOLE, repeat=2)])
def test_dtypes_are_promoted(left: torch.dtype, right: torch.dtype) -> None:
    a, b = values(5, 3, dtype=left), values(3, dtype=right)
    both(torch.add, a, b)
    both(torch.mul, a, b)
    both(lambda a, b: a <= b, a, b)
    both(torch.add, a, b[0])  # a tensor of no dims has less weight
    both(lambda a, b: torch.cat([a[0], b]), a, b)


@pytest.mark.parametrize("dtype", FLOATING + WHOLE)
def test_numbers(dtype: torch.dtype) -> None:
    x = values(4, 3, dtype=dtype)
    for number in (2, 2.5, True):
        both(lambda x, n=number: x * n, x)
        both(lambda x, n=number: n + x, x)
        both(lambda x, n=number: x == n, x)
    both(lambda x: torch.tensor(2.5) * x, x)
    both(lambda x: x / torch.tensor(3), x)


def test_a_number_is_rounded_where_pytorch_rounds_it() -> None:
    x = torch.tensor([0.1, -0.1, 2.7]).half()
    both(lambda x: x == 0.1, x)
    both(lambda x: x.masked_fill(x > 0.1, 1 / 3), x)


@pytest.mark.parametrize("dtype", [*WHOLE, torch.uint8, torch.bool])
def test_a_float_is_cut_to_whole_numbers_where_it_is_filled_in(dtype: torch.dtype) -> None:
    x = values(4, 3).abs().to(dtype)
    for number in (0.0, 2.7, 200.0):
        both(lambda x, n=number: x.masked_fill(x > 0, n), x)
    if dtype == torch.int64:
        both(lambda x: x.masked_fill(x > 0, 2.0**24 + 1), x)
    if dtype == torch.uint8:
        with pytest.raises(RuntimeError, match="without overflow"):
            x.to("spyre").masked_fill_(x.to("spyre") > 0, 2.0**24)


def test_numbers_share_a_program() -> None:
    x = torch.arange(24.0, device="spyre").view(4, 6)
    (x * 2.0).add_(x, alpha=0.5)
    misses, loaded = _C.eager_misses(), len(list(kernels()))
    for number in (3.0, -0.25, float("inf"), 7):
        assert torch.equal((x * float(number)).cpu(), x.cpu() * number) or number == float("inf")
        x.clone().add_(x, alpha=float(number))
    assert (_C.eager_misses(), len(list(kernels()))) == (misses, loaded)


def test_sizes_share_a_kernel_and_python_is_asked_once() -> None:
    def work(rows: int, columns: int) -> None:
        x = values(rows, columns).to("spyre")
        (x + x).softmax(-1) @ x.t()

    work(5, 9)
    misses, loaded = _C.eager_misses(), len(list(kernels()))
    for rows in range(3, 40):
        work(rows, rows + 1)
    assert (_C.eager_misses(), len(list(kernels()))) == (misses, loaded)
    work(5, 1)
    assert _C.eager_misses() > misses


def test_in_place() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(1).mul_(x).clamp_(min=-2, max=6).masked_fill_(x > 3, 0.5)
        x[1:].sub_(x[:-1].clone())
        x.t()[0] += 7
        return x

    both(change, values(5, 5))
    both(lambda x: x.add_(2.9), values(5).half())
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.zeros(3, dtype=torch.int64, device="spyre").add_(2.5)
    with pytest.raises(RuntimeError, match="output with shape"):
        torch.zeros(3, device="spyre").add_(torch.zeros(2, 3, device="spyre"))


def test_out() -> None:
    a, b = values(4, 3), values(3, 4)
    out = torch.empty(0, device="spyre")
    assert torch.mm(a.to("spyre"), b.to("spyre"), out=out) is out
    same(out, a @ b)
    base = torch.zeros(4, 8, device="spyre")
    torch.mm(a.to("spyre"), b.to("spyre"), out=base[:, ::2])
    torch.testing.assert_close(base.cpu()[:, ::2], a @ b)
    assert not base.cpu()[:, 1::2].any()
    narrow = torch.empty(4, 3, dtype=torch.float16, device="spyre")
    torch.add(a.to("spyre"), 1, out=narrow)
    assert torch.equal(narrow.cpu(), (a + 1).half())
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.sum(a.to("spyre"), 1, out=torch.empty(2, device="spyre"))
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(a.to("spyre"), 1, out=torch.empty(4, 3, dtype=torch.int32, device="spyre"))
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(1, 7, out=out),
        lambda out: torch.linspace(-1, 1, 6, out=out),
        lambda out: torch.logspace(0, 1, 6, out=out),
    ],
    ids=["arange", "linspace", "logspace"],
)
def test_a_sequence_keeps_the_shape_of_an_out_that_it_fills(
    fill: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """What lies between the elements of a view stays; an `out` of another size becomes a row."""
    for view in ((2, 3), (6, 2), 0), ((3, 2), (1, 6), 1), ((1, 6), (12, 1), 6), ((6,), (2,), 1):
        bases = torch.full((12,), 9.0), torch.full((12,), 9.0, device="spyre")
        outs = [base.as_strided(*view) for base in bases]
        assert all(fill(out) is out for out in outs)
        same(outs[1], outs[0])
        same(bases[1], bases[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU says when it resizes
        same(fill(torch.empty(2, 2, device="spyre")), fill(torch.empty(2, 2)))
    assert torch.spyre.fallbacks() == {}


def test_arguments_that_share_memory() -> None:
    x = values(6, 6)
    on_card = x.to("spyre")
    torch.mm(on_card, on_card, out=on_card)  # reads what it writes
    torch.testing.assert_close(on_card.cpu(), x @ x, rtol=1e-5, atol=1e-5)
    y = values(8)
    z = y.to("spyre")
    torch.cumsum(z, 0, out=z)
    torch.testing.assert_close(z.cpu(), y.cumsum(0))
    torch.add(z[:4], z[4:], out=z[4:])  # one of two arguments, the other apart
    torch.testing.assert_close(z.cpu()[4:], y.cumsum(0)[:4] + y.cumsum(0)[4:])
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.add(z[1:], 1, out=z[:-1])
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        torch.zeros(1, device="spyre").expand(3).add_(1)
    assert torch.spyre.fallbacks() == {}


def test_mistakes_raise_what_pytorch_raises() -> None:
    x = values(4, 3).to("spyre")
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + values(4).to("spyre")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        x @ x
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(5)
    with pytest.raises(IndexError, match="index 9 is out of"):
        x[torch.tensor([9], device="spyre")].cpu()
    (x @ x.t()), (x + x)  # a call that fits is not stopped by one that did not


def test_indexing() -> None:
    x, rows = values(6, 5), torch.tensor([4, -1, 0])
    both(lambda x, r: x[r], x, rows)
    both(lambda x, r: x[:, r], x, rows)
    both(lambda x, r: x.index_put((r,), x[:3]), x, rows)
    both(lambda x, r: x.index_put((r,), x[:3], accumulate=True), x, rows.abs())
    both(lambda x, r: x.gather(1, r[None].expand(6, 3)), x, rows.abs())
    both(lambda x, r: x.scatter_add(0, r[None].expand(2, 3), x[:, :3]), x, rows.abs())
    both(lambda x, r: F.embedding(r, x), x, rows.abs())


def test_sums_of_long_integers_by_index() -> None:
    """Where several come to one element, and where they need more than 32 bits."""
    x, given = values(6, 5, dtype=torch.int64), values(2, 9, dtype=torch.int64) << 41
    to, rows = torch.tensor([[4, 0, 4, 1, 1, 4, 2, 0, 4]]), torch.tensor([5, -1, 0, 5])
    both(lambda x, i, v: x.scatter_add(1, i, v), x, to.expand(2, 9), given)
    both(lambda x, i, v: x.scatter_add(0, i, v), x, to[:, :4].expand(2, 4), given)
    both(lambda x, i, v: x.scatter_reduce(1, i, v, "sum"), x, to.expand(2, 9), given)
    both(lambda x, i, v: x[0].scatter_add(0, i, v), x, to[0], given[0])
    both(lambda x, r, v: x.index_put((r,), v, accumulate=True), x, rows, given[0, :5])
    both(lambda x, r, v: x.index_add(0, r.abs(), v), x, rows, x[:4] << 33)


@pytest.mark.parametrize(
    ("shape", "indices", "written"),
    [((1,), ((5,),), (5,)), ((1, 1), ((5, 1), (1, 4)), (5, 4)), ((1, 6), ((5,),), (5, 6))],
)
@pytest.mark.parametrize("accumulate", [True, False])
def test_many_values_for_one_element(
    shape: tuple[int, ...], indices: tuple[tuple[int, ...], ...], written: tuple[int, ...],
    accumulate: bool,
) -> None:  # fmt: skip
    """A dim of one element has one index, whatever stands in the indices' tensor."""
    rows = [torch.zeros(size, dtype=torch.int64) for size in indices]
    x, given = values(*shape), values(*written)
    both(lambda x, v, *i: x.index_put(i, v, accumulate=accumulate), x, given, *rows)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float16])
@pytest.mark.parametrize(
    ("low", "high"), [(0.3, 0.7), (0.7, 0.3), (None, 0.7), (0.3, None), (2, 0.3), (0.3, 2), (-1, 2)]
)
def test_bounds_of_another_kind(dtype: torch.dtype, low: float | None, high: float | None) -> None:
    """Integers with bounds that are floats become floats, whichever bound it is."""
    both(lambda x: x.clamp(low, high), values(7, dtype=dtype))


def test_a_padding_of_whole_numbers_is_whole() -> None:
    x = values(1, 3, 9, 7, dtype=torch.int64)
    pool = torch.nn.functional.avg_pool2d
    both(lambda x: pool(x, 3, stride=1, padding=1, ceil_mode=True, count_include_pad=False), x)


def test_results_of_no_size() -> None:
    both(lambda x: x + 1, values(0, 3))
    both(lambda x: x.sum(0), values(0, 3))
    both(lambda x: x @ x.t(), values(3, 0))
    both(lambda x: torch.cat([x, x[:1]]), values(0, 3))
    both(lambda x: x.prod(), values(0))


def test_autograd_and_inference() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = (F.gelu(x @ w).softmax(-1) * x.sum(1, keepdim=True)).mean()
        loss.backward()
        return loss.detach(), x.grad, w.grad

    both(step, values(5, 3), values(3, 4), tolerance=1e-5)
    with torch.inference_mode():
        both(lambda x: F.layer_norm(x, (4,)), values(5, 4), tolerance=1e-5)


def test_views_and_fallbacks_stay_what_they_are() -> None:
    x = values(4, 3).to("spyre")
    misses = _C.eager_misses()
    x.view(12)[2:].unsqueeze(0).expand(2, 10), x.t(), x[1], x.split(2)
    assert _C.eager_misses() == misses
    x.unique(dim=0), x.histc()
    reasons = torch.spyre.fallback_reasons()
    assert reasons["aten::unique_dim"] == "the size of its result depends on values"
    assert reasons["aten::histc"] == "aten.histc.default has no lowering for these arguments"
    torch.spyre.reset_fallbacks()
    x.double() + 1
    assert torch.spyre.fallback_reasons() == {
        "aten::add.out": "the card does not compute in Double"
    }


def test_fallback_error_mode_serves_what_can_run() -> None:
    _C.set_fallback_mode("error")
    try:
        x = torch.arange(6, device="spyre").view(2, 3) * 2.0
        assert x.softmax(1).sum().item() == pytest.approx(2)
        with pytest.raises(NotImplementedError, match="aten::histc"):
            x.histc()
    finally:
        _C.set_fallback_mode("count")


# The first rows of the op table (ops by how many model types use them) that compute something.
FREQUENT: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, i, b: x + x,
    "convert": lambda x, i, b: x.half().float() + i.to(torch.int32),
    "mul": lambda x, i, b: x * x,
    "sub": lambda x, i, b: x - i,
    "div": lambda x, i, b: i / 3,
    "clone": lambda x, i, b: x.t().clone(memory_format=torch.contiguous_format),
    "rsqrt": lambda x, i, b: x.abs().rsqrt(),
    "exp": lambda x, i, b: x.exp(),
    "sum": lambda x, i, b: (x.sum([0, 1]), i.sum(), b.sum(1)),
    "bmm": lambda x, i, b: torch.bmm(x[None], x.t()[None]),
    "full": lambda x, i, b: torch.full((3, 2), 1.5, device=x.device),
    "amax": lambda x, i, b: x.amax([1], True),
    "where": lambda x, i, b: torch.where(b, x, -1.0),
    "iota": lambda x, i, b: (
        torch.arange(5, device=x.device),
        torch.arange(7, 1, -2, device=x.device),
        torch.arange(0.0, 2.0, 0.5, device=x.device),
    ),
    "logical_not": lambda x, i, b: b.logical_not(),
    "eq.Scalar": lambda x, i, b: i == 2,
    "slice": lambda x, i, b: x[1:3, ::2] + 0,
    "embedding": lambda x, i, b: F.embedding(i.abs() % 4, x),
    "any": lambda x, i, b: (b.any(1), b.any(), b.any([0, 1])) if b.dim() else b,
    "cat": lambda x, i, b: torch.cat([x, x * 2, x[:1]]),
    "scalar_tensor": lambda x, i, b: torch.scalar_tensor(2.0, device=x.device) + x,
    "mm": lambda x, i, b: x @ x.t(),
    "index": lambda x, i, b: x[i[:, 0].abs() % 4],
    "neg": lambda x, i, b: (-x, -i),
    "pow": lambda x, i, b: (x**2, x**3, x.abs() ** 0.5),
    "addmm": lambda x, i, b: torch.addmm(x[:, 0], x, x.t()),
    "sin": lambda x, i, b: (x.sin(), x.cos()),
    "mean": lambda x, i, b: x.mean(-1, keepdim=True),
    "var_mean": lambda x, i, b: torch.var_mean(x, 1, correction=0),
    "bitwise_and": lambda x, i, b: (b & b, i & 3),
    "erf": lambda x, i, b: x.erf(),
    "le": lambda x, i, b: (x <= x, i <= 1, x >= 0.5),
    "cumsum": lambda x, i, b: (x.cumsum(0), b.cumsum(1)),
    "logical_and": lambda x, i, b: b.logical_and(i > 0),
    "sigmoid": lambda x, i, b: x.sigmoid(),
    "pad": lambda x, i, b: F.pad(x, (1, 2)),
    "tanh": lambda x, i, b: x.tanh(),
    "relu": lambda x, i, b: x.relu(),
    "index_put": lambda x, i, b: x.index_put((i[:2, 0].abs() % 4,), x[:2]),
    "div_mode": lambda x, i, b: (
        torch.div(i, 2, rounding_mode="floor"),
        torch.div(i, 2, rounding_mode="trunc"),
    ),
    "silu": lambda x, i, b: F.silu(x),
    "gelu": lambda x, i, b: (F.gelu(x), F.gelu(x, approximate="tanh")),
    "softmax": lambda x, i, b: x.softmax(-1),
    "layer_norm": lambda x, i, b: F.layer_norm(x, (5,)),
    "tril": lambda x, i, b: (x.tril(), b.triu(1)),
    "masked_fill": lambda x, i, b: x.masked_fill(b, float("-inf")),
    "clamp": lambda x, i, b: (x.clamp(-0.5, 0.5), i.clamp(min=0)),
    "argmax": lambda x, i, b: (x.argmax(1), x.max(0)[1]),
}


@pytest.mark.parametrize("name", FREQUENT)
def test_the_ops_that_models_use_run_on_the_card(name: str) -> None:
    function = FREQUENT[name]
    inputs = values(4, 5), values(4, 5, dtype=torch.int64), values(4, 5, dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(function, *inputs, tolerance=1e-5)


def test_threads() -> None:
    failures: list[Any] = []

    def work(seed: int) -> None:
        for step in range(20):
            x = torch.full((seed + 2, step + 2), float(seed), device="spyre")
            if not ((x + step).cpu() == seed + step).all() or (x @ x.t()).shape != (seed + 2,) * 2:
                failures.append((seed, step))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_threads_make_kernels_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing sets a flag of the process; torch.compile refuses to run where it stays set."""
    made, at_once = one_node.answer_for, [0, 0]

    def counted(*args: Any) -> Any:
        at_once[0] += 1
        at_once[1] = max(at_once)
        time.sleep(0.02)
        try:
            return made(*args)
        finally:
            at_once[0] -= 1

    monkeypatch.setattr(one_node, "answer_for", counted)
    monkeypatch.setattr(patterns, "found", lambda *_: None)
    x = torch.arange(11.0)
    results: dict[int, torch.Tensor] = {}
    card = x.to("spyre")

    def work(shift: int) -> None:
        results[shift] = torch.roll(card, shift)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_once == [0, 1]
    for shift, result in results.items():
        assert torch.equal(result.cpu(), torch.roll(x, shift))
    assert not torch.fx._symbolic_trace.is_fx_tracing()
    assert torch.compile(lambda t: t + 1)(card).tolist() == (x + 1).tolist()


BY_NUMBER = [
    "fmod", "remainder", "copysign", "xlogy", "special.xlog1py", "bitwise_and", "bitwise_or",
    "floor_divide", "float_power", "rsub", "eq", "gt", "add", "mul", "div",
]  # fmt: skip
NUMBERS = (2, -3, 2.5, 0.0, float("nan"), True)


@pytest.mark.parametrize("name", BY_NUMBER)
def test_a_number_stands_for_a_tensor(name: str) -> None:
    """On either side, of any kind, whether or not the op has an overload for it."""
    function: Any = torch
    for part in name.split("."):
        function = getattr(function, part)
    floats = torch.tensor([1.5, -2.5, 3.0, 0.0])
    ran = 0
    for x in (floats, floats.half(), floats.long(), floats.bool()):
        for number in NUMBERS:
            for call in (lambda t, n=number: function(t, n), lambda t, n=number: function(n, t)):
                try:
                    wanted = call(x)
                except (RuntimeError, TypeError):  # PyTorch has no such call
                    continue
                ran += 1
                same(call(moved(x)), wanted)
    assert ran >= 8
