"""A warm launch takes nothing from the host's heap and enters no Python function.

`allocations.cpp` is preloaded into a process that runs `warm_paths.py`; it sees every allocation of
every thread, the card's own and PyTorch's included. A compiled kernel's call must cause none at
all. An eager op also makes its result (a tensor and its storage) and the list of its arguments:
those are PyTorch's own, and are told apart by the library that asked for the memory.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.device.conftest import fresh_python

HERE = Path(__file__).parent
RUNTIME = ("allocations.so", "libc.so", "libstdc++.so", "ld-linux")  # allocate for others
OURS = {"_C.so", "libspyre_card.so"}
INSTRUMENT = {"nothing", "the heap", "our heap", "a function"}


@dataclass(frozen=True)
class Cost:
    """What the calls of one statement cost: who allocated, and which functions were entered."""

    allocations: Mapping[str, tuple[str, ...]]  # "at once" and "queued": a library for each
    functions: tuple[str, ...]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Cost]:
    folder = tmp_path_factory.mktemp("warm")
    library = folder / "allocations.so"
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    source = HERE / "allocations.cpp"
    subprocess.run([*compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    done = fresh_python(
        (HERE / "warm_paths.py").read_text(),
        folder,
        LD_PRELOAD=str(library),
        OPENSPYRE_DEBUG="",  # late transfers wait in queues on the heap
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        name: Cost({how: tuple(map(asker, all)) for how, all in found.items()}, tuple(functions))
        for name, found, functions in rows
    }


def asker(libraries: Iterable[str]) -> str:
    """The library that wanted the memory, behind the ones that only hand it out."""
    return next((one for one in libraries if not one.startswith(RUNTIME)), "?")


def test_the_instrument_sees(costs: Mapping[str, Cost]) -> None:
    assert costs["nothing"] == Cost({"at once": (), "queued": ()}, ())
    assert len(costs["the heap"].allocations["at once"]) >= 20
    assert set(costs["our heap"].allocations["at once"]) & OURS == {"_C.so"}
    assert costs["a function"].functions == ("function",) * 20


def test_a_kernel_allocates_nothing(costs: Mapping[str, Cost]) -> None:
    launches = {name: cost for name, cost in costs.items() if name.startswith("kernel")}
    assert len(launches) == 4
    for name, cost in launches.items():
        assert cost.allocations == {"at once": (), "queued": ()}, name


def test_of_an_eager_op_only_pytorch_allocates(costs: Mapping[str, Cost]) -> None:
    ops = {name: cost for name, cost in costs.items() if name.startswith("op")}
    assert len(ops) >= 12
    for name, cost in ops.items():
        for how, found in cost.allocations.items():
            assert not OURS & set(found), (name, how)


def test_of_copies_and_events_only_pytorch_allocates(costs: Mapping[str, Cost]) -> None:
    found = {n: cost for n, cost in costs.items() if n.startswith(("transfer", "sequence"))}
    assert len(found) == 6
    for name, cost in found.items():
        for how, libraries in cost.allocations.items():
            assert not OURS & set(libraries), (name, how)


def test_no_python_runs(costs: Mapping[str, Cost]) -> None:
    for name, cost in costs.items():
        if name not in INSTRUMENT:
            assert cost.functions == (), name
