"""`spyre explain`: what was decided, what else there was, what bounds it."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import openspyre
from openspyre.compiler.alternatives import places, step_choices
from openspyre.compiler.pipeline import compile_kernel, plan_kernel
from openspyre.compiler.pipeline import planned as plan_report
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Kernel, Space
from openspyre.ir.text import print_kernel
from openspyre.runtime.clock import card_timer
from openspyre.runtime.saved import SavedKernel, Use, Variant
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from openspyre.tools.cli import app
from openspyre.tools.explained import explained, show_kernels
from openspyre.tools.outlook_text import show_outlook
from openspyre.tools.report import is_model
from openspyre.tools.unlaunched import Outlook, PhaseOutlook
from tests.hinted_kernels import mlp, told

openspyre.require()

SCRIPT = """\
import torch


def model(x, w, v):
    y = x @ w
    return v @ y, y.exp()


x, w, v = (torch.ones(n, m).half().to("spyre") for n, m in ((64, 256), (256, 256), (64, 64)))
compiled = torch.compile(model, dynamic=False)
for _ in range(3):
    compiled(x, w, v)
"""


def spyre(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def planned(*hints: str, card: CardSpec = SPYRE_CARD_V1) -> Kernel:
    return plan_kernel(told(*hints), card)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    script = tmp_path_factory.mktemp("explain") / "script.py"
    script.write_text(SCRIPT)
    code, out = spyre("explain", "--json", script)
    assert code == 0
    return json.loads(out), spyre("explain", script)[1]


def test_a_kernel_says_what_was_decided(found: tuple[dict[str, Any], str]) -> None:
    kernels = [k for k in found[0]["kernels"] if "mm" in k["name"]]
    (kernel,) = kernels
    assert kernel["launches"] == 3
    assert kernel["cycles"] > 0
    assert kernel["times_bound"] >= 1
    assert 0 < kernel["limiting_share"] <= 1
    assert kernel["problem"] == ""
    assert any("y = x @ w" in line["code"] for line in kernel["lines"])
    assert all("script.py:" in line["place"] for line in kernel["lines"])
    ops = [op for step in kernel["steps"] for op in step["ops"]]
    assert any(op.startswith("contract") for op in ops)
    assert found[0]["fallbacks"] == []
    for step in kernel["steps"]:
        assert 1 <= step["cores"] <= 32
        assert step["division"]["choice"] not in [c["choice"] for c in step["other_divisions"]]
        costs = [c["estimated_cycles"] for c in step["other_divisions"]]
        assert costs == sorted(costs)


def test_the_text_says_it_too(found: tuple[dict[str, Any], str]) -> None:
    data, text = found
    kernel = next(k for k in data["kernels"] if "mm" in k["name"])
    assert f"{kernel['name']}: 3 launches, {kernel['cycles']:,} cycles" in text
    assert f"{kernel['limiting']} is busy" in text
    for step in kernel["steps"]:
        assert step["name"] in text
        assert f"{step['division']['estimated_cycles']:,}" in text
    assert text.endswith("every op ran on the card\n")


def test_the_ways_to_plan_and_what_they_took() -> None:
    kernel = mlp()
    text = print_kernel(kernel)
    variant = Variant(encode(compile_kernel(kernel, SPYRE_CARD_V1)), (), ())
    saved = SavedKernel("mlp", text, (variant,), (Use(0, (), 1, 0.0, 1, {}),))
    (entry,) = explained([saved], SPYRE_CARD_V1)
    asked = plan_report(kernel, SPYRE_CARD_V1, timer=card_timer(SPYRE_CARD_V1))
    assert [(way["way"], way["cycles"], way["problem"]) for way in entry["ways"]] == [
        (tried.way, tried.cycles, tried.problem) for tried in asked.tried
    ]
    assert [way["taken"] for way in entry["ways"]].count(True) == 1
    other = {"way": "another way", "cycles": 12345.0, "problem": "", "taken": False}
    failed = {"way": "a third", "cycles": None, "problem": "it has no room", "taken": False}
    console = Console(record=True, width=400, file=StringIO())
    show_kernels([entry | {"ways": [*entry["ways"], other, failed]}], console)
    shown = console.export_text()
    (taken,) = (way for way in entry["ways"] if way["taken"])
    assert f"planned {taken['way']}: {taken['cycles']:,.0f} cycles (taken); " in shown
    assert "another way: 12,345 cycles; a third: it has no room" in shown


def test_hints_move_what_is_told() -> None:
    free = {c.step.name: c for c in step_choices(planned(), SPYRE_CARD_V1)}
    told = {c.step.name: c for c in step_choices(planned("division s0.i0: 2"), SPYRE_CARD_V1)}
    assert told["s0"].division.text.startswith("i0 x 2")
    assert told["s0"].division.cycles > free["s0"].division.cycles
    cheapest = min(told["s0"].divisions, key=lambda c: c.cycles)
    assert cheapest.cycles < told["s0"].division.cycles


def test_a_tensor_says_why_it_is_not_in_lx() -> None:
    hints = "division s0.i0: 8", "division s1.i0: 32"
    (place,) = places(planned(*hints), SPYRE_CARD_V1)
    assert (place.tensor, place.row.space, place.why) == ("t", Space.LX, "")  # fetched on the ring
    slow = replace(SPYRE_CARD_V1, lx_latency_cycles=4000)
    (place,) = places(planned(*hints, card=slow), slow)
    assert (place.tensor, place.row.space) == ("t", Space.DEVICE)
    apart = "steps s0, s1 do not need it in the same parts"
    assert place.why == f"{apart}, and the ring is slower than device memory"
    (place,) = places(planned("division i0: 1", "division i1: 4"), SPYRE_CARD_V1)
    assert (place.row.space, place.why) == (Space.LX, "")


def test_a_model_is_explained_without_running_and_without_its_weights(tmp_path: Path) -> None:
    """This one's would take 6.4 GB."""
    config = {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 64,
              "vocab_size": 50 << 20, "intermediate_size": 64, "num_attention_heads": 2,
              "max_position_embeddings": 32}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, out = spyre("explain", "--json", tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    data = json.loads(out)
    model = data["model"]
    assert (code, data["fallbacks"]) == (0, [])
    assert all(k["name"].startswith("forward ") and k["cycles"] for k in data["kernels"])
    assert any("encoder.layer" in line["code"] for k in data["kernels"] for line in k["lines"])
    assert (model["runs"], model["type"], model["why"]) == (True, "bert", "")
    assert model["memory"]["fits"]
    assert model["memory"]["weights"] == 2 * model["parameters"] > 6.4e9
    assert model["memory"]["needed"] > model["memory"]["weights"]
    (phase,) = model["phases"]
    assert (phase["name"], phase["tokens"]) == ("forward", 32)
    assert phase["us"] > 0
    ops = {(one["op"], one["dtype"]) for one in model["ops"]}
    assert {("spyre.linear", "float16"), ("embedding", "float16")} <= ops


def test_a_decoder_has_two_phases_and_a_cache(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 96,
              "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
              "max_position_embeddings": 16}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out = spyre("explain", "--json", tmp_path)
    model = json.loads(out)["model"]
    assert code == 0
    assert [(p["name"], p["tokens"], p["context"]) for p in model["phases"]] == [
        ("prefill", 16, 16), ("decode", 1, 16),
    ]  # fmt: skip
    cache = 2 * 2 * 16 * 32 * 2  # layers, keys and values, positions, size, bytes
    assert all(cache <= p["cache"] < cache + 1024 for p in model["phases"])
    assert (model["layers_traced"], model["layers"]) == (2, 2)


def test_an_encoder_decoder_is_traced_whole(tmp_path: Path) -> None:
    config = {"model_type": "t5", "num_layers": 1, "d_model": 64, "d_kv": 32, "vocab_size": 96,
              "d_ff": 64, "num_heads": 2}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    data = json.loads(spyre("explain", "--json", tmp_path)[1])
    assert data["model"]["runs"]
    assert data["model"]["layers"] == 0
    assert data["kernels"]


def test_a_model_that_is_too_large() -> None:
    phase = PhaseOutlook("decode", 1, 64, 1.0, cache=5, activations=4)
    ops = {("mm", "float16"): 3}
    found = Outlook("llama", 7, "", ops, (0, 0), (phase,), weights=10, card=18)
    assert found.needed == 19
    assert not found.fits
    assert replace(found, card=19).fits
    console = Console(record=True, width=100, file=StringIO())
    show_outlook(found, console)
    assert "does NOT fit" in (said := console.export_text())
    assert "mm" in said
    show_outlook(replace(found, card=19), console)
    assert "it runs on the card" in console.export_text()


@pytest.mark.parametrize(
    ("target", "model"),
    [("bert", True), ("config.json", True), ("-", False), ("run.py", False), ("a/run", False)],
)
def test_what_is_a_model(target: str, model: bool) -> None:
    assert is_model(target) is model


def test_a_folder_is_a_model_or_a_program(tmp_path: Path) -> None:
    assert not is_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert is_model(str(tmp_path))
    (tmp_path / "__main__.py").write_text("")
    assert not is_model(str(tmp_path))
