"""Embeddings, classes and scores of vLLM equal those of the CPU, texts of mixed length in a batch.

How far they may be off: rounding to the served dtype is what any machine must do, so the CPU's own
values in that dtype are the measure. Their largest distance from values in float64, of the same
weights, is allowed four times: the card rounds in other places, and sums in another order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.serve.pooled import QUERY, TEXTS, write_pooled, write_pooling
from tests.serve.running import output_of

pytestmark = pytest.mark.timeout(1500)  # the engines start in the first test
# Kind, dtype, number of classes or how to pool, options.
CASES: dict[str, tuple[str, torch.dtype, int | str, dict[str, Any]]] = {
    "bert-mean": ("bert", torch.float16, "mean", {}),
    "xlm-roberta-pairs": ("xlm-roberta", torch.float32, 1, {}),
}
LONG: dict[str, tuple[str, torch.dtype, int | str, dict[str, Any]]] = {
    "qwen3-last": (
        "qwen3", torch.float16, "lasttoken", {"max_num_batched_tokens": 32, "block_size": 16}
    ),
    "bert-pairs": ("bert", torch.bfloat16, 1, {}),  # of two types of tokens
    "xlm-roberta-classes": ("xlm-roberta", torch.float16, 3, {"enforce_eager": True}),
    "modernbert-windows": ("modernbert", torch.float32, "mean", {}),
}  # fmt: skip
ALL = CASES | LONG


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        long = metafunc.config.getoption("--long")
        metafunc.parametrize("case", ALL if long else CASES)


@pytest.fixture(scope="module")
def runs(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, Any]]:
    """Of each case, what the CPU gives in its dtype and in float64, and what the engine did."""
    top = tmp_path_factory.mktemp("models")
    cases = ALL if pytestconfig.getoption("--long") else CASES
    given, options = [], []
    for name, (kind, dtype, head, chosen) in cases.items():
        folder, classifies = top / name, isinstance(head, int)
        write_pooled(kind, dtype, folder, labels=head if isinstance(head, int) else 0)
        if isinstance(head, str):
            write_pooling(folder, head)
        short = str(dtype).removeprefix("torch.")
        given.append([str(folder), short, classifies])
        options.append({"model": str(folder), "dtype": short, **chosen})
    right = output_of("-m", "tests.serve.pooling_reference", json.dumps(given)).splitlines()[-1]
    done = output_of("-m", "tests.serve.pooling_run", json.dumps(options))
    results = [json.loads(line[7:]) for line in done.splitlines() if line.startswith("RESULT ")]
    return dict(zip(cases, zip(json.loads(right), results, strict=True), strict=True))


def test_values_are_those_of_the_cpu(runs: dict[str, Any], case: str) -> None:
    (rounded, exact), run = runs[case]
    asked = ["classify", "score"] if isinstance(ALL[case][2], int) else ["embed"]
    for name in asked:
        if name == "score" and ALL[case][2] != 1:
            continue
        right, cpu, got = (torch.tensor(x[name]).double() for x in (exact, rounded, run["values"]))
        assert right.std(0).max() > 0.01  # texts differ
        allowed = 4 * (cpu - right).abs().max().item()
        torch.testing.assert_close(got, right, atol=allowed, rtol=0)


def test_scores_of_embeddings_are_cosines(runs: dict[str, Any]) -> None:
    """Cosines of unit vectors are off by no more than both vectors are."""
    (rounded, exact), run = runs["bert-mean"]
    right, cpu = (torch.tensor(x["embed"]).double() for x in (exact, rounded))
    got = torch.tensor(run["values"]["score"])[:, 0].double()
    allowed = 2 * 4 * (cpu - right).norm(dim=-1).max().item()
    torch.testing.assert_close(got, right @ right[TEXTS.index(QUERY)], atol=allowed, rtol=0)


def test_nothing_runs_on_the_host(runs: dict[str, Any], case: str) -> None:
    assert runs[case][1]["fallbacks"] == [{}]


def test_no_graph_is_made_after_the_warm_up(runs: dict[str, Any], case: str) -> None:
    run = runs[case][1]
    assert run["graphs"]["breaks"] == 0
    run["later"].pop("programs")  # a pooler's are made when its first batch of a size comes
    assert run["later"] == {"dynamo": 0, "breaks": 0, "ours": 0}
    eager = ALL[case][3].get("enforce_eager", False)
    assert run["graphs"]["dynamo"] - run["graphs"]["ours"] == (0 if eager else 1)
