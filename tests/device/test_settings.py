"""The environment becomes one typed value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openspyre.errors import InvalidSetting
from openspyre.settings import byte_count, read_settings


def test_defaults() -> None:
    chosen = read_settings({"XDG_CACHE_HOME": "/caches"})
    assert chosen.autoload
    assert (chosen.devices, chosen.memory, chosen.fallback) == (1, None, "count")
    assert chosen.threads >= 1
    assert chosen.cache == Path("/caches/openspyre")
    assert (chosen.cache_programs, chosen.cache_limit) == (True, 1 << 30)
    assert (chosen.check, chosen.debug) == (True, frozenset())
    assert chosen.run.name == f"openspyre-{os.getuid()}"
    assert read_settings({"XDG_RUNTIME_DIR": "/run/me"}).run == Path("/run/me/openspyre")
    assert read_settings({"OPENSPYRE_RUN": "/here"}).run == Path("/here")


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1"])
def test_sizes_that_mean_nothing(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a size"):
        byte_count(text)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fails)
    assert read_settings({}).cache.name == f"openspyre-{os.getuid()}"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("8GiB", 8 << 30),
        ("8g", 8 << 30),
        ("1.5 mb", 3 << 19),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_settings({"OPENSPYRE_MEMORY": text}).memory == size


@pytest.mark.parametrize("text", ["late,poison", " Poison , LATE"])
def test_debug_modes(text: str) -> None:
    assert read_settings({"OPENSPYRE_DEBUG": text}).debug == {"poison", "late"}


def test_trace_modes() -> None:
    assert read_settings({"OPENSPYRE_TRACE": "Stages"}).trace == {"stages"}
    assert read_settings({}).trace == frozenset()


@pytest.mark.parametrize(("text", "on"), [("0", False), ("off", False), ("ON", True), ("", True)])
def test_switches(text: str, on: bool) -> None:
    assert read_settings({"OPENSPYRE_AUTOLOAD": text}).autoload is on


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DEVICES", "65"), ("DEVICES", "-1"), ("DEVICES", "two"),
        ("MEMORY", "lots"), ("MEMORY", "12"), ("MEMORY", "-4GiB"), ("THREADS", "0"),
        ("FALLBACK", "loud"), ("AUTOLOAD", "perhaps"), ("CACHE_LIMIT", "0"),
        ("CACHE_PROGRAMS", "some"), ("CHECK", "twice"), ("DEBUG", "late,early"), ("DEBUG", ","),
        ("TRACE", "steps"), ("TRACE", "on"),
    ],
)  # fmt: skip
def test_values_that_mean_nothing(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"OPENSPYRE_{name}={text} means nothing"):
        read_settings({f"OPENSPYRE_{name}": text})
