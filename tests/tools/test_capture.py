"""`spyre capture` and `spyre replay`: a run in one file, again without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch  # noqa: F401 - before openspyre._C
from typer.testing import CliRunner

import openspyre
from openspyre.ir.binary import decode, encode
from openspyre.ir.program import Copy, Node, Program, TileLoop
from openspyre.runtime.saved import (
    MAGIC,
    VERSION,
    Block,
    InvalidRun,
    Launch,
    Run,
    SavedKernel,
    Use,
    Variant,
    read_run,
    write_run,
)
from openspyre.tools.cli import app

openspyre.require()

SCRIPT = """\
import torch


def model(x, w):
    return torch.softmax(x @ w, -1)


torch.manual_seed(0)
x, w = torch.randn(97, 130).half().to("spyre"), torch.randn(130, 65).half().to("spyre")
compiled = torch.compile(model)
compiled(x, w)
compiled(x * 2, w)
wide = torch.arange(40, device="spyre", dtype=torch.float32)
wide[1:].mul_(wide[:-1].clone()[:1] + 3.5)  # in place, at an offset, with a scalar
table = torch.randn(10, 7).to("spyre")
picked = table[torch.tensor([1, 9, -1]).to("spyre")]
empty = torch.empty(0, 5, device="spyre") + 1
flags = torch.arange(33, device="spyre") % 3 == 0
torch.spyre.synchronize()
"""
BLOCKED = """
import sys


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, NoTorch())
from openspyre.tools.cli import main

main()
"""


def spyre(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def without_torch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def captured(folder: Path, script: str, *options: str) -> Path:
    file, out = folder / "script.py", folder / "capture.spyre"
    file.write_text(script)
    spyre("capture", "--output", out, *options, file)
    return out


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("capture"), SCRIPT)


def replay(file: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    code, out, err = spyre("replay", "--json", *options, file)
    assert code in (0, 1), err
    return code, json.loads(out)


def test_replay_needs_no_torch(capture: Path) -> None:
    result = without_torch("replay", "--json", capture)
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert len(outcomes) >= 5
    for outcome in outcomes:
        assert outcome["ok"]
        assert outcome["ran"]
        assert outcome["cycles"] == outcome["recorded_cycles"] is not None
    text = without_torch("replay", capture)
    assert text.returncode == 0
    assert "equal" in text.stdout


def test_so_does_a_report_on_it(capture: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = without_torch("report", "--json", "-o", page, capture)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["totals"]["launches"] >= 5
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("options", [["--compile"], ["--debug", "poison,late"]])
def test_replay_in_other_ways(capture: Path, options: Sequence[str]) -> None:
    code, outcomes = replay(capture, *options)
    assert code == 0, outcomes
    assert all(outcome["ran"] for outcome in outcomes)


def test_one_kernel(capture: Path, tmp_path: Path) -> None:
    every = {o["kernel"] for o in replay(capture)[1]}
    name = next(name for name in every if "softmax" in name)
    assert {o["kernel"] for o in replay(capture, "--kernel", name)[1]} == {name}
    only = captured(tmp_path, SCRIPT, "--kernel", name)
    kept = {k.name for k in read_run(only).kernels if k.launches}
    assert kept == {name}
    outcomes = replay(only)[1]
    assert {o["kernel"] for o in outcomes if o["ran"]} == {name}
    assert {o["why_not"] for o in outcomes if not o["ran"]} == {"its memory was not kept"}


def test_the_file_is_read_as_it_was_written(capture: Path, tmp_path: Path) -> None:
    run = read_run(capture)
    write_run(run, tmp_path / "again.spyre")
    assert read_run(tmp_path / "again.spyre") == run
    assert (tmp_path / "again.spyre").read_bytes() == capture.read_bytes()


# --- what is wrong is told --------------------------------------------------------------------


def changed(run: Run, name: str, change: Any) -> Run:
    kernels = [change(k) if name in k.name else k for k in run.kernels]
    return replace(run, kernels=tuple(kernels))


def test_other_values_are_told(capture: Path, tmp_path: Path) -> None:
    def other(kernel: SavedKernel) -> SavedKernel:
        launch = kernel.launches[0]
        blocks = [replace(b, after=_flipped(b.after, len(b.after) - 1)) for b in launch.blocks]
        return replace(kernel, launches=(replace(launch, blocks=tuple(blocks)),))

    write_run(changed(read_run(capture), "softmax", other), tmp_path / "other.spyre")
    code, outcomes = replay(tmp_path / "other.spyre")
    assert code == 1
    (wrong,) = [o for o in outcomes if not o["ok"]]
    assert wrong["differing"] == 3
    assert wrong["first"].startswith("byte ")
    assert "bytes differ" in spyre("replay", tmp_path / "other.spyre")[1]


def test_a_wrong_program_is_told(capture: Path, tmp_path: Path) -> None:
    def without_load(kernel: SavedKernel) -> SavedKernel:
        variant = kernel.variants[0]
        program = encode(without_first_copy(decode(variant.program)))
        return replace(kernel, variants=(replace(variant, program=program),))

    write_run(changed(read_run(capture), "softmax", without_load), tmp_path / "wrong.spyre")
    code, outcomes = replay(tmp_path / "wrong.spyre")
    assert code == 1
    (wrong,) = [o for o in outcomes if not o["ok"]]
    assert "is wrong" in wrong["problem"]
    assert not wrong["ran"]


def without_first_copy(program: Program) -> Program:
    section = program.sections[0]
    return replace(
        program, sections=(replace(section, body=_cut(section.body)), *program.sections[1:])
    )


def _cut(body: tuple[Node, ...]) -> tuple[Node, ...]:
    for n, node in enumerate(body):
        if isinstance(node, Copy):
            return (*body[:n], *body[n + 1 :])
        if isinstance(node, TileLoop) and (inner := _cut(node.body)) != node.body:
            return (*body[:n], replace(node, body=inner), *body[n + 1 :])
    return body


def test_an_index_out_of_range_is_captured(tmp_path: Path) -> None:
    script = """\
