"""Eager random ops: their distributions, their independence of layout, their edges."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch

from openspyre.ir.ops import TABLE

N = 20_000
Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[[torch.Tensor], torch.Tensor]
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="spyre")


def numbers(x: torch.Tensor) -> np.ndarray:
    return x.cpu().double().numpy().ravel()


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


CONTINUOUS: dict[str, tuple[Fill, Callable[[np.ndarray], np.ndarray]]] = {
    "uniform": (lambda x: x.uniform_(-1, 3), lambda v: (v + 1) / 4),
    "normal": (lambda x: x.normal_(2, 0.5), lambda v: normal_cdf((v - 2) / 0.5)),
    "log_normal": (lambda x: x.log_normal_(0, 1), lambda v: normal_cdf(np.log(v))),
    "exponential": (lambda x: x.exponential_(2), lambda v: 1 - np.exp(-2 * v)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda v: 0.5 + np.arctan((v - 1) / 2) / np.pi),
}
FILLS: dict[str, Fill] = {
    **{name: fill for name, (fill, _) in CONTINUOUS.items()},
    "geometric": lambda x: x.geometric_(0.3),
    "random": lambda x: x.random_(200),
    "bernoulli": lambda x: x.bernoulli_(0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_values_follow_their_distribution(name: str, dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov; 1.95 / sqrt(n) is passed by 999 of 1000 right generators."""
    fill, cdf = CONTINUOUS[name]
    torch.spyre.manual_seed(11)
    drawn = np.sort(numbers(fill(empty(N, dtype=dtype))))
    want = cdf(drawn)
    steps = np.arange(N + 1) / N
    distance = max((want - steps[:-1]).max(), (steps[1:] - want).max())
    assert distance < 1.95 / math.sqrt(N)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_stays_below_its_end(dtype: torch.dtype) -> None:
    torch.spyre.manual_seed(1)
    unit = numbers(empty(N, dtype=dtype).uniform_())
    assert 0 <= unit.min() < unit.max() < 1
    assert abs(unit.mean() - 0.5) < 4 * math.sqrt(1 / 12 / N) + 2.0**-8 * (dtype.itemsize == 2)
    far = numbers(empty(N, dtype=dtype).uniform_(1000, 1001))
    assert far.min() >= 1000
    assert far.max() < 1001
    assert (empty(5, dtype=dtype).uniform_(2, 2).cpu() == 2).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_is_never_zero(dtype: torch.dtype) -> None:
    assert (empty(N, dtype=dtype).exponential_().cpu() > 0).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_spread_over_their_range(dtype: torch.dtype) -> None:
    torch.spyre.manual_seed(2)
    low = 0 if dtype is torch.uint8 else -3
    drawn = numbers(empty(N, dtype=dtype).random_(low, 7))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(low, 7))
    expected = N / len(values)
    assert ((counts - expected) ** 2 / expected).sum() < 35  # chi-square, 9 degrees, 1 in 10,000
    top = torch.iinfo(dtype).max
    half = (numbers(empty(N, dtype=dtype).random_()) > top / 2).mean()
    assert abs(half - 0.5) < 4 * 0.5 / math.sqrt(N)
    assert (empty(50, dtype=dtype).random_(top - 1, None).cpu() >= top - 1).all()


