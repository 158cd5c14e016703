"""OPENSPYRE_TRACE=stages: kernels that are new or come out otherwise, and what stages changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openspyre.compiler.pipeline import STAGES
from openspyre.compiler.timed import Timer
from openspyre.errors import Unsupported
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.runtime import programs, stages
from openspyre.runtime.cache import Kind, ProgramCache
from openspyre.runtime.programs import program_bytes
from openspyre.settings import Settings, read_settings
from openspyre.spec import SPYRE_CARD_V1

TEXT = """kernel total
arguments x z
input x: f32[300]
output z: f32[300]
op add map i0:300
  at "model.py:7 add"
  z[i0] <- x[i0] + 1.0
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramCache:
    kept = ProgramCache(tmp_path / "programs", 1 << 30)
    monkeypatch.setattr(programs, "program_cache", lambda: kept)
    return kept


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Settings:
    chosen = read_settings({"OPENSPYRE_TRACE": "stages"})
    monkeypatch.setattr(programs, "settings", lambda: chosen)
    return chosen


Said = Callable[[Kernel], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def after_compiling(kernel: Kernel) -> str:
        program_bytes(kernel, SPYRE_CARD_V1)
        return capsys.readouterr().err

    return after_compiling


@pytest.mark.usefixtures("store", "traced")
def test_a_new_kernel_is_shown_with_what_stages_changed(said: Said) -> None:
    text = said(parse_kernel(TEXT))
    assert text.startswith(print_kernel(parse_kernel(TEXT)))
    shown = [line for line in text.splitlines() if line.startswith("stage ")]
    assert set(shown) < {f"stage {name}" for name, _, _ in STAGES}  # canonicalize changes nothing
    assert "stage divide\n+ division s0: i0 parts" in text
    changes = text[text.index("stage ") :].splitlines()
    assert all(line[:2] in ("+ ", "- ") for line in changes if line not in shown)


@pytest.mark.usefixtures("store", "traced")
def test_an_unchanged_kernel_is_not_shown_again(said: Said) -> None:
    kernel = parse_kernel(TEXT)
    assert said(kernel)
    assert said(kernel) == ""
    assert "parts" in said(parse_kernel(TEXT.replace("300", "310")))
    assert said(kernel) == ""


@pytest.mark.usefixtures("store", "traced")
def test_a_kernel_that_a_stage_treats_otherwise_is_shown(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = parse_kernel(TEXT)
    assert said(kernel)

    def planned(
        kernel: Kernel, card: object, on_stage: Callable[[str, Kernel], None], *, timer: Timer
    ) -> None:
        on_stage("divide", replace(kernel, name="other"))

    monkeypatch.setattr(stages, "plan_kernel", planned)
    assert "- kernel total\n+ kernel other" in said(kernel)
    assert said(kernel) == ""


@pytest.mark.usefixtures("traced")
def test_what_is_not_kept_is_always_shown(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "program_cache", lambda: None)
    assert said(parse_kernel(TEXT)) == said(parse_kernel(TEXT)) != ""


def test_nothing_is_shown_unless_asked_for(store: ProgramCache, said: Said) -> None:
    assert said(parse_kernel(TEXT)) == ""
    assert not list(store.folder.glob(f"*{Kind.STAGES.value}"))


def test_a_program_that_was_kept_is_shown_the_first_time_that_it_is_asked_for(
    store: ProgramCache, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = parse_kernel(TEXT)
    assert said(kernel) == ""
    chosen = read_settings({"OPENSPYRE_TRACE": "stages"})
    monkeypatch.setattr(programs, "settings", lambda: chosen)
    assert said(kernel)
    found = store.contents()
    assert (found.programs, found.patterns) == (1, 0)


@pytest.mark.usefixtures("store", "traced")
def test_stages_before_a_refusal_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unsupported):
        program_bytes(parse_kernel(TEXT), replace(SPYRE_CARD_V1, lx_usable=128))
    text = capsys.readouterr().err
    assert "stage choose_layouts" not in text  # it has no local tensors
    assert text == print_kernel(parse_kernel(TEXT))
