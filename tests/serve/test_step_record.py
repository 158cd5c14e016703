"""What a worker writes of its card, without vLLM."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

import openspyre
from openspyre.runtime import programs
from openspyre.settings import read_settings
from openspyre.spec import SPYRE_CARD_V1
from openspyre.vllm import step_record
from openspyre.vllm.step_record import SECONDS, CardMeter, StepRecord, read_records

openspyre.require()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "not there yet"
    chosen = read_settings({"OPENSPYRE_RUN": str(made)})
    monkeypatch.setattr(step_record, "settings", lambda: chosen)
    return made


def written(folder: Path, steps: int) -> StepRecord:
    """The record of so many steps, once it is in the file."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        (record,) = read_records(folder, "7")
        if sum(record.counts) >= steps:
            assert sum(record.counts) == steps
            return record
        time.sleep(0.02)
    raise AssertionError(f"{record} has not {steps} steps")


class Mark:
    """A mark in the queue of a card that is at work until it is `passed`."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        raise AssertionError("it waits for the card")

    def elapsed_time(self, later: Mark) -> float:
        return 2.0


def test_a_step_waits_for_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = [Mark(), Mark()]
    left = iter(marks)
    monkeypatch.setattr(CardMeter, "_marked", lambda meter: next(left))
    meter = CardMeter("7", torch.device("spyre", 0), 0)
    meter.step_ended()
    time.sleep(0.5)
    assert sum(written(folder, 0).counts) == 0
    marks[1].passed = True
    assert written(folder, 1).seconds == 0.002
    meter.close()


def test_a_step_is_what_the_card_did_since_the_last(folder: Path) -> None:
    x = torch.ones(300, 70, device="spyre")
    meter = CardMeter("7", torch.device("spyre", 0), 1)
    (ready,) = read_records(folder, "7")
    assert ready == StepRecord(os.getpid(), 0, 1, fallbacks=None)
    for repeats in (1, 40):
        for _ in range(repeats):
            x = x @ torch.ones(70, 70, device="spyre")
        meter.step_ended()
    record = written(folder, 2)
    assert record.cycles == round(record.seconds * SPYRE_CARD_V1.clock_ghz * 1e9)
    assert record.counts[0] + record.counts[1] == 2 or record.seconds > SECONDS[1]
    before = record.seconds
    meter.step_ended()  # nothing was done
    record = written(folder, 3)
    assert record.seconds == pytest.approx(before)
    assert list(read_records(folder, "8")) == []
    meter.close()
    assert list(folder.iterdir()) == []


def test_programs_and_ops_that_come_later_are_counted(folder: Path) -> None:
    meter = CardMeter("7", torch.device("spyre", 0), 0)
    before = programs.compiled_programs()
    torch.compile(lambda x: (x * 3.25).sin() + x.amax(0))(torch.ones(9, 11, device="spyre"))
    meter.step_ended()
    record = written(folder, 1)
    assert record.compiles == programs.compiled_programs() - before
    assert dict(record.fallbacks or {}) == dict(torch.spyre.fallbacks())
    meter.close()


def test_what_the_killed_left_goes(folder: Path) -> None:
    first = CardMeter("7", torch.device("spyre", 0), 0)
    text = first.file.read_text().replace(str(os.getpid()), str(1 << 30))
    (folder / "6-0.steps").write_text(text)
    second = CardMeter("8", torch.device("spyre", 0), 0)
    assert sorted(file.name for file in folder.iterdir()) == ["7-0.steps", "8-0.steps"]
    first.close()
    second.close()


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    chosen = read_settings({"OPENSPYRE_RUN": str(tmp_path / "file")})
    monkeypatch.setattr(step_record, "settings", lambda: chosen)
    meter = CardMeter("7", torch.device("spyre", 0), 0)
    meter.step_ended()
    meter.close()
    assert list(read_records(tmp_path / "file", "7")) == []
