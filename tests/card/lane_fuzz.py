"""Long lane: a fuzzer with coverage and sanitizers on the decoder and all engines.

`./dev test --long fuzz` leaves `results/fuzz.json`. Needs clang with its run time libraries.
"""

from __future__ import annotations

import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from tests.card.fuzzing import COMPILER, CORPUS, ROOT, build_fuzzer, write_seeds
from tests.lanes import BEGUN, followed
from tests.results import write_result

EXECUTIONS = 1_000_000
SEED = 1


@pytest.mark.timeout(4 * 3600)
def test_a_million_executions(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.fail(f"not installed: {COMPILER}; try: apt-get install clang-14", pytrace=False)
    start = time.monotonic()
    program = build_fuzzer(ROOT / "build" / "fuzz")
    seeds = write_seeds(tmp_path / "seeds")
    grown = tmp_path / "grown"
    grown.mkdir()
    with zipfile.ZipFile(CORPUS) as corpus:
        corpus.extractall(tmp_path / "corpus")
    options = [f"-runs={EXECUTIONS}", f"-seed={SEED}", "-max_len=4096", "-timeout=120"]
    options += ["-rss_limit_mb=3000", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/found-"]
    folders = [grown, tmp_path / "seeds", tmp_path / "corpus"]
    done = followed([program, *options, *folders], name="fuzz", cwd=tmp_path)
    found = [path.name for path in tmp_path.glob("found-*")]
    counts = {**summary(done.stdout), "seeds": seeds, "crashes": len(found)}
    write_result("fuzz", {**counts, "seconds": round(time.monotonic() - start)}, begun=BEGUN)
    assert done.returncode == 0, done.stdout[-6000:]


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
