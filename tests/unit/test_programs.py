"""A program comes from the disk where it can, with the lines of the kernel at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import openspyre
from openspyre.compiler.pipeline import compile_kernel
from openspyre.compiler.timed import Timer
from openspyre.errors import BrokenInvariant, Unsupported
from openspyre.ir.binary import decode, encode
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.runtime import programs
from openspyre.runtime.cache import ProgramCache
from openspyre.runtime.clock import card_timer
from openspyre.runtime.programs import compiler_digest, program_bytes, program_key
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.regions import load_region

PACKAGE = Path(openspyre.__file__).resolve().parent
TEXT = """kernel two
symbols n
limits n:3..4
arguments x y z
input x: f32[n]
output y: f32[n]
output z: f32[]
op add map i0:n
  at "model.py:7 add"
  y[i0] <- x[i0] + 1.0
op total reduce | r0:n
  z[] <- sum: x[r0]
"""


class Compiler:
    """compile_kernel with a count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, kernel: Kernel, card: CardSpec, *, timer: Timer) -> Program:
        self.calls += 1
        return compile_kernel(kernel, card, timer=timer)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramCache:
    kept = ProgramCache(tmp_path / "programs", 1 << 30)
    monkeypatch.setattr(programs, "program_cache", lambda: kept)
    return kept


@pytest.fixture
def compiler(store: ProgramCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    counted = Compiler()
    monkeypatch.setattr(programs, "compile_kernel", counted)
    return counted


def sources(text: str) -> tuple[str, ...]:
    return decode(program_bytes(parse_kernel(text), SPYRE_CARD_V1)).sources


def test_the_second_time_nothing_is_compiled(compiler: Compiler) -> None:
    kernel = parse_kernel(TEXT)
    first = program_bytes(kernel, SPYRE_CARD_V1)
    assert first == encode(compile_kernel(kernel, SPYRE_CARD_V1))
    assert program_bytes(kernel, SPYRE_CARD_V1) == first
    assert compiler.calls == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i0] + 1.0", "x[i0] + 2.0"),
        ("3..4", "5..8"),
        ("kernel two", "kernel three"),
        ("y: f32[n]", "y: f32[n] strides [2]"),
        ("op total", "op other"),
    ],
)
def test_another_kernel_is_another_program(compiler: Compiler, old: str, new: str) -> None:
    for text in (TEXT, TEXT.replace(old, new)):
        program_bytes(parse_kernel(text), SPYRE_CARD_V1)
    assert compiler.calls == 2


def test_another_place_in_the_users_code_is_the_same_program(compiler: Compiler) -> None:
    assert sources(TEXT) == ("model.py:7 add", "total")
    assert sources(TEXT.replace("model.py:7 add", "größer.py:123456 plus")) == (
        "größer.py:123456 plus",
        "total",
    )
    assert sources(TEXT.replace('  at "model.py:7 add"\n', "")) == ("add", "total")
    told = TEXT.replace("r0:n\n", 'r0:n\n  at "0"\n')
    assert sources(told) == ("model.py:7 add", "0")
    assert compiler.calls == 1


@pytest.mark.parametrize("name", ["gpt2_captured", "t5_captured", "whisper_captured"])
def test_real_regions_get_their_sources_back(name: str, compiler: Compiler) -> None:
    region = load_region(name)
    ops = tuple(replace(op, source=f"m.py:{n} {op.name}") for n, op in enumerate(region.ops))
    kernel = replace(region, ops=ops)
    program = encode(compile_kernel(kernel, SPYRE_CARD_V1, timer=card_timer(SPYRE_CARD_V1)))
    assert program_bytes(kernel, SPYRE_CARD_V1) == program
    assert program_bytes(kernel, SPYRE_CARD_V1) == program
    assert compiler.calls == 1


@pytest.mark.parametrize("position", [0, 48, 56, 90, -1])
def test_a_corrupted_program_is_compiled_again(
    compiler: Compiler, store: ProgramCache, position: int
) -> None:
    right = program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1)
    (path,) = store.folder.glob("*.program")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1) == right
    assert program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1) == right
    assert compiler.calls == 2


