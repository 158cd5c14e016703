"""Every environment variable that openspyre reads, read once, into one typed value.

OPENSPYRE_AUTOLOAD        off keeps `import torch` from loading the device (default on)
OPENSPYRE_DEVICES         how many cards this process has, 0 to 64 (default 1)
OPENSPYRE_MEMORY          device memory of each card, for example 8GiB (default: see
                          device/memory.py)
OPENSPYRE_THREADS         host threads of each card (default: one per CPU this process may use)
OPENSPYRE_FALLBACK        what an op that runs on the CPU does: count, warn or error (default count)
OPENSPYRE_CACHE           folder for compiled programs, weights and other things that can be made
                          or fetched again (default ~/.cache/openspyre)
OPENSPYRE_CACHE_PROGRAMS  off compiles programs again in every process (default on)
OPENSPYRE_CACHE_LIMIT     what programs and eager patterns may take on disk (default 1GiB)
OPENSPYRE_CHECK           off leaves out the proof that a compiled program is right (default on)
OPENSPYRE_DEBUG           modes in which a wrong program or a use of freed memory shows, with commas
                          between: poison (memory without contents holds NaN or 0xCB), late (copies
                          to and from LX happen as late as is legal); default none
OPENSPYRE_TRACE           stages prints what each stage of the compiler changes in kernels that are
                          new or come out otherwise than when last printed; default none
OPENSPYRE_RUN             folder in which processes show their cards to `spyre smi` (default
                          openspyre in XDG_RUNTIME_DIR, or in the folder of temporary files)
OPENSPYRE_KEEP_WEIGHTS    on plans compiled graphs so that weights stay in LX between launches, as
                          many as have room (default off; `openspyre.hint` decides for one context)
OPENSPYRE_NUMERICS        how programs compute: ieee (default), or card with switches behind commas,
                          for example card,dl16_round=truncate (see numerics.py)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar

from openspyre.errors import InvalidSetting
from openspyre.numerics import IEEE, Numerics, parse_numerics

PREFIX = "OPENSPYRE_"
FALLBACK_MODES = ("count", "warn", "error")
DEBUG_MODES = ("poison", "late")
TRACE_MODES = ("stages",)
_UNITS: Mapping[str, int] = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SWITCH: Mapping[str, bool] = {
    "on": True, "1": True, "true": True, "yes": True,
    "off": False, "0": False, "false": False, "no": False,
}  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of the environment. Sizes are bytes; no `memory` means the default rule."""

    autoload: bool
    devices: int
    memory: int | None
    threads: int
    fallback: str
    cache: Path
    cache_programs: bool
    cache_limit: int
    check: bool
    debug: frozenset[str]
    trace: frozenset[str]
    run: Path
    numerics: Numerics
    keep_weights: bool


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment means.

    Raises:
        InvalidSetting: a variable has a value that means nothing.
    """

    def read(name: str, parse: Callable[[str], T], default: T) -> T:
        text = environment.get(PREFIX + name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidSetting(f"{PREFIX}{name}={text} means nothing", why=str(error)) from None

    return Settings(
        autoload=read("AUTOLOAD", _switch, True),
        devices=read("DEVICES", _count(0, 64), 1),
        memory=read("MEMORY", _bytes, None),
        threads=read("THREADS", _count(1, 1024), len(os.sched_getaffinity(0))),
        fallback=read("FALLBACK", _fallback, "count"),
        cache=read("CACHE", Path, _default_cache(environment)),
        cache_programs=read("CACHE_PROGRAMS", _switch, True),
        cache_limit=read("CACHE_LIMIT", _bytes, 1 << 30),
        check=read("CHECK", _switch, True),
        debug=read("DEBUG", _modes(DEBUG_MODES), frozenset()),
        trace=read("TRACE", _modes(TRACE_MODES), frozenset()),
        run=read("RUN", Path, _default_run(environment)),
        numerics=read("NUMERICS", parse_numerics, IEEE),
        keep_weights=read("KEEP_WEIGHTS", _switch, False),
    )


@cache
def settings() -> Settings:
    """The settings of this process, read at the first call."""
    return read_settings(os.environ)


def child_environment(**variables: str) -> dict[str, str]:
    """The environment for a process of another program: this one's with some variables set."""
    return {**os.environ, **variables}


def hand_down(**variables: str) -> None:
    """Sets variables of other programs, for this process and those that it starts from now on."""
    os.environ.update(variables)


def shown_settings() -> dict[str, Any]:
    """The settings of this process for JSON, without folders: they say where, not what."""
    chosen = {f.name: getattr(settings(), f.name) for f in fields(Settings)}
    chosen["numerics"] = str(settings().numerics)
    plain = {k: tuple(sorted(v)) if isinstance(v, frozenset) else v for k, v in chosen.items()}
    return {k: v for k, v in plain.items() if not isinstance(v, Path)}


def _default_cache(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "openspyre"
    except RuntimeError:  # a container's user without a home
        return Path(gettempdir()) / f"openspyre-{os.getuid()}"


def _default_run(environment: Mapping[str, str]) -> Path:
    if runtime := environment.get("XDG_RUNTIME_DIR", ""):
        return Path(runtime) / "openspyre"
    return Path(gettempdir()) / f"openspyre-{os.getuid()}"


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError("use on or off")
    return _SWITCH[text.lower()]


def _count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"use a number from {low} to {high}")
        return int(text)

    return parse


def byte_count(text: str) -> int:
    """The bytes that a size means.

    Raises:
        InvalidSetting: it means nothing.
    """
    try:
        return _bytes(text)
    except ValueError as error:
        raise InvalidSetting(f"{text!r} is not a size", why=str(error)) from None


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.lower())
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size < 1 << 20:
        raise ValueError("use a size of at least 1MiB, for example 8GiB")
    return size


def _fallback(text: str) -> str:
    if text.lower() not in FALLBACK_MODES:
        raise ValueError(f"use {', '.join(FALLBACK_MODES)}")
    return text.lower()


def _modes(known: tuple[str, ...]) -> Callable[[str], frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        modes = frozenset(word.strip().lower() for word in text.split(","))
        if not modes <= frozenset(known):
            raise ValueError(f"use some of {', '.join(known)}")
        return modes

    return parse
