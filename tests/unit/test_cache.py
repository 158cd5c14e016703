"""The folder of programs: any process, any moment, any bytes in it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import openspyre
from openspyre.runtime import cache
from openspyre.runtime.cache import Contents, Kind, ProgramCache, program_cache
from openspyre.settings import settings
from openspyre.tools.cli import app

KEY, OTHER = "ab" * 32, "cd" * 32
BLOCK = 4096
SOURCES = Path(openspyre.__file__).resolve().parent.parent
SETTINGS = ("OPENSPYRE_CACHE", "OPENSPYRE_CACHE_PROGRAMS", "OPENSPYRE_CACHE_LIMIT")


@pytest.fixture
def store(tmp_path: Path) -> ProgramCache:
    return ProgramCache(tmp_path / "a" / "programs", 1 << 20)


def key(number: int) -> str:
    return f"{number:064x}"


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**environment, "PYTHONPATH": str(SOURCES)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_was_kept_is_found(store: ProgramCache) -> None:
    assert store.find(KEY) is None
    store.keep(KEY, b"program")
    store.keep(OTHER, b"")
    assert (store.find(KEY), store.find(OTHER)) == (b"program", b"")
    store.keep(KEY, b"another")
    assert store.find(KEY) == b"another"
    assert ProgramCache(store.folder, store.limit).find(KEY) == b"another"


def test_a_key_means_one_thing_of_each_kind(store: ProgramCache) -> None:
    store.keep(KEY, b"program")
    assert store.find(KEY, Kind.PATTERN) is None
    store.keep(KEY, b"pattern", Kind.PATTERN)
    store.discard(KEY)
    assert (store.find(KEY), store.find(KEY, Kind.PATTERN)) == (None, b"pattern")


def test_only_this_user_can_read_it(store: ProgramCache) -> None:
    old = os.umask(0)
    try:
        store.keep(KEY, b"program")
    finally:
        os.umask(old)
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "broken",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:8] + bytes(32) + data[40:],
        lambda data: data[:-1] + b"n",
        lambda data: bytes(len(data)),
        lambda data: b"something else entirely",
    ],
    ids=[
        "empty",
        "no header",
        "truncated",
        "longer",
        "another key",
        "another letter",
        "zeros",
        "foreign",
    ],
)
def test_an_entry_that_is_not_right_goes(store: ProgramCache, broken: object) -> None:
    store.keep(KEY, b"program")
    (path,) = store.folder.glob("*.program")
    path.write_bytes(broken(path.read_bytes()))  # type: ignore[operator]
    assert store.find(KEY) is None
    assert not path.exists()
    store.keep(KEY, b"program")
    assert store.find(KEY) == b"program"


def test_a_folder_in_place_of_an_entry(store: ProgramCache) -> None:
    (store.folder / f"{KEY}.program").mkdir(parents=True)
    assert store.find(KEY) is None
    with pytest.warns(UserWarning, match="keeps no compiled programs"):
        store.keep(KEY, b"program")
    assert list(store.folder.glob("*.partial")) == []


WRITER = """
import sys
from pathlib import Path
from openspyre.runtime.cache import ProgramCache
store = ProgramCache(Path(sys.argv[1]), 40 * 4096)
for turn in range(300):
    key = f"{turn % 8:064x}"
    program = bytes([turn % 8]) * (4000 * (1 + turn % 8))
    store.keep(key, program)
    found = store.find(key)
    assert found is None or found == program, (turn, len(found))
"""


def test_two_writers_at_once(store: ProgramCache) -> None:
    both = [started(WRITER, store.folder) for _ in range(2)]
    errors = [writer.communicate(timeout=60)[1] for writer in both]
    assert (errors, [writer.returncode for writer in both]) == (["", ""], [0, 0])
    for number in range(8):
        found = store.find(key(number))
        assert found is None or set(found) == {number}
    assert 0 < store.contents().bytes <= 40 * BLOCK
    assert list(store.folder.glob("*.partial")) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from openspyre.runtime.cache import ProgramCache
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ProgramCache(Path(sys.argv[1]), 1 << 20).keep("ab" * 32, b"program")
"""


