"""Adapters on models: what they change, and that nothing of it stays."""

from __future__ import annotations

import copy
import inspect
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from openspyre.errors import SpyreError
from openspyre.hf import adapt
from openspyre.hf.adapters import Adapted, AdaptedForward, Adapter, Applies, Calls, Versions
from openspyre.hf.shipped import ADAPTERS as SHIPPED
from tests.models.example_adapters import CONV1D, POWER, Cubic


def noting(adapter: Adapter, seen: list[str]) -> Adapter:
    """The adapter with a list of the calls of its replacement."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        seen.append(adapter.id)
        return adapter.replacement(*args, **kwargs)

    return replace(adapter, replacement=replacement)


def state(model: nn.Module) -> list[dict[str, Any]]:
    return [dict(vars(module)) for module in model.modules()]


def is_as(before: list[dict[str, Any]], model: nn.Module) -> bool:
    return all(
        old.keys() == new.keys() and all(old[key] is new[key] for key in old)
        for old, new in zip(before, state(model), strict=True)
    )


@pytest.fixture
def model() -> Cubic:
    return Cubic().eval()


X = torch.linspace(-2, 2, 18).reshape(1, 3, 6)


def test_both_kinds_apply_and_say_so(model: Cubic) -> None:
    seen: list[str] = []
    before, expected = state(model), model(X)
    with adapt(model, adapters=[noting(POWER, seen), noting(CONV1D, seen)]) as adapted:
        torch.testing.assert_close(model(X), expected)
    assert seen == ["conv1d-as-linear", "cube-as-products", "conv1d-as-linear"]
    assert str(adapted).splitlines() == [
        "cube-as-products: bridges aten.pow.Tensor_Scalar in calls in the model's forward",
        "conv1d-as-linear: bridges aten.addmm.default in 2 modules: inner, outer",
    ]
    assert is_as(before, model)
    seen.clear()
    model(X)
    assert seen == []


def test_nothing_else_is_touched(model: Cubic) -> None:
    other, forwards = Cubic(), (Cubic.forward, Conv1D.forward, nn.Module.__call__)
    seen: list[str] = []
    with adapt(model, adapters=[noting(POWER, seen), noting(CONV1D, seen)]):
        before = state(other)
        other(X)
        torch.pow(X, 3)
        assert seen == []
        assert is_as(before, other)
        assert (Cubic.forward, Conv1D.forward, nn.Module.__call__) == forwards


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_contexts_nest_and_end_in_any_order(model: Cubic, order: tuple[int, ...]) -> None:
    before, seen = state(model), []
    noted = [noting(replace(a, id=f"{n}"), seen) for n, a in enumerate((POWER, CONV1D, CONV1D))]
    applied: list[Adapted] = [adapt(model, adapters=[one]) for one in noted]
    left = [0, 1, 2]
    for number in order:
        applied[number].remove()
        applied[number].remove()
        left.remove(number)
        seen.clear()
        model(X)
        modules = max((n for n in left if n), default=None)  # the last one of a class is in force
        expected = {str(n) for n in left if n == 0 or n == modules}
        assert set(seen) == expected
    assert is_as(before, model)


def test_one_adapter_twice_is_one_call(model: Cubic) -> None:
    seen: list[str] = []
    one = noting(POWER, seen)
    with adapt(model, adapters=[one]):
        with adapt(model, adapters=[one]):
            model(X)
            assert len(seen) == 1
        model(X)
        assert len(seen) == 2


def test_what_a_replacement_calls_may_be_replaced_too(model: Cubic) -> None:
    seen: list[str] = []
    tanh = Adapter(
        "tanh", Calls(("torch:tanh",)), lambda x: torch.pow(x, 3), POWER.gap, POWER.cases
    )
    with adapt(model, adapters=[noting(POWER, seen), noting(tanh, seen)]):
        model(X)
    assert seen == ["cube-as-products", "tanh", "cube-as-products"]


def test_a_forward_of_the_instance_is_put_back(model: Cubic) -> None:
    def wrapped(x: Tensor) -> Tensor:
        return Cubic.forward(model, x) + 1

    model.forward = wrapped  # type: ignore[method-assign]
    expected = model(X)
    with adapt(model, adapters=[POWER]):
        torch.testing.assert_close(model(X), expected)
    assert model.forward is wrapped
    model.inner.forward = lambda x: x  # a hook of somebody's: not the class's forward any more
    with adapt(model, adapters=[CONV1D]) as adapted:
        assert [one.places for one in adapted.applied] == [("outer",)]


def test_a_forward_put_over_ours_stays(model: Cubic) -> None:
    seen: list[str] = []
    adapted = adapt(model, adapters=[noting(POWER, seen)])
    ours = model.forward
    model.forward = later = lambda x: ours(x) + 1  # type: ignore[method-assign, misc]
    adapted.remove()
    assert model.forward is later
    model(X)
    assert seen == []


def test_a_copy_is_adapted_for_itself(model: Cubic) -> None:
    adapted = adapt(model, adapters=[POWER])
    twin = copy.deepcopy(model)
    adapted.remove()
    assert isinstance(vars(twin)["forward"], AdaptedForward)
    assert vars(twin)["forward"].module is twin
    torch.testing.assert_close(twin(X), model(X))


def test_it_ends_when_the_block_raises(model: Cubic) -> None:
    before = state(model)
    with pytest.raises(ValueError, match="stop"), adapt(model, adapters=[POWER]):
        raise ValueError("stop")
    assert is_as(before, model)


# --- when -----------------------------------------------------------------------------------------


def why_not(model: nn.Module, applies: Applies, inputs: Any = None) -> str:
    with adapt(model, inputs, [replace(POWER, applies=applies)]) as adapted:
        return adapted.passed_over.get(POWER.id, "")


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=1,
        eos_token_id=63, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def test_rules_of_when(model: Cubic, gpt2: GPT2LMHeadModel) -> None:
    llama = Applies(frozenset({"llama"}))
    assert why_not(model, llama) == "a model of type unknown is none of llama"
    assert why_not(gpt2, llama) == "a model of type gpt2 is none of llama"
    assert why_not(gpt2, Applies(frozenset({"llama", "gpt2"}))) == ""
    for versions, fits in (
        (Versions("torch", since="2.13"), True),
        (Versions("torch", since="2.13", before="2.14"), True),
        (Versions("torch", before="2.13"), False),
        (Versions("torch", since="3"), False),
        (Versions("no-such-package"), False),
    ):
        assert (why_not(model, Applies(versions=(versions,))) == "") is fits, versions


def test_the_op_must_be_in_the_graph(model: Cubic, gpt2: GPT2LMHeadModel) -> None:
    there = Applies(op="aten.pow.Tensor_Scalar")
    missing = Applies(op="aten.erfinv.default")
    assert why_not(model, there, (X,)) == ""
    assert why_not(model, missing, (X,)) == "the graph has no aten.erfinv.default"
    assert "give adapt the inputs" in why_not(model, there)
    assert why_not(gpt2, there) == ""  # by the inputs that transformers' models bring
    assert "no aten.erfinv" in why_not(gpt2, missing)


def test_ids_are_unique(model: Cubic) -> None:
    with pytest.raises(SpyreError, match="one id"):
        adapt(model, adapters=[POWER, POWER])


# --- with what models are used for ----------------------------------------------------------------


def test_generate_takes_an_adapted_model(gpt2: GPT2LMHeadModel) -> None:
    seen: list[str] = []
    prompt = torch.tensor([[5, 9, 11]])
    mask = torch.ones_like(prompt)
    expected = gpt2.generate(prompt, attention_mask=mask, max_new_tokens=4, do_sample=False)
    signature = inspect.signature(gpt2.forward)
    with adapt(gpt2, adapters=[noting(POWER, seen), noting(CONV1D, seen)]):
        assert inspect.signature(gpt2.forward) == signature
        got = gpt2.generate(prompt, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert torch.equal(got, expected)
    assert seen.count("conv1d-as-linear") == 16  # four in each of four forwards
    assert seen.count("cube-as-products") == 4


def test_it_is_traced_as_one_graph(model: Cubic) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    expected = model(X)
    with adapt(model, adapters=[POWER, CONV1D]):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(X), expected)
    (graph,) = graphs
    code = graph.code
    assert "addmm" not in code
    assert "pow(" not in code or "3" not in code.split("pow(")[1].split(")")[0]
    torch._dynamo.reset()
    fresh = torch.compile(model, backend=backend, fullgraph=True)
    fresh(X)
    assert "addmm" in graphs[-1].code


def test_gradients_flow(model: Cubic) -> None:
    model(X).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with adapt(model, adapters=[POWER, CONV1D]):
        model(X).sum().backward()
    got = [p.grad for p in model.parameters()]
    assert len(expected) == len(got) == 4
    torch.testing.assert_close(got, expected)


def test_nothing_is_shipped_that_nobody_needs() -> None:
    assert SHIPPED == (), "an adapter that is shipped is proved and probed by a test of its own"
