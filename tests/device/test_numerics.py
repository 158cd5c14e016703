"""torch.spyre.numerics: the choice travels with each launch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch

from openspyre.errors import InvalidSetting
from openspyre.numerics import CARD, IEEE, Dl16Round, Mode, Numerics, SumFormat, parse_numerics
from tests.card import dl16
from tests.device.streams import held

RUN = Callable[..., subprocess.CompletedProcess[str]]
TIE = torch.full((300,), 1 + 1 / 1024, dtype=torch.float16)  # halfway between DL16 values
UP = 1 + 1 / 512


def test_the_default_is_ieee() -> None:
    assert torch.spyre.current_numerics() == IEEE
    assert torch.equal((TIE.to("spyre") * 1).cpu(), TIE)


def test_the_context_and_what_was_before() -> None:
    x = TIE.to("spyre")
    with torch.spyre.numerics("card") as chosen:
        assert chosen == CARD == torch.spyre.current_numerics()
        assert torch.all((x * 1).cpu() == UP)
        with torch.spyre.numerics("card", dl16_round="truncate"):
            assert torch.all((x * 1).cpu() == 1)
        with torch.spyre.numerics("ieee"):
            assert torch.equal((x * 1).cpu(), TIE)
        with pytest.raises(ZeroDivisionError), torch.spyre.numerics(IEEE):
            1 / 0  # noqa: B018
        assert torch.all((x * 1).cpu() == UP)
    assert torch.spyre.current_numerics() == IEEE


def test_a_launch_keeps_the_numerics_it_was_submitted_with() -> None:
    x = TIE.to("spyre")
    x * 1  # compiled, so that only launches follow
    with held() as hold:
        with torch.spyre.numerics("card"):
            card = x * 1
        ieee = x * 1
        with torch.spyre.numerics("card", dl16_round="truncate"):
            cut = x * 1
        hold.let_go()
    assert torch.all(card.cpu() == UP)
    assert torch.equal(ieee.cpu(), TIE)
    assert torch.all(cut.cpu() == 1)


def test_backward_computes_like_forward() -> None:
    """Autograd's threads are not the one that entered the context."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, 8, generator=generator).half() for _ in range(2))

    def gradient() -> torch.Tensor:
        x = a.to("spyre").requires_grad_()
        (x @ b.to("spyre")).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    with torch.spyre.numerics("card"):
        card = gradient()
    held_b = dl16.rounded(b.numpy(), Dl16Round.NEAREST_UP)
    wanted = dl16.total(np.ones((1, 8)), held_b, CARD)
    assert np.array_equal(card.numpy()[0].astype(np.float64), wanted.astype(np.float16))
    assert not torch.equal(card, gradient())


def test_a_compiled_graph_runs_under_both() -> None:
    torch._dynamo.reset()
    graphs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).softmax(-1)

    compiled = torch.compile(f)
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)).half().to("spyre")
    ieee = compiled(x).cpu()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.spyre.numerics("card"):
        card = compiled(x).cpu()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    assert graphs == 0  # the program is the same
    assert torch.equal(compiled(x).cpu(), ieee)
    assert not torch.equal(card, ieee)
    torch.testing.assert_close(card, ieee, rtol=0.02, atol=1e-4)
    torch._dynamo.reset()


def test_the_environment_chooses(run_python: RUN) -> None:
    code = """
import torch, openspyre
openspyre.require()
print(torch.spyre.current_numerics(), float((torch.ones(3).half() + 2**-10).to("spyre").mul(1)[0]))
"""
    done = run_python(code, OPENSPYRE_NUMERICS="card,dl16_round=truncate,acc_chunk=8")
    assert done.stdout.split() == ["card,dl16_round=truncate,acc_chunk=8", "1.0"], done.stderr


def test_the_bias_of_fp8() -> None:
    x = torch.tensor([1.5, -2.0, 448.0]).to(torch.float8_e4m3fn).to("spyre")
    widened = torch.compile(lambda x: x.half() + 0)
    with torch.spyre.numerics("card", fp8_bias=8):
        assert widened(x).tolist() == [0.75, -1.0, 224.0]
        assert (x * x).tolist() == [1.125, 2.0, 448.0]  # 224 * 224 saturates
    assert widened(x).tolist() == [1.5, -2.0, 448.0]


@pytest.mark.parametrize(
    "numerics",
    [
        IEEE,
        CARD,
        Numerics(Mode.CARD, Dl16Round.TRUNCATE, acc_format=SumFormat.DL16_FUSED, acc_chunk=0),
    ],
)
def test_text_and_words_round_trip(numerics: Numerics) -> None:
    assert parse_numerics(str(numerics)) == numerics == Numerics.of_words(numerics.words())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("real", "numerics=real means nothing"),
        ("card,acc_chunk=65", "acc_chunk=65 means nothing"),
        ("card,acc_chunk=12", "acc_chunk=12 means nothing"),
        ("card,acc_chunk=-1", "acc_chunk=-1 means nothing"),
        ("card,fp8_bias=0", "fp8_bias=0 means nothing"),
        ("card,fp8_bias=16", "fp8_bias=16 means nothing"),
        ("ieee,fp8_bias=8", "numerics ieee have no switches"),
        ("card,acc_chunk", "acc_chunk= means nothing"),
        ("card,dl16_round=up", "dl16_round=up means nothing"),
        ("card,fp8=7", "no switch fp8"),
        ("ieee,acc_chunk=8", "numerics ieee have no switches"),
    ],
)
def test_what_means_nothing_says_so(text: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        parse_numerics(text)
