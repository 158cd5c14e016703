"""Long lane: a fuzzer with coverage and sanitizers on the decoder and all engines.

`./dev test --long fuzz` leaves `results/fuzz.json`. Needs clang with its run time libraries.
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.card.fuzzing import CORPUS, ROOT, build_fuzzer, write_seeds
from tests.results import write_result

EXECUTIONS = 1_000_000
SEED = 1


@pytest.mark.timeout(4 * 3600)
def test_a_million_executions(tmp_path: Path) -> None:
    program = build_fuzzer(ROOT / "build" / "fuzz")
    seeds = write_seeds(tmp_path / "seeds")
    grown = tmp_path / "grown"
    grown.mkdir()
    with zipfile.ZipFile(CORPUS) as corpus:
        corpus.extractall(tmp_path / "corpus")
    options = [f"-runs={EXECUTIONS}", f"-seed={SEED}", "-max_len=4096", "-timeout=120"]
    options += ["-rss_limit_mb=3000", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/found-"]
    folders = [grown, tmp_path / "seeds", tmp_path / "corpus"]
    done = subprocess.run(
        [program, *options, *folders], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    found = [path.name for path in tmp_path.glob("found-*")]
    write_result("fuzz", {**summary(done.stderr), "seeds": seeds, "crashes": len(found)})
    assert done.returncode == 0, done.stderr[-6000:]


def summary(log: str) -> dict[str, object]:
    """What libFuzzer says at the end."""
    executed = re.search(r"number_of_executed_units: (\d+)", log)
    corpus = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/", log)
    coverage, features, files = map(int, corpus[-1]) if corpus else (0, 0, 0)
    return {
        "executions": int(executed[1]) if executed else 0,
        "seed": SEED,
        "corpus": files,
        "edges": coverage,
        "features": features,
    }