import torch
table, at = torch.randn(10, 7).to("spyre"), torch.tensor([1, 12]).to("spyre")
torch.compile(lambda t, i: torch.nn.functional.embedding(i, t))(table, at).cpu()
"""
    out = captured(tmp_path, script)
    assert "out of range" in read_run(out).error
    code, outcomes = replay(out)
    assert code == 1
    assert any("out of range" in o["problem"] for o in outcomes)
    assert "[embedding]: index 12 is out of range" in " ".join(spyre("replay", out)[1].split())


def test_a_kernel_that_does_not_compile_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openspyre.errors import Unsupported
    from openspyre.runtime import launch

    def refuse(*_: object) -> bytes:
        raise Unsupported("this kernel is not compiled")

    script = "import torch\nf = torch.compile(lambda x: torch.exp(x - 17.25))\n"
    script += "f(torch.ones(9, device='spyre'))\n"
    with monkeypatch.context() as patched:
        patched.setattr(launch, "program_bytes", refuse)
        out = captured(tmp_path, script)
    assert "this kernel is not compiled" in read_run(out).error
    (refused,) = [k for k in read_run(out).kernels if k.refused]
    assert "17.25" in refused.text
    _, outcomes = replay(out)
    (outcome,) = [o for o in outcomes if o["why_not"].startswith("it did not compile")]
    assert outcome["why_not"].endswith("now it does")


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    out = captured(tmp_path, SCRIPT, "--limit", "1MiB", "--kernel", "softmax")
    assert any(launch.blocks for k in read_run(out).kernels for launch in k.launches)
    big = "import torch\nx = torch.ones(1 << 20, device='spyre')\n(x + 1).cpu()\n"
    file = tmp_path / "big.py"
    file.write_text(big)
    code, text, _ = spyre("capture", "--json", "--limit", "1MiB", "-o", out, file)
    assert code == 0
    (left_out,) = json.loads(text)["left_out"]
    assert "8388608 bytes, 1048576 may still be kept" in left_out
    (outcome,) = [o for o in replay(out)[1] if not o["ran"]]
    assert "may still be kept" in outcome["why_not"]
    assert outcome["cycles"] == outcome["recorded_cycles"]


def test_bad_options(capture: Path, tmp_path: Path) -> None:
    code, _, err = spyre("replay", "--debug", "slow", capture)
    assert (code, "means nothing" in err) == (2, True)
    code, _, err = spyre("capture", "--limit", "much", capture)
    assert (code, "is not a size" in err) == (2, True)
    code, _, err = spyre("replay", tmp_path / "none.spyre")
    assert (code, "No such file" in err) == (2, True)


# --- files --------------------------------------------------------------------------------------

SMALL = Run(
    command="small.py",
    versions={"openspyre": "0.1.0"},
    settings={"devices": 1},
    card={"cores": 32.0},
    host_seconds=0.5,
    kernels=(
        SavedKernel(
            "k",
            "kernel k\n",
            (Variant(b"program" * 9, (1,), (1 << 40,)),),
            (Use(0, (7,), 3, 0.25, 1, {"cycles": 5}),),
            (
                Launch(0, (7,), (float("inf"), -0.0), ((0, 4), (-1, 0)), (Block(4, b"", b"x"),)),
                Launch(0, (8,), (), (), (), "too large"),
            ),
            ((3, -1),),
        ),
    ),
    spans=(),
    fallbacks=(),
    error="it failed",
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.spyre"
    write_run(SMALL, path)
    return path


def test_every_field_survives(small: Path) -> None:
    assert read_run(small) == SMALL


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    data, cut = small.read_bytes(), tmp_path / "cut.spyre"
    for length in (*range(100), *range(100, len(data), 11), len(data) - 1):
        cut.write_bytes(data[:length])
        with pytest.raises(InvalidRun, match=r"cut short|not a run"):
            read_run(cut)


def test_every_damaged_byte_is_refused(small: Path, tmp_path: Path) -> None:
    data, bad = small.read_bytes(), tmp_path / "bad.spyre"
    for position in (*range(100), *range(100, len(data), 11), len(data) - 1):
        bad.write_bytes(_flipped(data, position))
        with pytest.raises(InvalidRun):
            read_run(bad)


def test_more_behind_the_end_is_refused(small: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.spyre"
    longer.write_bytes(small.read_bytes() + b"\0")
    with pytest.raises(InvalidRun, match="damaged"):
        read_run(longer)


def test_messages(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    bad = tmp_path / "bad.spyre"
    bad.write_bytes(data[:-5])
    code, _, err = spyre("replay", bad)
    assert code == 2
    assert f"bad.spyre is cut short\n  why: it has {len(data) - 5} bytes of {len(data)}" in err
    bad.write_bytes(MAGIC + b"\1\0\0\0" + data[12:])
    older = spyre("replay", bad)[2]
    assert f"has format 1, this version of openspyre reads {VERSION}" in older
    assert "use the version of openspyre that wrote it, or capture the run again" in older
    bad.write_text("print(1)")
    assert "is not a run of the card" in spyre("replay", bad)[2]
    assert "other numbers than this version knows" in spyre("replay", small)[2]


def _flipped(data: bytes, position: int) -> bytes:
    if not data:
        return data
    return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]


def test_a_launch_is_replayed_with_its_numerics(tmp_path: Path) -> None:
    head, body = SCRIPT.split("torch.manual_seed(0)")
    under = "with torch.spyre.numerics('card', acc_chunk=8):\n"
    out = captured(tmp_path, head + under + indent(body, "    "))
    launches = [launch for kernel in read_run(out).kernels for launch in kernel.launches]
    assert {launch.numerics for launch in launches} == {"card,acc_chunk=8"}
    code, outcomes = replay(out)
    assert code == 0
    assert all(outcome["ok"] for outcome in outcomes)
    run = read_run(out)
    plain = [
        replace(k, launches=tuple(replace(one, numerics="ieee") for one in k.launches))
        for k in run.kernels
    ]
    write_run(replace(run, kernels=tuple(plain)), out)
    assert replay(out)[0] == 1  # other values
