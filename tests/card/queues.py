"""Builds the program of `csrc/stress`: queues, memory and launches without torch and Python."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import encode
from openspyre.ir.text import parse_kernel
from openspyre.runtime.sizes import limits_of
from tests.card.fuzzing import ROOT, SMALL, write_numbers

# What of the extension needs no more of torch than c10, its library of types.
PARTS = (
    "arena", "card", "engines", "launcher", "memory", "numerics", "queue", "slots", "spans",
    "state",
)  # fmt: skip
# C++20, and warnings as in setup.py: torch's headers are not free of them.
FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare")
PLUS = """kernel plus
symbols n
arguments x y
input x: f32[n]
output y: f32[n]
op add map i0:n
  y[i0] <- x[i0] + 1.0
"""


def build_queues(folder: Path, card: Path, flags: Sequence[str]) -> Path:
    """The program, linked to a card's library that was built with the same flags."""
    write_numbers(folder)
    sources = [ROOT / "csrc" / "device" / f"{part}.cpp" for part in PARTS]
    sources.append(ROOT / "csrc" / "stress" / "queues.cpp")
    found = Path(torch.__file__).parent
    compiler = ["g++", *FLAGS, *flags, f"-I{found / 'include'}", f"-I{folder}"]

    def compiled(source: Path) -> Path:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        subprocess.run([*compiler, "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / "queues"
    paths = [f"-Wl,-rpath,{found / 'lib'}", f"-Wl,-rpath,{card.parent}"]
    libraries = [card, f"-L{found / 'lib'}", "-lc10", "-pthread", *paths]
    subprocess.run(["g++", *flags, *objects, *libraries, "-o", program], check=True)
    return program


def write_plus(path: Path) -> None:
    """y = x + 1 for the sizes that the program uses."""
    kernel = parse_kernel(PLUS)
    kernel = replace(kernel, limits=limits_of(kernel, (5000,)))
    path.write_bytes(encode(compile_kernel(kernel, SMALL)))
