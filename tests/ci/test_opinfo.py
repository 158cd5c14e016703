"""The survey of ops tells right from wrong: on planted faults, and on a few ops of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openspyre.ci.capability import Row, State, merged, read_rows, share, write_rows
from openspyre.ci.op_samples import entries, pairs_of, samples_of
from openspyre.ci.op_survey import Plan, surveyed
from openspyre.ci.op_trial import tried
from openspyre.errors import SpyreError
from tests.ci import planted

PLANTED = {info.name: info for info in planted.OPS}
VERDICTS = (
    ("right", "function", State.CARD, ""),
    ("cpu", "function", State.FALLBACK, "aten::special_zeta"),
    ("value", "function", State.WRONG, "elements differ, at [0"),
    ("nan", "function", State.WRONG, "nan, not"),
    ("shape", "function", State.WRONG, "shape (1, 5), not (3, 5)"),
    ("dtype", "function", State.WRONG, "torch.bfloat16, not torch.float32"),
    ("device", "function", State.WRONG, "it lies on cpu"),
    ("form", "function", State.WRONG, "a result of the form"),
    ("strides", "function", State.WRONG, "strides (1, 3), not (5, 1)"),
    ("spoiled", "function", State.WRONG, "elements differ"),
    ("refused", "function", State.RAISED, "NotImplementedError: no torch.float32 here"),
    ("nowhere", "function", State.UNTRIED, "the CPU runs none"),
    ("accurate", "function", State.CARD, ""),
    ("drawn", "function", State.CARD, ""),
    ("not drawn", "function", State.WRONG, "another distribution"),
    ("gradient", "function", State.CARD, ""),
    ("gradient", "gradient", State.WRONG, "elements differ"),
)


@pytest.mark.parametrize(("name", "variant", "state", "reason"), VERDICTS)
def test_a_planted_fault_is_found(name: str, variant: str, state: State, reason: str) -> None:
    found = tried(PLANTED[name], variant, "float32", 3)
    assert (found.state, reason in found.reason) == (state, True), found


def test_more_accurate_than_the_cpu_is_right() -> None:
    """Three roundings of the CPU against one of the card: not within the tolerance of float16."""
    assert tried(PLANTED["accurate"], "function", "float16", 3).state is State.CARD


FLOAT = ("function", "float32")


def test_a_crash_costs_one_pair() -> None:
    plan = Plan("tests.ci.planted:OPS", samples=1, seconds=300, commit="here", workers=1)
    jobs = [("right", [("function", "float16"), FLOAT]), ("killed", [FLOAT]), ("cpu", [FLOAT])]
    rows = [row for found in surveyed(plan, jobs) for row in found]
    states = {(row.op, row.dtype): row.state for row in rows}
    assert states == {
        ("right", "float16"): State.CARD, ("right", "float32"): State.CARD,
        ("killed", "float32"): State.RAISED, ("cpu", "float32"): State.FALLBACK,
    }  # fmt: skip
    assert Row("killed", *FLOAT, State.RAISED, "the process died of SIGSEGV", "here") in rows


def test_a_hang_costs_one_pair() -> None:
    plan = Plan("tests.ci.planted:OPS", samples=1, seconds=2, commit="here", workers=1)
    (rows,) = surveyed(plan, [("hanging", [FLOAT])])
    assert rows == [
        Row("hanging", *FLOAT, State.RAISED, "it did not end within 2 s", "here"),
    ]


def test_a_worker_that_does_not_start_is_told() -> None:
    plan = Plan("no.such:LIST", samples=1, seconds=2, commit="here", workers=1)
    with pytest.raises(SpyreError, match="does not start"):
        list(surveyed(plan, [("right", [FLOAT])]))


@pytest.mark.parametrize("name", ["add", "sort", "nn.functional.layer_norm"])
def test_ops_of_pytorch_run_on_the_card(name: str) -> None:
    info = entries()[name]
    for variant, dtype in pairs_of(info, ("float16", "int64")):
        found = tried(info, variant, dtype, 2)
        assert found.state is State.CARD, (variant, dtype, found)


def test_samples_are_the_same_every_time() -> None:
    info = entries()["add"]
    first, second = (samples_of(info, "float32", 4, gradient=False) for _ in range(2))
    assert len(first) == 4
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.input, b.input, rtol=0, atol=0)


def test_the_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    old = [Row("a", "function", d, State.CARD, "", "1") for d in ("float16", "float32")]
    new = [Row("a", "function", "float32", State.WRONG, "why", "2")]
    path = tmp_path / "results" / "capability.json"
    assert read_rows(path) == []
    write_rows(path, merged(old, new), torch.__version__)
    assert read_rows(path) == [old[0], new[0]]
    untried = Row("b", "out", "bool", State.UNTRIED, "", "2")
    assert share([*read_rows(path), untried], State.CARD) == (1, 2)
    path.write_text('{"rows": [1]}')
    with pytest.raises(SpyreError, match="is no table of what works"):
        read_rows(path)
