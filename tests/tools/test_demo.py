"""The demo on a user's own files: what it refuses and how it says so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    MPNetConfig,
    MPNetModel,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)
from typer.testing import CliRunner, Result

import openspyre
from openspyre.errors import SpyreError
from openspyre.tools.demo import app
from openspyre.tools.embedding import load_encoder

openspyre.require()

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sleeps", "rain", "falls", "on"]
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**TINY, "intermediate_size": 64, "vocab_size": len(WORDS), "max_position_embeddings": 16}


def tokenized(folder: Path, kind: str = "BertTokenizer") -> Path:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    options = {"tokenizer_class": kind, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    BertModel(BertConfig(**TEXT)).save_pretrained(folder)
    return tokenized(folder)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refused(result: Result, *words: str) -> None:
    """Exit code 2 and a message; a traceback would be an exception other than SystemExit."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    assert result.stderr.startswith("demo: ")
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n \r\n\t\n", "is empty"),
        (b"\x93\x00\xff\xfe", "is not UTF-8"),
        (b"\n\nrain falls\n" + b"cat " * 20, "line 4 of"),
    ],
)
def test_a_corpus_is_refused(tmp_path: Path, bert: Path, content: bytes | None, says: str) -> None:
    corpus = tmp_path / "corpus"
    if content is not None:
        corpus.write_bytes(content)
    refused(run("--corpus", corpus, "--model", bert), says, str(corpus))


def test_a_long_query_is_named(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "corpus").write_text("rain falls")
    refused(
        run("--corpus", tmp_path / "corpus", "--model", bert, "--query", "cat " * 20),
        "the query 'cat cat",
        "22 tokens and the model takes 16",
    )


def halved(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def without_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()


def wider(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))


def badly_pooled(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("[")


def of_another_tokenizer(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "more", "words", "here"]))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, "there is no model folder"),
    (lambda f: os.remove(f / "config.json"), "it has no config.json"),
    (lambda f: os.remove(f / "model.safetensors"), "has no weights"),
    (halved, "cannot be loaded"),
    (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be loaded"),
    (lambda f: (f / "config.json").write_text("{"), "cannot be loaded"),
    (lambda f: (f / "config.json").write_text('{"model_type": "nope"}'), "cannot be loaded"),
    (wider, "cannot be loaded"),
    (badly_pooled, "cannot be loaded"),
    (without_vocabulary, "has no tokenizer"),
    (of_another_tokenizer, "the tokenizer does not belong to the model"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES, ids=[says for _, says in DAMAGES])
def test_a_damaged_model_is_refused(
    tmp_path: Path, bert: Path, damage: Callable[[Path], object], says: str
) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    damage(folder)
    (tmp_path / "corpus").write_text("rain falls\nmore words here")
    refused(run("--corpus", tmp_path / "corpus", "--model", folder), says)


VISION = {**TINY, "intermediate_size": 64, "image_size": 32, "patch_size": 16}
OTHERS = {
    "t5": lambda: T5EncoderModel(
        T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, vocab_size=len(WORDS))
    ),
    "vit": lambda: ViTModel(ViTConfig(**VISION)),
    "clip": lambda: CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_text_encoder_is_refused(tmp_path: Path, name: str) -> None:
    OTHERS[name]().save_pretrained(tmp_path)
    with pytest.raises(SpyreError, match="no sentence embeddings"):
        load_encoder(tokenized(tmp_path))


def test_an_encoder_without_sdpa_is_taken(tmp_path: Path) -> None:
    MPNetModel(MPNetConfig(**TEXT)).save_pretrained(tmp_path)
    assert load_encoder(tokenized(tmp_path)).pooling == "mean"


def test_a_user_s_own_files_as_json(tmp_path: Path, bert: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.write_bytes("\ufeffa cat sleeps\r\n\r\nrain falls on\r\n".encode())
    result = run(
        "--corpus", corpus, "--model", bert, "--query", "a cat sleeps", "--batch", "100", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [m["query"] for m in found["matches"]] == ["a cat sleeps"]
    assert [t["text"] for t in found["matches"][0]["top"]] == [
        "a cat sleeps",
        "rain falls on",
    ]
    assert found["agreement"]["min_cosine"] > 0.9999
    assert found["kernels"]
    assert found["fallbacks"] == {}