def test_wide_ranges() -> None:
    """Extents of 2**63 and more, up to all of int64."""
    torch.spyre.manual_seed(3)
    for low, high in ((-(2**63), None), (-(2**63), 2**63 - 1), (-(2**62) - 5, 2**62 + 5)):
        drawn = empty(N, dtype=torch.int64).random_(low, high).cpu()
        assert drawn.min() >= low
        assert high is None or drawn.max() < high
        assert abs((drawn < 0).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(N)
        bits = np.unpackbits(drawn.numpy().view(np.uint8)).reshape(N, 64).mean(0)
        if low == -(2**63):
            assert np.abs(bits - 0.5).max() < 5 * 0.5 / math.sqrt(N)


@pytest.mark.parametrize("size", [1.0, 1e-300, 1e-45, 1e39, 1e300])
def test_float64_of_sizes_that_float32_does_not_hold(size: float) -> None:
    """A twentieth of the values is where a twentieth belongs, and none is rounded to the edge."""
    torch.spyre.manual_seed(5)
    for name in ("uniform", "normal", "exponential", "cauchy"):
        fill = {
            "uniform": lambda x: x.uniform_(-size, size),
            "normal": lambda x: x.normal_(size, 2 * size),
            "exponential": lambda x: x.exponential_(1 / size),
            "cauchy": lambda x: x.cauchy_(size, 2 * size),
        }[name]
        least, most = {
            "uniform": (-0.9, 0.9),
            "normal": (1 - 2 * 1.644854, 1 + 2 * 1.644854),
            "exponential": (-math.log(0.95), -math.log(0.05)),
            "cauchy": (1 - 2 * 6.313752, 1 + 2 * 6.313752),
        }[name]
        drawn = numbers(fill(empty(N, dtype=torch.float64))) / size
        assert np.isfinite(drawn).all()
        for share in ((drawn < least).mean(), (drawn > most).mean()):
            assert abs(share - 0.05) < 4 * math.sqrt(0.05 * 0.95 / N)
    edges = numbers(empty(N, dtype=torch.float64).uniform_(-1.797e308, 0))
    assert (edges >= -1.797e308).all()
    assert (edges < 0).all()


def test_log_normal_of_float64_beyond_float32() -> None:
    for mean in (-300, 100, 600):
        drawn = np.log(numbers(empty(N, dtype=torch.float64).log_normal_(mean, 1)))
        assert abs(drawn.mean() - mean) < 4 / math.sqrt(N)
        assert abs(drawn.std() - 1) < 0.05


def test_random_of_floats_and_bools() -> None:
    for dtype, digits in ((torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)):
        drawn = numbers(empty(N, dtype=dtype).random_())
        assert drawn.max() <= 2**digits
        assert drawn.max() > 0.99 * 2**digits
        assert (drawn == np.rint(drawn)).all()
    assert abs(numbers(empty(N, dtype=torch.bool).random_()).mean() - 0.5) < 2 / math.sqrt(N)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_bernoulli(dtype: torch.dtype) -> None:
    torch.spyre.manual_seed(4)
    drawn = numbers(empty(N, dtype=dtype).bernoulli_(0.3))
    assert set(drawn) == {0.0, 1.0}
    assert abs(drawn.mean() - 0.3) < 4 * math.sqrt(0.21 / N)
    assert not empty(100, dtype=dtype).bernoulli_(0).cpu().any()
    assert empty(100, dtype=dtype).bernoulli_(1).cpu().all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_bernoulli_of_probabilities(dtype: torch.dtype) -> None:
    torch.spyre.manual_seed(5)
    p = torch.tensor([0.0, 0.25, 1.0, float("nan")], dtype=dtype, device="spyre")
    rates = empty(N, 4).bernoulli_(p).cpu().mean(0)
    assert rates[0] == 0
    assert abs(rates[1] - 0.25) < 4 * math.sqrt(0.1875 / N)
    assert rates[2] == 1
    assert rates[3] == 0
    column = torch.bernoulli(p[:3].expand(7, 3).t())
    assert column.shape == (3, 7)
    assert (column.cpu()[0] == 0).all()
    assert (column.cpu()[2] == 1).all()
    overwritten = torch.tensor([0.0, 1.0] * 8, device="spyre")
    assert overwritten.bernoulli_(overwritten).cpu().tolist() == [0.0, 1.0] * 8


def test_geometric() -> None:
    torch.spyre.manual_seed(6)
    drawn = numbers(empty(N, dtype=torch.int32).geometric_(0.25))
    assert drawn.min() == 1
    assert abs(drawn.mean() - 4) < 4 * math.sqrt(12 / N)
    assert abs((drawn == 2).mean() - 0.1875) < 4 * math.sqrt(0.16 / N)


def test_dropout() -> None:
    torch.spyre.manual_seed(7)
    x = torch.full((100, 200), 2.0, device="spyre")
    for dtype in FLOATS:
        out, mask = torch.native_dropout(x.to(dtype), 0.25, True)
        assert out.dtype == dtype
        assert mask.dtype == torch.bool
        assert abs(mask.cpu().float().mean() - 0.75) < 4 * math.sqrt(0.1875 / N)
        torch.testing.assert_close(out.cpu(), (mask.cpu() * (2 / 0.75)).to(dtype))
    out, mask = torch.native_dropout(x, 0.25, False)
    assert mask.cpu().all()
    assert torch.equal(out.cpu(), x.cpu())
    assert not torch.native_dropout(x, 1.0, True)[0].cpu().any()
    column = torch.full((3, 2), float("nan"), device="spyre").t()
    assert torch.native_dropout(column, 0.5, True)[0].isnan().cpu().all()


def test_multinomial() -> None:
    torch.spyre.manual_seed(8)
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]], device="spyre")
    drawn = weights.multinomial(N, replacement=True).cpu()
    assert drawn.shape == (2, N)
    assert set(drawn[0].tolist()) == {1, 2}
    assert set(drawn[1].tolist()) == {0, 3}
    assert abs((drawn[0] == 2).float().mean() - 0.75) < 4 * math.sqrt(0.1875 / N)
    assert sorted(weights[0].multinomial(2).tolist()) == [1, 2]
    firsts = weights[0].expand(2000, 4).multinomial(1).cpu()
    assert abs((firsts == 2).float().mean() - 0.75) < 4 * math.sqrt(0.1875 / 2000)


