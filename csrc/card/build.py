"""Builds the software card's library: `python csrc/card/build.py`, or `build()` from setup.py.

Standard library only. A file is compiled again when it, a header or an included list is newer
than its object. A file whose name ends in an instruction set (`kernels_avx2.cpp`) gets the flags
of that set and no other file does, so the library starts on any CPU of its family.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
DEVELOPMENT_OUTPUT = SOURCES.parent.parent / "src" / "openspyre" / "lib" / "libspyre_card.so"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
]
ISA_FLAGS: Mapping[str, list[str]] = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mf16c", "-mfma", "-mavx2"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}


def build(output: Path, build_dir: Path, jobs: int) -> None:
    """Compile what changed into `build_dir` and link `output`.

    Raises:
        RuntimeError: the compiler is missing or failed; the message holds its output.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    build_dir.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cpp"))
    stale = [source for source in sources if _is_stale(source, _object(source, build_dir))]
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        list(pool.map(lambda source: _compile(compiler, source, build_dir), stale))
    objects = [_object(source, build_dir) for source in sources]
    newest = max(path.stat().st_mtime for path in objects)
    if output.exists() and output.stat().st_mtime >= newest:
        return
    partial = output.with_suffix(".so.part")
    _run([*compiler, "-shared", "-pthread", "-o", str(partial), *map(str, objects)])
    partial.replace(output)  # a process that has the old library mapped keeps it


def _object(source: Path, build_dir: Path) -> Path:
    return build_dir / (source.stem + ".o")


def _is_stale(source: Path, target: Path) -> bool:
    if not target.exists():
        return True
    listing = target.with_suffix(".d")
    if not listing.exists():
        return True
    words = listing.read_text().replace("\\\n", " ").split()
    inputs = [Path(word) for word in words if not word.endswith(":")]
    if source not in inputs:  # the folder was copied: the list names the other one's files
        return True
    built = target.stat().st_mtime
    build_script = Path(__file__)
    return any(not p.exists() or p.stat().st_mtime > built for p in [*inputs, build_script])


def _compile(compiler: list[str], source: Path, build_dir: Path) -> None:
    target = _object(source, build_dir)
    isa = source.stem.rpartition("_")[2]
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    extra = ISA_FLAGS.get(isa, []) if is_x86 else []
    listing = ["-MMD", "-MF", str(target.with_suffix(".d"))]
    _run([*compiler, *FLAGS, *extra, *listing, "-c", str(source), "-o", str(target)])


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            f"no C++ compiler: {command[0]!r} was not found; install g++ or set CXX"
        ) from None
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")


def main() -> int:
    """The script's entry: builds the library in place for development."""
    parser = argparse.ArgumentParser(description="Build libspyre_card.so.")
    parser.add_argument("--output", type=Path, default=DEVELOPMENT_OUTPUT)
    parser.add_argument("--build-dir", type=Path, default=SOURCES.parent.parent / "build" / "card")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    try:
        build(arguments.output, arguments.build_dir, arguments.jobs)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
