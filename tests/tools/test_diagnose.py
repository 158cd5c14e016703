"""`spyre diagnose`: who is blamed for what. The long lane `diagnose` has real models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import openspyre
from openspyre.compiler.pipeline import compile_kernel
from openspyre.frontend.torch_meaning import repeated
from openspyre.ir.binary import decode, encode
from openspyre.ir.kernel import Kernel, Role
from openspyre.ir.ops import Array
from openspyre.ir.text import parse_kernel
from openspyre.numerics import IEEE
from openspyre.runtime import diagnosis, launch
from openspyre.runtime.diagnosis import Fault, Finding, Judge
from openspyre.runtime.launch_values import launch_values, memory_of
from openspyre.runtime.parts import Bench
from openspyre.runtime.saved import Block, Launch, SavedKernel, Variant
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.cli import app
from tests.faults import (
    Planting,
    other_code,
    other_row,
    planted,
    scaled,
    too_early,
    wrong_number,
)
from tests.tools.diagnosed_models import Diagnosed, with_fault

openspyre.require()

TEXT = """\
kernel softmaxed
arguments x w out flags
input x: f16[33, 70]
input w: f16[70, 40]
local scores: f16[33, 40]
local top: f32[33, 1]
local parts: f32[33, 40]
local total: f32[33, 1]
output out: f16[33, 40]
output flags: b1[33, 40]
op scores contract i0:33 i1:40 | r0:70
  scores[i0, i1] <- (x[i0, r0] * w[r0, i1])
op top reduce i0:33 | r0:40
  top[i0, 0] <- max: scores[i0, r0]
op parts map i0:33 i1:40
  parts[i0, i1] <- exp(0.5 * (scores[i0, i1] - top[i0, 0]))
op total reduce i0:33 | r0:40
  total[i0, 0] <- sum: parts[i0, r0]
op out map i0:33 i1:40
  out[i0, i1] <- (parts[i0, i1] / total[i0, 0])
op flags map i0:33 i1:40
  flags[i0, i1] <- (scores[i0, i1] > 0.0)
"""
SCRIPT = """\
import torch


def norm(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True))


x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).half() * SIZE
torch.compile(norm)(x.to("spyre"))
"""


def nothing(_: object) -> None:
    """No meaning of torch's; no progress."""


def launched(
    text: str = TEXT, *, sound: bool = False, size: float = 1.0
) -> tuple[SavedKernel, Launch]:
    """A launch of a kernel with random inputs, as a capture has it."""
    kernel = parse_kernel(text)
    rng = np.random.default_rng(0)
    given: dict[str, Array] = {}
    for name in kernel.arguments:
        shape = [e.evaluate({}) for e in kernel.tensors[name].shape]
        written = kernel.tensors[name].role is Role.OUTPUT
        given[name] = np.zeros(shape) if written else size * rng.standard_normal(shape)
    program = encode(compile_kernel(kernel, SPYRE_CARD_V1))
    left = Bench(SPYRE_CARD_V1, IEEE).values(program, kernel, given, {})
    blocks = []
    for name in kernel.arguments:
        before = memory_of(kernel.tensors[name], given[name], {}).data
        after = memory_of(kernel.tensors[name], left.get(name, given[name]), {}).data
        blocks.append(Block(0, before, after))
    del sound
    places = tuple((number, 0) for number in range(len(blocks)))
    kept = Launch(0, (), (), places, tuple(blocks), number=1)
    return SavedKernel(kernel.name, text, (Variant(program, (), ()),), (), (kept,)), kept


def judged(kernel: SavedKernel, one: Launch) -> Finding:
    judge = Judge(SPYRE_CARD_V1, nothing, nothing)
    return judge.located(kernel, one, judge.checked(kernel, one))


def test_a_right_launch() -> None:
    found = judged(*launched())
    assert found.fault is Fault.NONE
    assert not found.wrong
    assert found.losses is not None
    assert 0 < found.losses["out"] < 1e-3