def test_normal_of_tensors() -> None:
    torch.spyre.manual_seed(9)
    mean, std = torch.tensor([0.0, 10.0], device="spyre"), torch.tensor([1.0, 0.0], device="spyre")
    assert torch.normal(mean, std)[1].item() == 10
    assert torch.normal(3.0, std)[1].item() == 3
    many = torch.normal(mean.expand(N, 2), 2.0).cpu()
    assert abs(many[:, 1].mean() - 10) < 8 / math.sqrt(N)
    out = empty(2)
    assert torch.normal(mean, std, out=out) is out
    assert abs(torch.normal(1.0, 0.5, (N,), device="spyre").cpu().mean() - 1) < 2 / math.sqrt(N)


def test_complex() -> None:
    torch.spyre.manual_seed(10)
    drawn = torch.view_as_real(torch.randn(N, dtype=torch.complex64, device="spyre")).cpu()
    assert abs(drawn.var() - 0.5) < 0.02


def test_a_value_is_the_documented_function_of_seed_and_place() -> None:
    torch.spyre.manual_seed(2**63 + 12345)
    torch.rand(7, device="spyre")
    drawn = torch.rand(3, 50, device="spyre").cpu().numpy().ravel()
    meaning = TABLE["philox"].meaning
    assert meaning is not None
    seed = np.uint64(2**63 + 12345).astype(np.int64)
    bits = meaning(seed, np.arange(7, 157)).view(np.uint64)
    want = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    np.testing.assert_array_equal(drawn, want)


@pytest.mark.parametrize("name", FILLS)
def test_the_layout_does_not_matter(name: str) -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        torch.spyre.manual_seed(12)
        return FILLS[name](x).cpu()

    plain = filled(empty(6, 10, 14))
    views = {
        "transposed": empty(14, 10, 6).permute(2, 1, 0),
        "permuted": empty(10, 14, 6).permute(2, 0, 1),
        "steps": empty(12, 11, 30)[::2, 1:, 2:30:2],
        "one more dim": empty(6, 1, 10, 14)[:, 0],
    }
    for view, x in views.items():
        assert torch.equal(filled(x), plain), view
    flat = plain.flatten()
    assert torch.equal(filled(empty(840)), flat)
    for count in (1, 2, 63, 500):
        assert torch.equal(filled(empty(count)), flat[:count]), count
    around = torch.zeros(9, 20, device="spyre")
    filled(around[2:5, 3:11])
    around[2:5, 3:11] = 0
    assert not around.cpu().any()


def test_a_dtype_of_the_card_needs_no_fallback(counted: None) -> None:
    state = torch.get_rng_state()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for fill in FILLS.values():
            fill(empty(3, 5, dtype=dtype))
    for dtype in (*INTEGERS, torch.bool):
        empty(9, dtype=dtype).random_()
        empty(9, dtype=dtype).bernoulli_(0.5)
    torch.randn(4, device="spyre").bernoulli_(torch.rand(4, device="spyre"))
    torch.native_dropout(torch.rand(4, device="spyre"), 0.5, True)
    torch.randint(5, (3,), device="spyre")
    assert torch.spyre.fallbacks() == {}
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_leaves_the_card(counted: None) -> None:
    x = torch.ones(4, 10, device="spyre")
    torch.nn.functional.dropout(x)
    torch.nn.functional.dropout2d(x[None, :, :, None])
    torch.normal(x, x)
    x.multinomial(1)
    x.multinomial(3)
    x.multinomial(3, replacement=True)
    assert torch.spyre.fallbacks() == {}


