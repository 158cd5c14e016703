"""The proof accepts what is right and refuses what is wrong, each for its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import openspyre
from openspyre.hf.adapters import Adapter, Calls, Gap, Trial
from openspyre.hf.formulas import Formula, formula_of
from openspyre.hf.probe import probe
from openspyre.hf.proof import Claims, prove
from openspyre.hf.proof_inputs import Case, Floats, Integers, instances
from openspyre.hf.symbolic import compared
from tests.models.example_adapters import ADAPTERS, POWER, cube, cubic

openspyre.require()
Function = Callable[..., Any]


@pytest.fixture(scope="module")
def power() -> Claims:
    return Claims(POWER)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.id)
def test_examples_are_proved(adapter: Adapter, request: pytest.FixtureRequest) -> None:
    """With --long also on a trained model."""
    long = request.config.getoption("--long")
    trials = adapter.trials if long else POWER.trials[:1] if adapter is POWER else ()
    proof = prove(replace(adapter, trials=trials))
    assert proof.passed, proof.refusal()
    stages = [check.stage for check in proof.checks]
    assert stages.count("float64") == 1
    assert stages.count("dtypes") == 3
    assert stages.count("control") >= len(adapter.controls) + 6
    details = {check.stage: check.detail for check in proof.checks}
    assert details["formulas"].startswith("equal as expressions")
    models = [check.detail for check in proof.checks if check.stage == "model"]
    assert len(models) == len(trials)
    assert all("calls replaced" in detail for detail in models)


def view_of_memory(x: Tensor, n: float) -> Tensor:
    """Right for contiguous tensors alone: it reads the memory as it lies."""
    flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
    return (flat * flat * flat).reshape(x.shape)


def in_place(x: Tensor, n: float) -> Tensor:
    y = cube(x, n)
    x.zero_()
    return y


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda x, n: x * x * x * (1 + 1e-9), "elements"),
        (lambda x, n: x * x * x + x * 1e-12, "elements"),
        (lambda x, n: torch.exp(n * torch.log(x)), "nan"),
        (lambda x, n: x.sign() * torch.exp(n * torch.log(x.abs())), "elements"),
        (lambda x, n: torch.where(x.abs() > 1e-30, x * x * x, 0.0), "elements"),
        (lambda x, n: torch.where(x == x, x * x * x, 0.0), "one NaN"),
        (lambda x, n: (x * x * x).clamp(-1e200, 1e200), "elements"),
        (lambda x, n: x * x * x if x.shape[0] != 1 else x * x, "all sizes 1"),
        (lambda x, n: x * x * x if x.numel() else x[0], "= 0"),
        (lambda x, n: (x * x * x).double(), "torch.float64"),
        (lambda x, n: (x * x * x)[None], "(1, 3, 4)"),
        (lambda x, n: [x * x * x], "it gives"),
        (lambda x, n: None, "it gives"),
        (lambda x, n: x.cube(), "AttributeError"),
        (view_of_memory, "elements"),
        (in_place, "changes an argument"),
    ],
    ids=[
        "one part in 10^9", "a small multiple added", "logarithm", "sign and logarithm",
        "tiny to zero", "zero for NaN", "clamped", "size 1", "size 0", "dtype", "shape", "list",
        "None", "raises", "strides", "in place",
    ],
)  # fmt: skip
def test_wrong_ones_are_refused(power: Claims, wrong: Function, reason: str) -> None:
    refusal = power.refusal(power.run(wrong))
    assert reason in refusal


def test_right_ones_are_not(power: Claims) -> None:
    for right in (cube, lambda x, n: x * (x * x), lambda x, n: torch.pow(x, 3), lambda x, n: x**n):
        assert power.refusal(power.run(right)) == ""


def test_memory_of_an_argument_is_no_result() -> None:
    copies = Adapter(
        "copy", Calls(("torch:clone",)), torch.clone, Gap("aten.clone.default", ""),
        (Case((Floats(("n", "m")),)),),
    )  # fmt: skip
    claims = Claims(copies)
    assert claims.refusal(claims.run(torch.clone)) == ""
    assert "lies in the memory of an argument" in claims.refusal(claims.run(lambda x: x.view_as(x)))


def test_a_control_that_passes_fails_the_proof() -> None:
    proof = prove(replace(POWER, controls={"right": lambda x, n: x * x * x}), models=False)
    assert not proof.passed
    assert proof.refusal() == "control, right: it was not refused"


def test_what_cannot_be_spoilt_is_not_proved() -> None:
    nothing = Adapter(
        "nothing", Calls(("torch:zeros_like",)), torch.zeros_like, Gap("aten.zeros_like", ""),
        (Case((Floats((0,)),)),),
    )  # fmt: skip
    assert "nothing can be spoilt" in prove(nothing, models=False).refusal()


def norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def stock_norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], eps=1e-6).to(x.dtype)


def test_a_norm_without_its_float32_is_refused_in_half_precision() -> None:
    def narrow(x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    adapter = Adapter(
        "norm", Calls((f"{__name__}:stock_norm",)), norm, Gap("aten.rsqrt.default", ""),
        (Case((Floats(("n", "m")),)),), controls={"narrow": narrow},
    )  # fmt: skip
    claims = Claims(adapter)
    assert claims.refusal(claims.run(norm)) == ""
    checks = {check.name: check for check in claims.judged(claims.run(narrow))}
    assert checks["float64"].passed  # there it is the same
    assert not checks["float16"].passed


# --- inputs ---------------------------------------------------------------------------------------


def test_calls_are_adversarial() -> None:
    made = list(instances(Case((Floats(("n", "m")),)), torch.float16, 0))
    tensors = [call.args[0] for call in made]
    assert all(t.dtype == torch.float16 for t in tensors)
    assert any(t.numel() == 0 for t in tensors)
    assert any(t.shape == (1, 1) for t in tensors)
    assert any(not t.is_contiguous() and t.storage_offset() for t in tensors)
    assert any(0 in t.stride() for t in tensors)
    assert any(t.isnan().any() for t in tensors)
    assert any(t.isposinf().any() for t in tensors)
    assert any(t.isneginf().any() for t in tensors)
    finite = [t for t in tensors if t.numel() and t.isfinite().all()]
    assert any(t.abs().max() > 2e4 for t in finite)
    assert any(0 < t.abs().min() < 1e-4 for t in finite)
    assert any((t < 0).all() for t in finite)
    assert any((t == 0).all() and t.signbit().all() for t in finite)


def test_whole_numbers_reach_their_ends() -> None:
    case = Case((Integers(("n", 3), 2, 6), Integers(("n",), 0, 2, torch.bool)))
    numbers, bools = zip(*(call.args for call in instances(case, torch.float64, 0)), strict=True)
    filled = [t for t in numbers if t.numel()]
    assert min(int(t.min()) for t in filled) == 2
    assert max(int(t.max()) for t in filled) == 5
    for value in (True, False):
        assert any(t.numel() > 1 and bool((t == value).all()) for t in bools)


# --- formulas -------------------------------------------------------------------------------------


def formula(function: Function, *shapes: tuple[int, ...]) -> Formula:
    args = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return formula_of(function, args, {})


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (lambda x, y: (x + y) ** 2, lambda x, y: x * x + 2 * x * y + y * y, False),
        (lambda x, y: x @ y, lambda x, y: (x[:, :, None] * y[None]).sum(1), False),
        (lambda x, y: torch.sigmoid(x) + y, lambda x, y: (x / 2).tanh() / 2 + 0.5 + y, False),
        (lambda x, y: (x + y) ** 2, lambda x, y: x * x + 2 * x * y + y * y * (1 + 2**-40), True),
        (lambda x, y: x @ y, lambda x, y: y @ x, True),
        (lambda x, y: x.mean(0) + y, lambda x, y: x.mean(1) + y, True),
        (lambda x, y: x.exp() + y, lambda x, y: 1 + x + x * x / 2 + x**3 / 6 + y, True),
    ],
    ids=["square", "product", "sigmoid", "nearly", "turned", "other dim", "series"],
)
def test_formulas(a: Function, b: Function, differs: bool) -> None:
    shapes = ((2, 2), (2, 2))
    verdict = compared(formula(a, *shapes), formula(b, *shapes), shapes)
    assert verdict.differs is differs, verdict.detail
    assert verdict.done


def test_what_has_no_formula_is_said() -> None:
    shapes = ((3,),)
    sort = formula(lambda x: x.sort()[0], *shapes)
    verdict = compared(sort, sort, shapes)
    assert (verdict.differs, verdict.done) == (False, False)
    assert verdict.detail == "aten.sort.default has no formula here"


# --- on the card ----------------------------------------------------------------------------------


def test_a_probe_tells_what_is_still_needed() -> None:
    needed = Adapter(
        "logcumsumexp", Calls(("torch:logcumsumexp",)), torch.logcumsumexp,
        Gap("aten.logcumsumexp.default", ""), (Case((Floats(("n", "m")), -1)),),
    )  # fmt: skip
    found = probe(needed)
    assert found.needed
    assert "logcumsumexp on the CPU" in found.why
    retired = probe(POWER)
    assert not retired.needed
    assert "lowers and is right" in retired.why


def test_a_model_without_the_op_proves_nothing() -> None:
    def other() -> tuple[nn.Module, tuple[Tensor]]:
        return nn.Linear(6, 6), (torch.randn(2, 6),)

    adapter = replace(POWER, trials=(Trial("linear", other),), controls={})
    assert "never comes to the replacement" in prove(adapter).refusal()


def test_a_model_shows_what_the_calls_do_not() -> None:
    """A replacement that is wrong on the card alone: the calls of the proof run on the CPU."""

    def wrong(x: Tensor, n: float) -> Tensor:
        return x * x * x * (1.01 if x.device.type == "spyre" else 1.0)

    adapter = replace(POWER, replacement=wrong, trials=(Trial("block", cubic),), controls={})
    assert "from float64, allowed" in prove(adapter).refusal()


def test_weights_that_are_not_there_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openspyre.hf.trials.kept", lambda _weights: None)
    trial = Trial("rxnmapper", cubic, weights="rxnmapper")
    proof = prove(replace(POWER, trials=(trial,), controls={}))
    assert not proof.checks[-1].done
    assert proof.checks[-1].detail == "`spyre weights get rxnmapper` fetches its weights"