def test_a_writer_killed_midway(store: ProgramCache) -> None:
    writer = started(KILLED, store.folder)
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL
    (partial,) = store.folder.glob("*.partial")
    assert store.find(KEY) is None
    store.keep(KEY, b"program")
    assert store.find(KEY) == b"program"
    store.keep(OTHER, bytes(store.limit // 2))  # a sweep
    assert partial.exists()  # it might be somebody's
    os.utime(partial, (0, 0))
    store.keep(OTHER, bytes(store.limit // 2))
    assert not partial.exists()


def test_those_unused_for_longest_go(store: ProgramCache) -> None:
    for number in range(300):
        store.keep(key(number), bytes(BLOCK - 100))
        os.utime(store.folder / f"{key(number)}.program", (number, number))
        if number == 100:
            assert store.find(key(0)) is not None  # in use again
    limit = store.limit // BLOCK
    assert limit * 14 // 16 < store.contents().programs <= limit + 1
    there = {n for n in range(300) if (store.folder / f"{key(n)}.program").exists()}
    assert 0 in there
    assert there - {0} == set(range(300 - len(there) + 1, 300))


def test_the_folder_is_looked_through_seldom(
    store: ProgramCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = []
    sweep = ProgramCache._sweep
    monkeypatch.setattr(ProgramCache, "_sweep", lambda self: (sweeps.append(1), sweep(self)))
    for number in range(170):
        ProgramCache(store.folder, store.limit).keep(key(number), b"as if each were a process")
    assert len(sweeps) == 10  # 256 blocks, a 16th of them at a time, and one that exceeds it


def test_a_program_larger_than_the_limit_is_not_kept(store: ProgramCache) -> None:
    store.keep(OTHER, b"program")
    store.keep(KEY, bytes(store.limit))
    assert (store.find(KEY), store.find(OTHER)) == (None, b"program")


def test_a_file_in_the_way_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ProgramCache(tmp_path / "file" / "programs", 1 << 20)
    assert (store.find(KEY), store.contents()) == (None, Contents(0, 0, 0))
    with pytest.warns(UserWarning, match=r"file/programs: .*OPENSPYRE_CACHE"):
        store.keep(KEY, b"program")
    store.keep(KEY, b"program")  # a second warning would be an error
    assert store.find(KEY) is None


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_write_that_fails_is_one_warning(
    store: ProgramCache, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    store.keep(KEY, b"program")

    def fails(*_: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, "replace", fails)
    monkeypatch.setattr(os, "utime", fails)
    with pytest.warns(UserWarning, match=os.strerror(problem)):
        store.keep(OTHER, b"program")
    store.keep(OTHER, b"program")
    assert (store.find(OTHER), store.find(KEY)) == (None, b"program")
    assert list(store.folder.glob("*.partial")) == []


def test_programs_of_another_user_are_left_alone(
    store: ProgramCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep(KEY, b"program")
    os.chown(store.folder, os.getuid() or 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert store.find(KEY) is None
    with pytest.warns(UserWarning, match="belongs to another user"):
        store.keep(OTHER, b"program")
    assert store.contents().programs == 1


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv("OPENSPYRE_CACHE", str(tmp_path))
    monkeypatch.setenv("OPENSPYRE_CACHE_LIMIT", "3MiB")
    monkeypatch.setenv("OPENSPYRE_CACHE_PROGRAMS", switch)
    settings.cache_clear()
    program_cache.cache_clear()
    try:
        store = cache.chosen_cache()
        assert (program_cache() is None) == (switch == "off")
        store.keep(KEY, b"program")
        foreign = store.folder / "notes.txt"
        foreign.write_text("mine")
        store.keep(KEY, b"pattern", Kind.PATTERN)
        expected = {"programs": 1, "patterns": 1, "bytes": 158}
        expected |= {"folder": str(tmp_path / "programs")}
        expected |= {"limit": 3 << 20, "on": switch == "on"}
        shown = CliRunner().invoke(app, ["cache", "show", "--json"])
        assert json.loads(shown.stdout) == expected
        said = CliRunner().invoke(app, ["cache", "clear"]).stdout
        assert said.startswith("removed 1 programs and 1 eager patterns, 0.0 MiB of 3 MiB, in ")
        assert said.endswith(" (switched off)\n") == (switch == "off")
        assert list(store.folder.iterdir()) == [foreign]
        shown = CliRunner().invoke(app, ["cache", "show"])
        assert shown.stdout.startswith("0 programs")
    finally:
        settings.cache_clear()
        program_cache.cache_clear()
