"""`spyre accuracy` and the comparison behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

import openspyre
from openspyre.errors import SpyreError
from openspyre.numerics import CARD, Mode, Numerics, SumFormat
from openspyre.tools.accuracy import compare, distance
from openspyre.tools.accuracy_models import load_subject
from openspyre.tools.cli import app

openspyre.require()
SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(200, 96), torch.nn.GELU(), torch.nn.Linear(96, 5))
inputs = torch.randn(7, 200)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accuracy") / "model.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["accuracy", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_distances() -> None:
    exact = torch.tensor([3.0, 4.0])
    far = distance(torch.tensor([3.0, 4.5]), exact)
    assert far.relative_l2 == pytest.approx(0.1)
    assert (far.max_abs, far.not_finite) == (0.5, 0)
    assert far.cosine == pytest.approx((9 + 18) / (5 * 29.25**0.5))
    broken = distance(torch.tensor([float("nan"), 4.0]), exact)
    assert (broken.not_finite, broken.relative_l2) == (1, 0)
    same = distance(torch.zeros(3), torch.zeros(3))
    assert (same.relative_l2, same.cosine) == (0, 1)
    assert distance(torch.ones(3), torch.zeros(3)).relative_l2 == float("inf")
    assert distance(torch.zeros(0), torch.zeros(0)).max_abs == 0


class Twice(torch.nn.Module):
    """A module that is called twice, and a result of several parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = torch.nn.Linear(64, 64)
        self.train()

    def forward(self, x: torch.Tensor, *, ids: torch.Tensor) -> dict[str, object]:
        y = self.inner(self.inner(x))
        return {"y": y, "rest": (ids, y.sum(-1))}


def test_every_call_and_every_part_is_a_row() -> None:
    model = Twice()
    inputs = {"x": torch.randn(4, 64), "ids": torch.arange(4)}
    steps: list[str] = []
    found = compare(model, inputs, progress=steps.append)
    places = [(row.module, row.call, row.part) for row in found.rows]
    assert places == [("inner", 0, ""), ("inner", 1, ""), ("", 0, "y"), ("", 0, "rest.1")]
    assert steps == ["inner", "inner", ""] * 3
    for row in found.rows:
        assert 0 < row.ieee.relative_l2 < 0.002 < row.card.relative_l2 < 0.02
        assert row.card.cosine > 0.9995
    assert [row.part for row in found.outputs] == ["y", "rest.1"]
    assert model.training
    assert next(model.parameters()).device.type == "cpu"
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.spyre.current_numerics().mode is Mode.IEEE


def test_a_long_sum_is_one_per_cent_off_on_the_card_and_integers_are_not() -> None:
    """card.md 2.2 and 2.3."""
    torch.manual_seed(0)
    model = torch.nn.Linear(12800, 32, bias=False)
    torch.nn.init.normal_(model.weight)
    (noise,) = compare(model, (torch.randn(8, 12800),)).rows
    assert noise.ieee.relative_l2 < 0.0005
    assert 0.007 < noise.card.relative_l2 < 0.012
    fp32 = Numerics(Mode.CARD, acc_format=SumFormat.FP32, acc_chunk=0)
    (wide,) = compare(model, (torch.randn(8, 12800),), numerics=fp32).rows
    assert wide.card.relative_l2 < 0.0015
    torch.nn.init.zeros_(model.weight)
    model.weight.data[:, ::40] = torch.randint(-1, 2, (32, 320)).float()
    (whole,) = compare(model, (torch.randint(-3, 4, (8, 12800)).float(),)).rows
    assert whole.ieee.max_abs == whole.card.max_abs == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_only_16_bit_floats(dtype: torch.dtype) -> None:
    with pytest.raises(SpyreError, match="not a question of numerics"):
        compare(torch.nn.Linear(2, 2), (torch.ones(2),), dtype=dtype)


def test_nothing_to_compare() -> None:
    class Ids(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    with pytest.raises(SpyreError, match="nothing to compare"):
        compare(Ids(), (torch.arange(3),))


def test_the_command_prints_a_table(script: Path) -> None:
    code, out, _ = run(str(script))
    assert code == 0
    for word in ("float16 on the card", "ieee", "relative L2", "(output)", "7x96"):
        assert word in out


def test_the_command_prints_json(script: Path) -> None:
    arguments = (str(script), "--json", "--dtype", "bfloat16", "--switch", "acc_chunk=0")
    code, out, _ = run(*arguments)
    assert code == 0
    found = json.loads(out)
    assert found["numerics"] == "card,acc_chunk=0"
    assert (found["dtype"], found["trained"], found["fallbacks"]) == ("bfloat16", True, {})
    assert [row["module"] for row in found["rows"]] == ["0", "1", "2", ""]
    assert found["rows"][-1]["shape"] == [7, 5]
    assert 0 < found["rows"][-1]["ieee"]["relative_l2"] < 0.02


def test_a_folder_without_weights(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    code, out, _ = run(str(tmp_path), "--length", "40", "--depth", "1")
    assert code == 0
    for words in ("has no weights", "2x16x32", "deeper modules"):
        assert words in out
    BertModel(config).save_pretrained(tmp_path)
    code, out, _ = run(str(tmp_path / "config.json"), "--json", "--length", "5", "--batch", "1")
    found = json.loads(out)
    assert found["trained"]
    assert len(found["rows"]) > 20
    assert all(row["card"]["not_finite"] == 0 for row in found["rows"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nothing",), "there is no model nothing"),
        (("nothing.py",), "there is no script nothing.py"),
        (("{script}", "--dtype", "float64"), "no dtype float64"),
        (("{script}", "--switch", "speed=9"), "no switch speed"),
    ],
)
def test_mistakes(script: Path, arguments: tuple[str, ...], problem: str) -> None:
    code, out, err = run(*(word.format(script=script) for word in arguments))
    assert (code, out) == (2, "")
    assert problem in err


def test_a_type_stands_for_its_tiny_model() -> None:
    subject = load_subject("convbert", batch=1, length=1, seed=0)
    assert not subject.trained
    assert sum(p.numel() for p in subject.model.parameters()) < 200_000
    with torch.no_grad():
        assert subject.model(**subject.inputs)[0].isfinite().all()
    with pytest.raises(SpyreError, match="its parts are other types"):
        load_subject("bark", batch=1, length=1, seed=0)


def test_a_script_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("model = 3\n")
    code, _, err = run(str(path))
    assert code == 2
    assert "defines no model and inputs" in err


def test_numerics_of_the_comparison_are_the_cards_defaults() -> None:
    found = compare(torch.nn.Linear(8, 8), (torch.ones(2, 8),))
    assert (found.numerics, found.dtype) == (CARD, torch.float16)
