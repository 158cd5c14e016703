"""`spyre replay` of files that are broken or made to do harm: a line that says why, no more."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openspyre.card.native import SoftwareCard
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import encode
from openspyre.ir.text import parse_kernel
from openspyre.runtime import saved
from openspyre.runtime.saved import (
    Block,
    InvalidRun,
    Launch,
    Run,
    SavedKernel,
    Use,
    Variant,
    read_run,
    write_run,
)
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.cli import app

pytestmark = pytest.mark.timeout(120)
TEXT = """kernel plus
arguments x y
input x: f32[5]
output y: f32[5]
op add map i0:5
  y[i0] <- x[i0] + 1.0
"""


def replay(file: Path) -> tuple[int, str]:
    """Exit code, and what is on stderr; anything but an exit is raised."""
    result = CliRunner().invoke(app, ["replay", "--json", str(file)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A launch of a small kernel."""
    program = encode(compile_kernel(parse_kernel(TEXT), SPYRE_CARD_V1))
    x, y = struct.pack("<5f", 1, 2, 3, 4, 5), struct.pack("<5f", 2, 3, 4, 5, 6)
    blocks = (Block(0, x, x), Block(64, bytes(20), y))
    launch = Launch(0, (), (), ((0, 0), (1, 0)), blocks)
    use = Use(0, (), 1, 0.0, 1, {})
    kernel = SavedKernel("plus", TEXT, (Variant(program, (), ()),), (use,), (launch,))
    run = Run("x.py", {}, {}, SPYRE_CARD_V1.numbers(), 0.0, (kernel,), (), ())
    write_run(run, tmp_path / "capture.spyre")
    assert replay(tmp_path / "capture.spyre")[0] == 0
    return tmp_path / "capture.spyre"


def parts(file: Path) -> tuple[Any, bytes]:
    """The header as JSON, and the blobs."""
    data = file.read_bytes()
    header = saved._HEAD.unpack_from(data)[2]
    start = saved._HEAD.size
    return json.loads(data[start : start + header]), data[start + header :]


