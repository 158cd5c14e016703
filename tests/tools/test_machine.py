"""`spyre info`, `spyre doctor` and `spyre smi`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import openspyre
from openspyre.settings import read_settings, settings
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools import machine
from openspyre.tools.cli import app
from openspyre.tools.smi import CardUse, read_states, with_utilisation

openspyre.require()


def spyre(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


# --- info and doctor ------------------------------------------------------------------------------


def test_info_has_every_number_of_the_card() -> None:
    code, text = spyre("info", "--json")
    found = json.loads(text)
    assert code == 0
    assert {name: fact["value"] for name, fact in found["card"].items()} == (
        {name: getattr(SPYRE_CARD_V1, name) for name in SPYRE_CARD_V1.numbers()}
    )
    assert all(fact["source"] and fact["grade"] for fact in found["card"].values())
    assert found["versions"]["torch"] == torch.__version__
    assert found["settings"]["devices"] == settings().devices
    assert found["cache"]["folder"].startswith(str(settings().cache))
    code, text = spyre("info")
    assert code == 0
    assert "dram_oneway" in text


def test_doctor_is_content_here() -> None:
    code, text = spyre("doctor", "--json")
    findings = {f["what"]: f for f in json.loads(text)}
    assert code == 0, text
    assert {"torch", "cards", "copy", "compute", "memory", "cache", "run folder"} <= set(findings)
    assert all(f["fix"] for f in findings.values() if f["what"] != "device")


def test_doctor_says_how_to_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = read_settings({"OPENSPYRE_CACHE": "/proc/none", "OPENSPYRE_RUN": "/proc/run"})
    monkeypatch.setattr(machine, "settings", lambda: broken)
    monkeypatch.setattr(machine, "_torch_version", lambda: "2.9.0")
    code, text = spyre("doctor", "--json")
    wrong = {f["what"]: f for f in json.loads(text) if not f["ok"]}
    assert code == 1
    assert wrong["torch"]["fix"] == "pip install 'torch==2.13.*'"
    assert "OPENSPYRE_CACHE" in wrong["cache"]["fix"]
    assert "OPENSPYRE_RUN" in wrong["run folder"]["fix"]
    assert "fix:" in spyre("doctor")[1]


# --- smi ------------------------------------------------------------------------------------------

WORKER = """
import sys, torch, openspyre
openspyre.require()
x = torch.ones(1 << 20, device="spyre")
y = (x * 2).cpu()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(20):
        x = x * 1.5
    torch.spyre.synchronize()
    print("done", flush=True)
"""


def worker(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"OPENSPYRE_RUN": str(folder), "OPENSPYRE_DEVICES": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def test_a_process_shows_its_cards_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with worker(folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (before,) = read_states(folder)  # the second card has not been used
        assert (before.process, before.device) == (process.pid, 0)
        assert before.allocated >= 4 << 20
        assert before.allocated <= before.reserved <= before.memory
        assert before.launches >= 1
        assert before.busy_seconds > 0
        assert "python" in before.command
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        (after,) = read_states(folder)
        assert after.launches >= before.launches + 20
        assert after.busy_seconds > before.busy_seconds
        process.stdin.close()
    assert process.returncode == 0
    assert read_states(folder) == []
    assert list(folder.iterdir()) == []


def test_a_killed_process_is_gone(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert len(list(tmp_path.iterdir())) == 1
    assert read_states(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with worker(tmp_path / "file") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "1.state").write_bytes(b"something else" * 20)
    (tmp_path / "2.state").write_bytes(b"")
    assert read_states(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from openspyre.tools import smi

    chosen = read_settings({"OPENSPYRE_RUN": str(tmp_path)})
    monkeypatch.setattr(smi, "settings", lambda: chosen)
    assert json.loads(spyre("smi", "--json")[1]) == []
    assert "no process uses a card" in spyre("smi")[1]
    head = struct.pack("<8sQQ40x", b"SPYREST1", os.getpid(), 1)
    card = struct.pack("<5Q24x", 8 << 20, 1 << 20, 2 << 20, 7, 10**9)
    (tmp_path / "x.state").write_bytes(head + card)
    (found,) = json.loads(spyre("smi", "--json")[1])
    assert (found["allocated"], found["launches"], found["utilisation"]) == (1 << 20, 7, 0)
    assert "1 of 8 MiB" in spyre("smi")[1]


def test_utilisation_is_of_the_time_between_two_looks() -> None:
    first = CardUse(1, "python", 0, 100, 10, 20, 5, busy_seconds=1.0)
    later = CardUse(1, "python", 0, 100, 10, 20, 9, busy_seconds=1.5)
    new = CardUse(2, "python", 0, 100, 10, 20, 9, busy_seconds=9.0)
    shares = [use.utilisation for use in with_utilisation([first], [later, new], 2.0)]
    assert shares == [0.25, 0.0]


def test_watching_looks_again(tmp_path: Path) -> None:
    environment = os.environ | {"OPENSPYRE_RUN": str(tmp_path)}
    command = [sys.executable, "-m", "openspyre.tools.cli", "smi", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        start = time.monotonic()
        assert [process.stdout.readline() for _ in range(2)] == ["[]\n", "[]\n"]
        assert time.monotonic() - start > 1
        process.terminate()