STAGE_FAULTS = [
    (other_row("exp", "exp2"), "parts"), (scaled, "parts"), (other_row("mul", "add"), "parts"),
    (other_row("gt", "ge"), None),
]  # fmt: skip


@pytest.mark.parametrize(("change", "op"), STAGE_FAULTS)
def test_a_stage_that_changes_a_meaning(
    change: Callable[..., Any], op: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted(Planting("", "stage", change), monkeypatch) as hit:
        found = judged(*launched())
    if op is None:  # >= where nothing is equal: no value differs, so nobody is blamed
        assert found.fault is Fault.NONE
        return
    assert hit.ops[0][0] == op
    assert found.fault is Fault.COMPILER
    assert found.culprit is not None
    assert (found.culprit.op, found.culprit.stage) == (op, "canonicalize")
    assert found.culprit.alone is True


@pytest.mark.parametrize("change", [other_code("exp", "exp2"), wrong_number])
def test_an_instruction_that_computes_something_else(
    change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted(Planting("", "program", change), monkeypatch) as hit:
        found = judged(*launched())
    assert found.fault is Fault.COMPILER
    assert found.culprit is not None
    assert found.culprit.op == hit.ops[0][0] == "parts"
    assert found.culprit.alone is True


def test_a_missing_wait_is_the_checkers(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(Planting("", "program", too_early), monkeypatch) as hit:
        found = judged(*launched())
    assert found.fault is Fault.COMPILER
    assert "its program is wrong" in found.why
    assert found.culprit is not None
    assert found.culprit.op == hit.ops[0][0]
    assert "the checker" in found.culprit.how


def test_an_op_that_is_wrong_only_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(node: Any, program: Any) -> Any:
        return other_code("exp", "exp2")(node, program) if len(program.sources) > 1 else None

    with planted(Planting("", "program", together), monkeypatch):
        found = judged(*launched())
    assert found.culprit is not None
    assert found.culprit.op == "parts"
    assert found.culprit.alone is False
    assert found.culprit.window[-1] == "parts"
    assert len(found.culprit.window) == 2


def test_a_damaged_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(Planting("", "program", wrong_number), monkeypatch):
        kernel, one = launched()
    found = judged(kernel, one)  # by a compiler without the fault
    assert found.fault is Fault.COMPILER
    assert found.culprit is not None
    assert found.culprit.op == "parts"
    assert found.culprit.how == "the program is not what this version compiles"


def flipped(values: Mapping[str, Array]) -> dict[str, Array]:
    return {n: -v if v.dtype.kind == "f" else v for n, v in values.items()}


def test_what_does_not_happen_again() -> None:
    kernel, one = launched()
    blocks = tuple(
        replace(b, after=bytes(len(b.after))) if number == 2 else b
        for number, b in enumerate(one.blocks)
    )
    found = judged(kernel, replace(one, blocks=blocks))
    assert found.fault is Fault.UNSTEADY


def test_a_card_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of programs disagrees with it."""
    sound = Bench.values
    monkeypatch.setattr(Bench, "values", lambda *a: flipped(sound(*a)))
    kernel, one = launched()
    monkeypatch.setattr(diagnosis, "blocks_after", lambda *_: [b.after for b in one.blocks])
    found = judged(kernel, one)
    assert found.fault is Fault.CARD
    assert found.culprit is not None
    assert found.culprit.op == "scores"


def test_precision_is_told_from_faults() -> None:
    found = judged(*launched(size=300.0))
    assert found.fault is Fault.PRECISION
    assert found.culprit is not None
    assert found.culprit.op == "scores"
    assert "f16 cannot hold" in found.culprit.how


# --- through PyTorch --------------------------------------------------------------------------


def attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.transpose(-1, -2)) / 4 - 1
    return torch.softmax(scores.masked_fill(mask, -1e4), -1) @ x


def attended(change: Callable[..., Any], patch: pytest.MonkeyPatch) -> Diagnosed:
    x = torch.randn(2, 20, 64, generator=torch.Generator().manual_seed(0)).half().to("spyre")
    mask = torch.ones(20, 20, dtype=torch.bool).triu(1).to("spyre")
    return with_fault(attention, {"x": x, "mask": mask}, Planting("", "frontend", change), patch)


def test_a_wrong_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    found = attended(other_row("exp", "exp2"), monkeypatch)
    assert found.worst is not None
    assert found.worst.fault is Fault.REFERENCE
    assert found.named


def test_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = attended(lambda *_: None, monkeypatch)
    assert found.hit is None
    assert found.worst is None


def spyre(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def script(folder: Path, size: str) -> Path:
    file = folder / "script.py"
    file.write_text(SCRIPT.replace("SIZE", size))
    return file


def test_a_right_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    code, out, _ = spyre("diagnose", "-o", tmp_path / "found", script(tmp_path, "1"))
    assert code == 0
    assert "are right" in out
    assert "torch agrees" in out
    assert not (tmp_path / "found").exists()


def test_the_command_writes_what_repeats_a_fault(tmp_path: Path) -> None:
    torch._dynamo.reset()
    folder = tmp_path / "found"
    code, out, _ = spyre("diagnose", "--json", "-o", folder, script(tmp_path, "300"))
    assert code == 1
    found = json.loads(out)
    assert found["first"]["fault"] == "precision loss"
    assert "script.py:5" in found["first"]["culprit"]["source"]
    report = (folder / "report.md").read_text()
    assert report.startswith("## precision loss in `reduce0` of kernel ")
    assert "f16 cannot hold" in report
    command = [sys.executable, "reproduce.py"]
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "compiled now: precision loss" in again.stdout
    code, _, _ = spyre("diagnose", "-o", tmp_path / "b", folder / "capture.spyre")
    assert code == 1


def test_a_wrong_reference_repeats_with_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    fault = Planting("", "frontend", other_row("rsqrt", "sqrt"))
    folder = tmp_path / "found"
    monkeypatch.setattr(launch, "_loaded", {})
    with planted(fault, monkeypatch):
        code, out, _ = spyre("diagnose", "-o", folder, script(tmp_path, "1"))
    assert code == 1
    assert "wrong reference" in out
    text = (folder / "reproduce.py").read_text()
    names: dict[str, Any] = {}
    exec(text[text.index("import torch\n") : text.index("capture =")], names)
    graph, inputs = names["Graph"](), ["arg0_1"]
    assert f"Graph(), {tuple(inputs)}" in text
    assert repeated(folder / "capture.spyre", graph, inputs) == 0  # this compiler is right
    with planted(fault, monkeypatch):
        assert repeated(folder / "capture.spyre", graph, inputs) == 1


def test_a_model_takes_no_arguments(tmp_path: Path) -> None:
    code, _, err = spyre("diagnose", "llama", "--batch", "2")
    assert code == 2
    assert "options of the command stand before MODEL" in err


# --- values of launches -----------------------------------------------------------------------


@pytest.mark.parametrize("strides", ["-1, -3", "8, 2", "0, 1", "1, 4"])
def test_values_at_any_strides(strides: str) -> None:
    shape = "3, 3"
    text = (
        f"kernel k\narguments x y\ninput x: bf16[{shape}] strides [{strides}]\n"
        f"output y: f32[{shape}]\nop y map i0:3 i1:3\n  y[i0, i1] <- x[i0, i1]\n"
    )
    kernel: Kernel = parse_kernel(text)
    values = np.arange(9.0).reshape(3, 3)
    if strides.startswith("0"):
        values = np.broadcast_to(values[:1], (3, 3))
    x, y = memory_of(kernel.tensors["x"], values, {}), memory_of(kernel.tensors["y"], values, {})
    blocks = tuple(Block(0, m.data, m.data) for m in (x, y))
    one = Launch(0, (), (), ((0, x.origin), (1, y.origin)), blocks)
    found = launch_values(kernel, one)
    assert (found.given["x"] == values).all()
    assert (found.left["y"] == values).all()
    assert decode(encode(compile_kernel(kernel, SPYRE_CARD_V1))).arguments[0] == 2
