"""DataLoader workers and other processes beside one that uses the card."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

LOADED = """
import sys
sys.path.insert(0, FOLDER)
import torch, openspyre
openspyre.require()
from dataset import Numbers, read

if __name__ == "__main__":
    kept = torch.ones(3, device="spyre") + 1  # the card is in use when the workers start
    loader = torch.utils.data.DataLoader(
        Numbers(USES), batch_size=4, num_workers=2, pin_memory=True,
        multiprocessing_context=METHOD,
    )
    ACT
"""

DATASET = """
import torch, openspyre
openspyre.require()

class Numbers(torch.utils.data.Dataset):
    def __init__(self, uses_card):
        self.uses_card = uses_card
    def __len__(self):
        return 10
    def __getitem__(self, index):
        x = torch.full((3,), float(index))
        return (x.to("spyre") * 2).cpu() / 2 if self.uses_card else x

def read(loader):
    for batch in loader:
        assert batch.is_pinned()
        there = batch.to("spyre", non_blocking=True)
        print((there * 2).cpu()[:, 0].tolist())
"""

READ = "[0.0, 2.0, 4.0, 6.0]\n[8.0, 10.0, 12.0, 14.0]\n[16.0, 18.0]\n"


def loaded(run: Run, folder: Path, *, method: str, uses_card: bool, act: str) -> str:
    """What a program prints whose loader has two workers."""
    (folder / "dataset.py").write_text(DATASET)
    script = LOADED.replace("METHOD", repr(method)).replace("USES", repr(uses_card))
    script = script.replace("FOLDER", repr(str(folder))).replace("ACT", act)
    (folder / "program.py").write_text(script)
    start = f"import runpy, sys; sys.argv = ['program.py']; sys.path.insert(0, {str(folder)!r})\n"
    done = run(start + "runpy.run_path('program.py', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("method", "uses_card"), [("fork", False), ("spawn", True)])
def test_workers_feed_the_card(
    run_python: Run, tmp_path: Path, method: str, uses_card: bool
) -> None:
    out = loaded(run_python, tmp_path, method=method, uses_card=uses_card, act="read(loader)")
    assert out == READ


def test_a_forked_worker_that_uses_the_card_says_what_to_do(
    run_python: Run, tmp_path: Path
) -> None:
    act = """try:
        read(loader)
    except RuntimeError as error:
        print("spawn" in str(error), "in DataLoader worker process" in str(error))
    print(kept.tolist())"""
    out = loaded(run_python, tmp_path, method="fork", uses_card=True, act=act)
    assert out == "True True\n[2.0, 2.0, 2.0]\n"
