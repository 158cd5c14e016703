"""The long lane `pooling`: vLLM's servers for models that pool, asked as their users do.

`./dev test --long pooling` starts one that embeds and one that scores pairs, and leaves
`results/pooling.json`.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from openspyre.tools.serve import server_command
from tests.results import commit, write_result
from tests.serve.pooled import LONGEST, QUERY, TEXTS, write_pooled, write_pooling
from tests.serve.running import ROOT, environment, with_entry_points
from tests.serve.served import MODEL, Server, free_port, wait_until_ready

pytestmark = pytest.mark.timeout(1200)  # the server starts in the first test


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Where a server of a model is; it must end within seconds of SIGTERM."""
    port, log = free_port(), folder / "log"
    options = {
        "--host": "127.0.0.1", "--port": port, "--served-model-name": MODEL, "--dtype": "float32",
        "--runner": "pooling", "--max-model-len": LONGEST, "--max-num-seqs": 4,
        "--kv-cache-memory-bytes": 1 << 22,
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    with open(log, "w") as out:
        server = subprocess.Popen(
            server_command([str(folder), *words]), cwd=ROOT, stdout=out, stderr=out,
            env=environment(HF_HUB_OFFLINE="1", PYTHONPATH=with_entry_points(folder)),
        )  # fmt: skip
    at = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(Server(at, server, log))
        yield at
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0, log.read_text()[-3000:]
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def answered() -> Iterator[list[str]]:
    """Which paths of which servers gave what they should."""
    begun, found = commit(), list[str]()
    yield found
    write_result("pooling", {"answered": found}, begun=begun)


@pytest.fixture(scope="module", params=["embedder", "classifier"])
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that scores, and whether it classifies."""
    folder = tmp_path_factory.mktemp(request.param)
    classifies = request.param == "classifier"
    write_pooled("bert", torch.float32, folder, labels=1 if classifies else 0)
    if not classifies:
        write_pooling(folder, "mean")
    with serving(folder) as at:
        yield at, classifies


def asked(at: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{at}{path}", json={"model": MODEL, **body}, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rows_and_scores(scorer: tuple[str, bool], answered: list[str]) -> None:
    at, classifies = scorer
    scores = asked(at, "/score", text_1=QUERY, text_2=list(TEXTS))["data"]
    given = torch.tensor([one["score"] for one in scores])
    assert given.std() > 0.01
    if classifies:
        rows = asked(at, "/classify", input=list(TEXTS))["data"]
        assert [row["index"] for row in rows] == list(range(len(TEXTS)))
        assert all(row["num_classes"] == len(row["probs"]) == 1 for row in rows)
        answered += ["classifier /classify", "classifier /score"]
        return
    with openai.OpenAI(base_url=f"{at}/v1", api_key="none", timeout=300) as client:
        made = client.embeddings.create(model=MODEL, input=list(TEXTS))
        alone = client.embeddings.create(model=MODEL, input=TEXTS[4], encoding_format="float")
    rows = torch.tensor([one.embedding for one in made.data])
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(len(TEXTS)))
    torch.testing.assert_close(torch.tensor(alone.data[0].embedding), rows[4])
    torch.testing.assert_close(rows @ rows[TEXTS.index(QUERY)], given)
    assert made.usage.prompt_tokens == sum(len(text) + 2 for text in TEXTS)
    answered += ["embedder /v1/embeddings", "embedder /score"]


def test_documents_are_ranked(scorer: tuple[str, bool], answered: list[str]) -> None:
    at, classifies = scorer
    scores = asked(at, "/score", text_1=QUERY, text_2=list(TEXTS))["data"]
    ranked = asked(at, "/rerank", query=QUERY, documents=list(TEXTS), top_n=4)["results"]
    best = sorted(scores, key=lambda one: one["score"], reverse=True)[:4]
    assert [one["index"] for one in ranked] == [one["index"] for one in best]
    assert [one["relevance_score"] for one in ranked] == pytest.approx(
        [one["score"] for one in best], rel=1e-4
    )
    answered.append(f"{'classifier' if classifies else 'embedder'} /rerank")


def test_what_is_too_long_is_an_error(scorer: tuple[str, bool]) -> None:
    at, _ = scorer
    body = {"model": MODEL, "text_1": QUERY, "text_2": "x" * 2 * LONGEST}
    refused = httpx.post(f"{at}/score", json=body, timeout=300)
    assert refused.status_code == 400
    assert str(LONGEST) in refused.text
    asked(at, "/score", text_1=QUERY, text_2="still here")
