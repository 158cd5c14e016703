"""vLLM's sampling parameters mean on the card what they mean on the CPU, and run there.

`sampling_run.py` compares each step of vLLM's sampler; draws are counted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.running import output_of

pytestmark = pytest.mark.timeout(1200)
CLOSE = 4e-6  # relative, of sums of a few hundred float32 numbers


@pytest.fixture(scope="module")
def output() -> str:
    return output_of("-m", "tests.serve.sampling_run")


@pytest.fixture(scope="module")
def batches(output: str) -> list[dict[str, Any]]:
    lines = [line[7:] for line in output.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line) for line in lines]


def test_each_step_gives_what_it_gives_on_the_cpu(batches: list[dict[str, Any]]) -> None:
    assert len(batches) == 7
    steps = [(one["names"], name, of) for one in batches for name, of in one["steps"].items()]
    assert len(steps) >= 5 * 7
    assert [step for step in steps if step[2]["other"]] == []
    assert [step for step in steps if step[2].get("error", 0) > CLOSE] == []


def test_nothing_of_it_runs_on_the_host(batches: list[dict[str, Any]]) -> None:
    assert [one["fallbacks"] for one in batches] == [{}] * len(batches)


def test_tokens_are_drawn_as_often_as_they_are_likely(output: str) -> None:
    (line,) = [line[6:] for line in output.splitlines() if line.startswith("DRAWN ")]
    drawn = json.loads(line)
    for kind in ("seeded", "unseeded"):
        count = sum(drawn[kind])
        assert drawn[kind][5] == 0  # impossible
        for got, share in zip(drawn[kind], drawn["expected"], strict=True):
            assert abs(got - count * share) <= 4.5 * (count * share * (1 - share)) ** 0.5
    first, again = drawn["repeated"]
    assert first == again
    assert len(set(first)) > 5
    assert drawn["fallbacks"] == {}
