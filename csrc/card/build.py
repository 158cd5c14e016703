"""Builds the software card's library: `python csrc/card/build.py`, or `build()` from setup.py.

Standard library only. CXX names the compiler (a cross compiler too). A file is compiled again when
it, a header or an included list is newer than its object. A file whose name ends in an instruction
set (`kernels_avx2.cpp`) gets the flags of that set and no other file does, so the library starts on
any CPU of its family.

Variants: `--flags=-fsanitize=thread` for a sanitizer, `--program csrc/fuzz/programs.cpp` for a
program made of the card's sources instead of a library.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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


def build(
    output: Path,
    build_dir: Path,
    jobs: int,
    flags: Sequence[str] = (),
    program: Path | None = None,
    link_flags: Sequence[str] = (),
) -> None:
    """Compile what changed into `build_dir` and link `output`.

    Args:
        flags: of a variant, behind FLAGS, for every file and for linking; one `build_dir` each.
        program: a file with `main`; `output` becomes a program.
        link_flags: for linking only.

    Raises:
        RuntimeError: the compiler is missing or failed; the message holds its output.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    build_dir.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cpp")) + ([program] if program else [])
    stale = [source for source in sources if _is_stale(source, _object(source, build_dir))]
    is_x86 = bool(stale) and _is_x86(compiler)
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        compile_one = partial(_compile, [*compiler, *FLAGS, *flags], build_dir, is_x86=is_x86)
        list(pool.map(compile_one, stale))
    objects = [_object(source, build_dir) for source in sources]
    newest = max(path.stat().st_mtime for path in objects)
    if output.exists() and output.stat().st_mtime >= newest:
        return
    part = output.with_name(output.name + ".part")
    kind = [] if program else ["-shared"]
    link = [*compiler, *kind, "-pthread", *flags, *link_flags]
    _run([*link, "-o", str(part), *map(str, objects)])
    part.replace(output)  # a process that has the old library mapped keeps it


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


def _is_x86(compiler: list[str]) -> bool:
    return _run([*compiler, "-dumpmachine"]).startswith(("x86_64", "amd64"))


def _compile(compiler: list[str], build_dir: Path, source: Path, *, is_x86: bool) -> None:
    target = _object(source, build_dir)
    isa = source.stem.rpartition("_")[2]
    extra = ISA_FLAGS.get(isa, []) if is_x86 else []
    listing = ["-MMD", "-MF", str(target.with_suffix(".d"))]
    _run([*compiler, *extra, *listing, "-c", str(source), "-o", str(target)])


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            f"no C++ compiler: {command[0]!r} was not found; install g++ or set CXX"
        ) from None
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def main() -> int:
    """The script's entry: builds the library in place for development."""
    parser = argparse.ArgumentParser(description="Build libspyre_card.so.")
    parser.add_argument("--output", type=Path, default=DEVELOPMENT_OUTPUT)
    parser.add_argument("--build-dir", type=Path, default=SOURCES.parent.parent / "build" / "card")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--flags", type=shlex.split, default=[])
    parser.add_argument("--program", type=Path)
    given = parser.parse_args()
    try:
        build(given.output, given.build_dir, given.jobs, given.flags, given.program)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