def test_a_failed_assertion_is_heard(counted: None) -> None:
    torch._assert_async(torch.ones(1, device="spyre").bool())
    with pytest.raises(RuntimeError, match="as said"):
        torch._assert_async(torch.zeros(1, device="spyre").bool(), "as said")
    assert torch.spyre.fallbacks() == {}


def test_nothing_is_drawn_for_empty_tensors() -> None:
    state = torch.spyre.get_rng_state()
    for fill in FILLS.values():
        assert fill(empty(0)).shape == (0,)
        assert fill(empty(3, 0, 2)).shape == (3, 0, 2)
    assert torch.equal(torch.spyre.get_rng_state(), state)
    assert torch.rand((), device="spyre").shape == ()


def test_the_state_moves_by_what_is_drawn() -> None:
    torch.spyre.manual_seed(2**64 - 2)
    torch.rand(3, 4, device="spyre")
    torch.empty(5, device="spyre").random_()
    state = torch.spyre.get_rng_state().numpy().view(np.uint64)
    assert state.tolist() == [2**64 - 2, 17]
    with pytest.raises(RuntimeError, match="16"):
        torch.spyre.set_rng_state(torch.zeros(8, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: empty(3).normal_(0, -1), "std >= 0"),
        (lambda: empty(3).uniform_(2, 1), "from <= to|from=2 > to=1"),
        (lambda: empty(3).random_(3, 3), "'from' to be less than 'to'"),
        (lambda: empty(3, dtype=torch.uint8).random_(300), "out of bounds"),
        (lambda: empty(3, dtype=torch.int32).normal_(), "not implemented for 'Int'"),
        (lambda: empty(3).bernoulli_(1.5), "p to be in"),
        (lambda: empty(3).exponential_(0), "lambda > 0"),
        (lambda: empty(3).bernoulli_(empty(3, dtype=torch.int32)), "floating-point"),
        (lambda: empty(1).expand(3).normal_(), "more than one element"),
        (lambda: torch.native_dropout(empty(3), 2.0, True), "between 0 and 1"),
        (lambda: torch.rand(3, device="spyre", generator=torch.Generator()), "'spyre' device type"),
        (lambda: torch.rand(3, generator=torch.Generator("spyre")), "'cpu' device type"),
        (lambda: torch.randperm(3, device="spyre", generator=torch.Generator()), "'spyre' device"),
        (lambda: torch.tensor([1.0, -1], device="spyre").multinomial(3, True), "element < 0"),
        (lambda: torch.zeros(2, device="spyre").multinomial(3, True), "sum of probabilities"),
        (lambda: torch.zeros(2, device="spyre").multinomial(1), "sum of probabilities"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        call()


def test_checkpoint_drops_the_same_again() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 3, 0.5)

    x = torch.ones(20, 30, device="spyre", requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal((slope != 0).cpu(), (out != 0).cpu())


def test_cards_have_streams_of_their_own(run_python: Run) -> None:
    code = """
import torch, openspyre
openspyre.require()
torch.manual_seed(5)
a, b = torch.rand(4, device="spyre:0").cpu(), torch.rand(4, device="spyre:1").cpu()
assert torch.equal(a, b)
with torch.random.fork_rng(devices=[0, 1], device_type="spyre"):
    inside = torch.rand(3, device="spyre:1").cpu()
assert torch.equal(torch.rand(3, device="spyre:1").cpu(), inside)
first, second = torch.spyre.get_rng_state("spyre:0"), torch.spyre.get_rng_state("spyre:1")
assert not torch.equal(first, second)
torch.spyre.set_device(1)
torch.spyre.manual_seed(6)
assert torch.equal(torch.spyre.get_rng_state("spyre:0"), first)
own = torch.Generator("spyre:1").manual_seed(6)
assert torch.equal(torch.randn(9, device="spyre:1", generator=own).cpu(),
                   torch.randn(9, device="spyre").cpu())
compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5))
x = torch.ones(50, device="spyre:1")
torch.manual_seed(7)
y = compiled(x)
torch.manual_seed(7)
assert y.device == x.device
assert torch.equal(compiled(x).cpu(), y.cpu())
print("done")
"""
    done = run_python(code, OPENSPYRE_DEVICES="2")
    assert done.stdout == "done\n", done.stderr
