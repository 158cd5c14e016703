"""A kernel's program: from the cache on disk, compiled when it is not there.

Kernels that differ in nothing but the user's lines share a program: it is compiled and kept with
the number of an op where the op's source would stand, and gets the sources of the kernel at hand
when it is handed out. No stage looks at a source, so the instructions are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from openspyre.compiler.pipeline import compile_kernel
from openspyre.errors import BrokenInvariant, InvalidProgram, SpyreError
from openspyre.ir.binary import VERSION, encode, with_sources
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import print_kernel
from openspyre.runtime.cache import ProgramCache, program_cache
from openspyre.runtime.check import NO_SIZES, Sizes, proved
from openspyre.runtime.clock import card_timer
from openspyre.runtime.stages import show_stages
from openspyre.settings import settings
from openspyre.spec import CardSpec

_done: Counter[str] = Counter()


def program_bytes(kernel: Kernel, card: CardSpec, sizes: Sizes = NO_SIZES) -> bytes:
    """The binary form of the program of a kernel with limits.

    Args:
        sizes: those of the launch at hand; what is compiled is also checked at these.

    Raises:
        BrokenInvariant: a stage or the program broke a promise.
        Unsupported: the kernel cannot run on the card.
    """
    kept = program_cache()
    if "stages" in settings().trace:
        show_stages(kernel, card, kept)
    if kept is None:
        return encode(_proved(kernel, card, sizes))
    numbered = _numbered(kernel)
    key = program_key(numbered, card)
    return _found(kept, key, kernel) or _compiled(kept, key, numbered, kernel, card, sizes)


def compiled_programs() -> int:
    """How many programs this process has compiled: those that no cache had."""
    return _done["compiled"]


def sources_digest(package: Path, *parts: str) -> str:
    """A hash over files of the package, and over the Python files in folders of it."""
    digest = hashlib.sha256()
    for part in parts:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            data = file.read_bytes() if file.exists() else b""  # not built yet
            digest.update(f"{file.relative_to(package)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def compiler_digest(package: Path) -> str:
    """A hash over the sources that decide what a program looks like."""
    return sources_digest(package, "spec.py", "ir", "compiler")


def checker_digest(package: Path) -> str:
    """A hash over what proves programs."""
    return sources_digest(package, "runtime/check.py", "lib/libspyre_card.so")


def clock_digest(package: Path) -> str:
    """A hash over what chooses between plans."""
    return sources_digest(package, "runtime/clock.py", "lib/libspyre_card.so")


# Now, not at first use: the files may change while this process runs what it has loaded.
_PACKAGE = Path(__file__).parents[1]
COMPILER = compiler_digest(_PACKAGE)
_CHECKER = checker_digest(_PACKAGE)
CLOCK = clock_digest(_PACKAGE)


def program_key(
    kernel: Kernel, card: CardSpec, compiler: str = COMPILER, clock: str = CLOCK
) -> str:
    """64 hex digits that stand for everything a program depends on, and for its proof.

    What this process need not prove again was kept by one that had the same checker, and used it.

    Args:
        clock: stands for the timer that chose between plans; empty for none.
    """
    proof = _CHECKER if settings().check else "none"
    facts = (VERSION, compiler, clock, proof, sorted(card.numbers().items()), print_kernel(kernel))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _numbered(kernel: Kernel) -> Kernel:
    ops = tuple(replace(op, source=str(number)) for number, op in enumerate(kernel.ops))
    return replace(kernel, ops=ops)


def _named(program: bytes, kernel: Kernel) -> bytes:
    """The program with the sources of `kernel` in place of its ops' numbers."""

    def source(text: str) -> str:
        if not text.isdecimal():
            return text  # the name of an op that a stage has added
        op = kernel.ops[int(text)]
        return op.source or op.name

    return with_sources(program, source)


def _found(kept: ProgramCache, key: str, kernel: Kernel) -> bytes | None:
    program = kept.find(key)
    if program is None:
        return None
    try:
        return _named(program, kernel)
    except InvalidProgram:
        kept.discard(key)
        return None


def _compiled(
    kept: ProgramCache, key: str, numbered: Kernel, kernel: Kernel, card: CardSpec, sizes: Sizes
) -> bytes:
    program = encode(_program(numbered, kernel, card, sizes))
    kept.keep(key, program)
    return _named(program, kernel)


def _program(numbered: Kernel, kernel: Kernel, card: CardSpec, sizes: Sizes) -> Program:
    with suppress(SpyreError, BrokenInvariant):
        return _proved(numbered, card, sizes)
    return _proved(kernel, card, sizes)  # fails likewise, in the user's words


def _proved(kernel: Kernel, card: CardSpec, sizes: Sizes) -> Program:
    _done["compiled"] += 1
    program = compile_kernel(kernel, card, timer=card_timer(card))
    return proved(program, kernel, card, sizes)
