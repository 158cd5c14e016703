"""`spyre models`: tiny models are tried, and a trial sees what is wrong with one."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import openspyre
from openspyre.hf import coverage
from openspyre.hf.coverage import Plan, answer, surveyed
from openspyre.hf.outcomes import Lane, Outcome, State, read
from openspyre.hf.recipes import recipes
from openspyre.hf.shares import shares, uses, weighted_types
from openspyre.hf.tiny_inputs import Calls, inputs_of
from openspyre.hf.tiny_judge import Allowed, allowed, flipped, judged
from openspyre.hf.tiny_model import Tiny, build, model_types
from openspyre.hf.tiny_trial import Fault, tried, untraceable
from openspyre.tools.cli import app
from openspyre.tools.models import report
from openspyre.tools.models_page import page
from tests.models import faults
from tests.models.merged import merged

openspyre.require()


# --- trials ---------------------------------------------------------------------------------------


def test_an_encoder_is_right_both_ways() -> None:
    stages: list[str] = []
    found = tried("bert", lambda stage, _: stages.append(stage))
    assert found.state is State.RIGHT, found
    assert (found.kind, found.dtype, found.generated) == ("encoder", "float16", False)
    assert found.compiled is not None
    assert found.compiled.graphs == 1
    assert 0 < found.compiled.worst < 1
    assert stages[:2] == ["build", "CPU"]
    assert stages[-1] == "compiled: forward"


def test_a_decoder_generates() -> None:
    found = tried("llama", _silent, lanes=("eager",))
    assert found.state is State.RIGHT, found
    assert (found.kind, found.generated) == ("decoder", True)


@pytest.mark.parametrize(
    ("name", "fault"), [("llama", faults.no_rotation), ("bert", faults.one_weight_row)]
)
def test_a_planted_fault_is_wrong(name: str, fault: Fault) -> None:
    found = tried(name, _silent, lanes=("eager",), fault=fault)
    assert found.state is State.WRONG
    assert found.eager is not None
    assert "off by" in found.eager.reason


def test_what_raises_is_told_with_stage_op_and_kernel() -> None:
    found = tried("bert", _silent, lanes=("eager",), fault=faults.raises)
    assert found.state is State.RAISED
    assert found.eager is not None
    assert found.eager.failure is not None
    failure = found.eager.failure
    assert (failure.stage, failure.op, failure.kernel) == ("eager: move", "aten::planted", "k7")
    assert failure.text == "RuntimeError: aten::planted cannot be lowered in kernel k7"


def test_what_the_cpu_cannot_run_is_skipped_with_its_reason() -> None:
    assert tried("bark", _silent).reason.startswith("CannotBuild: it has no forward pass")
    found = tried("timm_backbone", _silent)
    assert found.state is State.SKIPPED
    assert "timm" in found.reason


def test_what_is_only_built_says_so() -> None:
    built = tried("bert", _silent, lanes=())
    assert built.state is State.BUILT
    assert (built.model, built.eager, built.compiled) == ("BertForMaskedLM", None, None)
    assert built.parameters == build("bert", recipes()).parameters
    refused = tried("bark", _silent, lanes=())
    assert refused.state is State.SKIPPED
    assert refused.reason.startswith("CannotBuild: it has no forward pass")


def test_what_torch_cannot_trace_says_nothing_about_the_card() -> None:
    class Untraced(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input[:, :1] if torch.compiler.is_compiling() else input)

    calls = Calls({"input": torch.ones(1, 2)}, None)
    assert untraceable(Tiny("x", "other", nn.Linear(2, 2), 6), calls) == ""
    assert "Error" in untraceable(Tiny("x", "other", Untraced(2, 2), 6), calls)
    skipped = Lane(State.SKIPPED, "torch.compile does not trace it on the CPU either")
    assert Outcome("x", eager=Lane(State.RIGHT), compiled=skipped).state is State.RIGHT
    assert Outcome("x", eager=Lane(State.RAISED), compiled=skipped).state is State.RAISED


def test_a_process_that_dies_costs_one_type(tmp_path: Path) -> None:
    plan = Plan(250, kept=tmp_path, fault="tests.models.faults:dies", commit="c0ffee")
    (dead,) = surveyed(["bert"], plan)
    assert dead.eager is not None
    assert dead.eager.reason == "eager: move: the process died of SIGABRT"
    assert (dead.model, dead.commit) == ("BertForMaskedLM", "c0ffee")
    # What is kept is taken.
    (again,) = surveyed(["bert"], Plan(1, kept=tmp_path, resume=True))
    assert again == dead


def test_a_lane_keeps_what_was_found_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = Lane(State.RIGHT), Lane(State.WRONG, "output 0 is off by 3")
    asked = []

    def found(context: object, name: str, plan: Plan) -> Outcome:
        asked.append(plan.lanes)
        eager, compiled = ("eager" in plan.lanes, "compiled" in plan.lanes)
        ran = right if eager else None, wrong if compiled else None
        return Outcome(name, model="M", eager=ran[0], compiled=ran[1])

    monkeypatch.setattr(coverage, "_tried", found)
    for lanes in (("eager",), ("compiled",), ()):
        list(surveyed(["bert"], Plan(1, kept=tmp_path, lanes=lanes)))
    (both,) = surveyed(["bert"], Plan(1, kept=tmp_path, resume=True))
    assert (both.eager, both.compiled) == (right, wrong)
    assert asked == [("eager",), ("compiled",), ()]
    # A run that died says nothing about the other one.
    right = Lane(State.RAISED, "died")
    list(surveyed(["gpt2"], Plan(1, kept=tmp_path, lanes=("eager",))))
    list(surveyed(["gpt2"], Plan(1, kept=tmp_path, lanes=("compiled",), resume=True)))
    assert asked[3:] == [("eager",), ("compiled",)]


def test_a_process_that_hangs_costs_its_time_limit() -> None:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    so_far = Outcome("bert", kind="encoder", eager=Lane(State.RIGHT))
    said = {"stage": "compiled: forward", "so far": so_far.as_dict()}
    theirs.send_bytes(json.dumps(said).encode())
    hung = answer(mine, None, "bert", 0.2)
    assert hung.state is State.RAISED
    assert hung.eager == so_far.eager
    assert hung.compiled is not None
    assert hung.compiled.reason == "compiled: forward: it did not end within 0.2 s"
    theirs.send_bytes(json.dumps({"stage": "CPU", "so far": Outcome("bert").as_dict()}).encode())
    assert answer(mine, None, "bert", 0.2).reason == "CPU: it did not end within 0.2 s"


def _silent(stage: str, found: Outcome) -> None:
    pass


# --- what is right --------------------------------------------------------------------------------


def test_bounds_come_from_the_cpus_own_rounding() -> None:
    exact = torch.linspace(-1, 1, 100)
    bounds = allowed([exact], [[exact + 0.01]], torch.float16)
    assert bounds.decides
    assert not judged([exact + 0.039], [exact], bounds).problem
    assert judged([exact + 0.041], [exact], bounds).problem.startswith("output 0 is off by 0.041")
    assert not allowed([exact], [[exact + 0.2]], torch.float16).decides  # all would pass
    assert not allowed([exact], [[exact * torch.inf]], torch.float16).decides


def test_places_of_nan_and_infinity_and_shapes_count() -> None:
    exact = torch.tensor([1.0, math.nan, math.inf])
    loose = Allowed((9.0,), True)
    assert not judged([exact.clone()], [exact], loose).problem
    for other in ([math.nan, math.nan, math.inf], [1.0, 1.0, math.inf], [1.0, math.nan, -math.inf]):
        assert judged([torch.tensor(other)], [exact], loose).problem
    assert "instead of" in judged([exact[:2]], [exact], loose).problem
    assert "instead of" in judged([], [exact], loose).problem


def test_tokens_may_flip_only_where_rounding_moves_them() -> None:
    exact = torch.tensor([[[1.0, 0.9, 0.0]], [[1.0, 0.0, 0.0]]])
    other = torch.tensor([[[0.9, 1.0, 0.0]], [[0.0, 1.0, 0.0]]])
    assert flipped(other, exact, [exact + 0.06]) == [True, False]
    assert flipped(exact, exact, [exact]) == []


def test_weights_let_positions_show() -> None:
    tiny = build("llama", recipes())
    calls = inputs_of(tiny.model, recipes(), recipes().of("llama"))
    with torch.no_grad():
        before = tiny.model(**calls.forward).logits
        faults.no_rotation(tiny.model)
        after = tiny.model(**calls.forward).logits
    assert (after - before).abs().max() > 0.1 * before.std()


# --- recipes, shares, output ----------------------------------------------------------------------


def test_recipes_and_shares_name_types_that_there_are() -> None:
    known = set(model_types())
    assert set(recipes().types) <= known
    assert set(weighted_types()) <= known
    assert len(known) > 500
    for use in uses():
        assert use.need < sum(use.shares.values()) <= 100


def test_outcomes_survive_json_and_the_page_names_what_is_wrong() -> None:
    right = Outcome("bert", kind="encoder", eager=Lane(State.RIGHT), compiled=Lane(State.RIGHT))
    wrong = Outcome("gpt2", kind="decoder", eager=Lane(State.WRONG, "output 0 is off by 3"))
    slow = Outcome("opt", eager=Lane(State.FALLBACKS, fallbacks={"aten::nonzero": 2}))
    skipped = Outcome("detr", reason="no timm | here")
    built = Outcome("vit", model="ViTModel")
    found = [right, wrong, slow, skipped, built]
    assert [read(json.loads(json.dumps(one.as_dict()))) for one in found] == found
    embedding, generative = shares(found)
    assert (embedding.tried, embedding.right, embedding.alone) == (71.4, 71.4, 71.4)
    assert (generative.tried, generative.right, generative.alone) == (8.6, 2.8, 0.0)
    text = page(found)
    assert "- wrong: output 0 is off by 3: gpt2 (eager)" in text
    assert "- on the CPU: aten::nonzero: opt (eager)" in text
    assert "5 types: 3 ran, 1 cannot run here (each with its reason below), 1 were" in text
    assert "- no timm / here: detr" in text
    assert "none was asked to run (1):\n\n- vit\n" in text
    assert report(found)["states"]["eager"] == {
        "right": 1, "right with fallbacks": 1, "wrong": 1
    }  # fmt: skip


def test_lanes_of_several_runs_are_joined_and_name_their_commits() -> None:
    right, raised = Lane(State.RIGHT), Lane(State.RAISED, "eager: forward: died")
    before = Outcome("bert", model="M", eager=raised, compiled=right, commit="a1")
    mended = Outcome("bert", model="M", eager=right, commit="b2")
    joined = merged(before, mended)
    assert (joined.eager, joined.compiled) == (right, right)
    assert joined.commit == "b2 (eager), a1 (compiled)"
    later = merged(joined, Outcome("bert", model="M", compiled=raised, commit="c3"))
    assert (later.state, later.commit) == (State.RAISED, "b2 (eager), c3 (compiled)")
    # What was only built, or does not run any more, takes nothing away; what ran comes in.
    assert merged(before, Outcome("bert", model="M")) == before
    assert merged(before, Outcome("bert", reason="no package")) == before
    assert merged(Outcome("bert", reason="no package"), mended) == mended


def test_an_unknown_type_is_a_line() -> None:
    result = CliRunner().invoke(app, ["models", "no_such_type"])
    assert result.exit_code == 2
    assert "there is no model type no_such_type" in result.output