def test_a_program_of_another_kernel_under_this_key(
    compiler: Compiler, store: ProgramCache
) -> None:
    right = program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1)
    (path,) = store.folder.glob("*.program")
    many = replace(decode(right), sources=("0", "1", "2"))
    store.keep(path.stem, encode(many))
    assert program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1) == right
    store.keep(path.stem, b"not a program")
    assert program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1) == right
    assert compiler.calls == 3


def test_without_a_cache(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "program_cache", lambda: None)
    kernel = parse_kernel(TEXT)
    for _ in range(2):
        assert program_bytes(kernel, SPYRE_CARD_V1) == encode(compile_kernel(kernel, SPYRE_CARD_V1))
    assert compiler.calls == 2


@pytest.mark.parametrize("kind", [Unsupported, BrokenInvariant])
def test_an_error_names_the_users_line(
    store: ProgramCache, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fails(kernel: Kernel, card: CardSpec, *, timer: Timer) -> Program:
        raise kind(f"at {kernel.ops[0].source}")

    monkeypatch.setattr(programs, "compile_kernel", fails)
    with pytest.raises(kind, match=r"at model\.py:7 add") as caught:
        program_bytes(parse_kernel(TEXT), SPYRE_CARD_V1)
    assert caught.value.__context__ is None
    assert store.contents().programs == 0


def test_a_card_with_other_numbers_is_another_key() -> None:
    kernel = parse_kernel(TEXT)
    other = replace(SPYRE_CARD_V1, lx_usable=SPYRE_CARD_V1.lx_usable - 128)
    assert program_key(kernel, other) != program_key(kernel, SPYRE_CARD_V1)
    assert program_key(kernel, SPYRE_CARD_V1, "x") != program_key(kernel, SPYRE_CARD_V1, "y")


def test_a_program_chosen_by_estimates_is_another_key() -> None:
    keys = {program_key(parse_kernel(TEXT), SPYRE_CARD_V1, clock=clock) for clock in ("", "x", "y")}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("file", "matters"),
    [
        ("spec.py", True),
        ("ir/ops.py", True),
        ("compiler/emit.py", True),
        ("compiler/new/file.py", True),
        ("settings.py", False),
        ("tools/cli.py", False),
    ],
)
def test_a_changed_compiler_is_another_key(tmp_path: Path, file: str, matters: bool) -> None:
    for part in ("ir", "compiler"):
        shutil.copytree(PACKAGE / part, tmp_path / part)
    shutil.copy(PACKAGE / "spec.py", tmp_path)
    before = compiler_digest(tmp_path)
    assert before == compiler_digest(PACKAGE)
    changed = tmp_path / file
    changed.parent.mkdir(exist_ok=True)
    with changed.open("a") as text:
        text.write("\n")
    assert (compiler_digest(tmp_path) != before) == matters


FRESH = """
import sys
from pathlib import Path
from openspyre.ir.text import parse_kernel
from openspyre.runtime import programs
from openspyre.spec import SPYRE_CARD_V1
calls = []
compiled = programs.compile_kernel
programs.compile_kernel = lambda *given, **more: (calls.append(1), compiled(*given, **more))[1]
data = programs.program_bytes(parse_kernel(sys.argv[1]), SPYRE_CARD_V1)
print(len(calls), data.hex())
"""


def test_a_fresh_process_finds_it(tmp_path: Path) -> None:
    def run(switch: str) -> list[str]:
        environment = {
            "PYTHONPATH": str(PACKAGE.parent),
            "OPENSPYRE_CACHE": str(tmp_path),
            "OPENSPYRE_CACHE_PROGRAMS": switch,
        }
        done = subprocess.run(
            [sys.executable, "-c", FRESH, TEXT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.split()

    calls, data = zip(*map(run, ("off", "on", "on", "off")), strict=True)
    assert calls == ("1", "1", "0", "1")
    assert len(set(data)) == 1