def put(file: Path, header: object, blobs: bytes) -> None:
    """A file whose lengths and checksum are right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = len(text), len(blobs)
    digest = saved._digest(*lengths, text + blobs)
    head = saved._HEAD.pack(saved.MAGIC, saved.VERSION, *lengths, digest)
    file.write_bytes(head + text + blobs)


# --- the envelope -----------------------------------------------------------------------------


def test_every_prefix_and_flipped_byte_is_refused(capture: Path) -> None:
    data = capture.read_bytes()
    choice = random.Random(0)
    for length in (*range(70), *choice.sample(range(len(data)), 60)):
        capture.write_bytes(data[:length])
        assert replay(capture)[0] == 2
    for place in (*range(60), *choice.sample(range(len(data)), 100)):
        broken = bytearray(data)
        broken[place] ^= 1 << choice.randrange(8)
        capture.write_bytes(broken)
        code, said = replay(capture)
        assert code == 2
        assert "spyre replay: " in said
    capture.write_bytes(data + b"x")
    assert "is damaged" in replay(capture)[1]


@pytest.mark.parametrize("lengths", [(1 << 60, 1), (1, 1 << 60), ((1 << 64) - 1,) * 2])
def test_lengths_that_are_not_there(capture: Path, lengths: tuple[int, int]) -> None:
    head = saved._HEAD.pack(saved.MAGIC, saved.VERSION, *lengths, bytes(32))
    capture.write_bytes(head + bytes(100))
    assert "is cut short" in replay(capture)[1]


def test_a_file_larger_than_memory_is_not_read(capture: Path) -> None:
    size = 1 << 42
    head = saved._HEAD.pack(saved.MAGIC, saved.VERSION, 2, size, bytes(32))
    with open(capture, "wb") as file:
        file.write(head)
        file.truncate(len(head) + 2 + size)  # takes no room on the disk
    assert "too large for this host" in replay(capture)[1]


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/"])
def test_what_is_no_file(path: str) -> None:
    assert replay(Path(path))[0] == 2


# --- the content ------------------------------------------------------------------------------


def test_blobs_that_unpack_to_more_than_they_say(capture: Path) -> None:
    header, blobs = parts(capture)
    bomb = zlib.compress(bytes(64 << 20), 9)
    block = header["kernels"][0]["launches"][0]["blocks"][0]
    block["before"] = block["after"] = {"blob": [len(blobs), len(bomb), 100]}
    put(capture, header, blobs + bomb)
    assert "a blob has 101 bytes instead of 100" in replay(capture)[1]
    block["before"] = block["after"] = {"blob": [len(blobs), len(bomb), 1 << 45]}
    put(capture, header, blobs + bomb)
    assert "too large for this host" in replay(capture)[1]


def test_one_blob_a_million_times_is_unpacked_once(capture: Path) -> None:
    header, blobs = parts(capture)
    bomb = zlib.compress(bytes(64 << 20), 9)
    blob = {"blob": [len(blobs), len(bomb), 64 << 20]}
    block = {"phase": 0, "before": blob, "after": blob}
    header["kernels"][0]["launches"][0]["blocks"] = [block] * 20_000  # 1.2 TiB
    put(capture, header, blobs + bomb)
    blocks = read_run(capture).kernels[0].launches[0].blocks
    assert len({id(block.before) for block in blocks}) == 1
    assert replay(capture)[0] == 1


def test_a_deep_header(capture: Path) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        put(capture, (opened * 100_000 + "1" + closed * 100_000).encode(), b"")
        assert "is not a run" in replay(capture)[1]


@pytest.mark.parametrize("header", [b"", b"\xff", b"[]", b"null", b"1", b'{"kernels": 1}', b"NaN"])
def test_headers_that_are_none(capture: Path, header: bytes) -> None:
    put(capture, header, b"")
    with pytest.raises(InvalidRun, match="is not a run"):
        read_run(capture)


_CHANGES: Mapping[str, tuple[Sequence[str | int], Any, str]] = {
    "variant": (["uses", 0, "variant"], 1, "names a variant"),
    "negative variant": (["uses", 0, "variant"], -1, "names a variant"),
    "block": (["launches", 0, "arguments"], [[2, 0], [1, 0]], "names a block"),
    "phase": (["launches", 0, "blocks", 0, "phase"], -1, "has no place"),
    "text": (["text"], 3, "3 where str belongs"),
    "huge": (["uses", 0, "launches"], 1 << 70, "where int belongs"),
    "bool": (["uses", 0, "launches"], True, "True where int belongs"),
    "pair": (["launches", 0, "arguments"], [[0, 0, 0]], "belongs"),
    "fields": (["uses", 0], {}, "Use has other fields"),
    "sizes": (["uses", 0, "sizes"], [4], "other sizes than its text"),
    "kernel": (["text"], "kernel plus\nno", "line 2"),
}


@pytest.mark.parametrize("case", _CHANGES)
def test_fields_that_do_not_fit(capture: Path, case: str) -> None:
    path, value, said = _CHANGES[case]
    header, blobs = parts(capture)
    at = header["kernels"][0]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    put(capture, header, blobs)
    code, text = replay(capture)
    assert code == 2
    assert said in text


def test_random_headers_do_no_harm(capture: Path) -> None:
    """Values exchanged for others, anywhere: an exit code, never a traceback."""
    header, blobs = parts(capture)
    choice = random.Random(1)
    text = json.dumps(header)
    strange = [
        None,
        True,
        -1,
        0,
        1 << 40,
        1.5,
        float("nan"),
        "",
        "x",
        [],
        [[1]],
        {},
        {"blob": [0, 1, 9]},
    ]
    codes = set()
    for _ in range(150):
        changed = json.loads(text)
        spots = list(_spots(changed))
        for _ in range(choice.choice((1, 1, 2))):
            owner, key = choice.choice(spots)
            owner[key] = choice.choice(strange)
        put(capture, changed, blobs)
        codes.add(replay(capture)[0])
    assert {0, 2} <= codes <= {0, 1, 2}


def _spots(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from _spots(item)


# --- the launch -------------------------------------------------------------------------------


def test_a_pool_larger_than_memory(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openspyre.runtime.replay.available_host_memory", lambda: 1 << 20)
    assert replay(capture)[0] == 1


def test_ctrl_c_ends_a_launch(monkeypatch: pytest.MonkeyPatch, capture: Path) -> None:
    """The main thread is interrupted while the launch runs on another one."""
    import threading
    from concurrent.futures import Future

    ended = threading.Event()

    def launch(self: SoftwareCard, *arguments: object) -> None:
        assert ended.wait(60)

    def result(self: Future[None], timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SoftwareCard, "launch", launch)
    monkeypatch.setattr(SoftwareCard, "interrupt", lambda self: ended.set())
    monkeypatch.setattr(Future, "result", result)
    result_ = CliRunner().invoke(app, ["replay", str(capture)])
    assert ended.is_set()
    assert result_.exit_code != 0
