"""Programs that nobody would write: the card refuses or stops them, and never does harm.

The corpus is what a fuzzer with coverage kept (`./dev test --long fuzz`, `lane_fuzz.py`); files
that once did harm have names that say so.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from tests.card.fuzzing import CORPUS, ROOT, build_replay, write_seeds


def test_the_corpus_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    with zipfile.ZipFile(CORPUS) as corpus:
        corpus.extractall(folder)
    seeds = write_seeds(tmp_path / "seeds")
    inputs = sorted([*folder.iterdir(), *(tmp_path / "seeds").iterdir()])
    assert len(inputs) > seeds > 50
    # Where the card's objects are already: only the program is compiled.
    built = next(iter(sorted((ROOT / "build").glob("temp.*/card"))), ROOT / "build" / "card")
    program = build_replay(tmp_path / "replay", built)
    done = subprocess.run([program, *inputs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{len(inputs)} inputs, ")
    counts = {name: int(number) for number, name in map(str.split, done.stdout.split(", ")[1:])}
    assert min(counts[name] for name in ("refused", "timed", "checked", "ran", "stopped")) > 5
