"""Regions, launches and what surrounds them in generated code."""

from __future__ import annotations

import re

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from openspyre.errors import Unsupported
from openspyre.frontend.scheduling import LastPass
from openspyre.frontend.values import stored
from tests.compile.comparing import compare, generated, kernels_in, moved, same, tensor


def launches(code: list[str]) -> list[str]:
    return re.findall(r"^    +k\d+\(.*", "\n".join(code), flags=re.M)


def test_a_graph_is_one_launch() -> None:
    compare(
        lambda x, y: torch.softmax(x @ y, -1).sum(0) + 1, tensor(3, 5), tensor(5, 7), launches=1
    )


def test_an_op_that_leaves_the_card_cuts_the_region() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(x * 2, -1) * x + 1

    code = compare(f, tensor(3, 9), fallbacks=("logcumsumexp",), launches=2)
    assert "aten.logcumsumexp" in "\n".join(code)


def test_equal_kernels_are_loaded_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    compare(f, tensor(4, 5))
    compare(f, -tensor(4, 5))


def test_results_that_share_memory_and_inputs_that_return() -> None:
    compare(lambda x: (x, x.t(), (x + 1).t(), x[1:]), tensor(4, 5))


def test_mutation_of_a_view_reads_before_it_writes() -> None:
    def shift(x: torch.Tensor) -> torch.Tensor:
        before = x * 1
        x[1:] = before[:-1] + 1
        return before + x

    x = tensor(5, 4)
    card = x.to("spyre")
    torch._dynamo.reset()
    ours = torch.compile(shift, fullgraph=True)(card)
    theirs = shift(x)
    torch.testing.assert_close(ours.cpu(), theirs)
    torch.testing.assert_close(card.cpu(), x)


def test_unsupported_names_the_users_line_and_what_to_try() -> None:
    def shifted(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x + by

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"(?s)test_scheduling.py.*uint16.*try:"):
        torch.compile(shifted)(tensor(3).to("spyre"), torch.tensor(3, dtype=torch.uint16))


def test_float64_is_called_and_counted_not_refused() -> None:
    def angles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.arange(x.shape[0], dtype=torch.float64, device=x.device)[:, None] / 7
        return (x * 2 + wide.t().sin().float()).relu(), wide.expand(-1, 2)

    torch._dynamo.reset()
    x = tensor(5, 5)
    torch.spyre.reset_fallbacks()
    found, wide = torch.compile(angles)(x.to("spyre"))
    assert set(torch.spyre.fallback_reasons().values()) == {"the card does not compute in Double"}
    expected = angles(x)
    same(found, expected[0])
    assert torch.equal(wide.cpu(), expected[1])


FOREIGN = (
    torch.uint16, torch.uint32, torch.uint64, torch.float64, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)  # fmt: skip


@pytest.mark.parametrize("dtype", FOREIGN, ids=str)
def test_other_dtypes_are_called_and_counted_not_refused(dtype: torch.dtype) -> None:
    def squared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        other = (x * 2).to(dtype)
        return other * other, torch.cat([other, other.t()]).t()[1:], x + 1

    torch._dynamo.reset()
    x = tensor(4, 4).abs().round()
    torch.spyre.reset_fallbacks()
    found = torch.compile(squared)(x.to("spyre"))
    assert "aten::mul.out" in torch.spyre.fallbacks()
    reason = torch.spyre.fallback_reasons()["aten::mul.out"]
    assert reason.startswith("the card does not compute in")
    for ours, theirs in zip(found, squared(x), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.device.type == "spyre"
        assert torch.equal(ours.cpu().double(), theirs.double())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fnuz], ids=str)
def test_the_message_lists_only_what_the_card_stores(dtype: torch.dtype) -> None:
    with pytest.raises(Unsupported, match=str(dtype)) as caught:
        stored(dtype, "a tensor")
    (why,) = re.findall("the card stores (.*)", str(caught.value))
    assert "int32" in why
    assert str(dtype).removeprefix("torch.") not in why.split(", ")


def test_the_users_options_win_over_ours() -> None:
    function = torch.compile(lambda x: x.sum(-1), options={"unroll_reductions_threshold": 8})
    torch._dynamo.reset()
    _, code = run_and_get_code(function, *moved((tensor(4, 3),)))
    assert [op.kind.value for op in kernels_in(code)[0].ops] == ["map"]


def test_cpu_graphs_do_not_notice() -> None:
    torch._dynamo.reset()
    x = tensor(4, 3)
    result, code = run_and_get_code(torch.compile(lambda x: x.sum(-1) + 1), x)
    torch.testing.assert_close(result, x.sum(-1) + 1)
    assert "spyre" not in "\n".join(code)


def test_sizes_are_launch_arguments() -> None:
    code = generated(lambda x: (x.t() * 2).sum(0), tensor(6, 9), dynamic=True)
    (kernel,) = kernels_in(code)
    (launch,) = launches(code)
    assert len(kernel.symbols) == 2
    assert launch.rstrip(")").endswith(", ".join(kernel.symbols))


def test_recompiles_follow_the_guards_only() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    function = torch.compile(lambda x: torch.softmax(x + 1, -1), backend=counter, dynamic=True)
    for shape in ((3, 7), (5, 64), (8, 130)):
        x = tensor(*shape)
        torch.testing.assert_close(
            function(x.to("spyre")).cpu(), torch.softmax(x + 1, -1), rtol=1e-5, atol=1e-5
        )
    assert counter.frame_count == 1


def test_the_version_is_stable_and_not_empty() -> None:
    assert LastPass().uuid() == LastPass().uuid()
    assert len(LastPass().uuid()) >= 16
