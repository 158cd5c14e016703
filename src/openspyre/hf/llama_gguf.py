"""A llama in a GGUF file, as the folder of a stock `LlamaForCausalLM` with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openspyre.errors import SpyreError
from openspyre.hf.folders import write_json, write_safetensors
from openspyre.hf.gguf import Floats, Gguf, read_gguf

_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3  # the kind of tokens that text never makes
# How the text is cut before byte pairs are merged, by the name that llama.cpp gives it.
_CUTS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
}


def llama_folder(inner: str, source: Path, target: Path) -> None:
    """Writes config, weights in float32 and tokenizer.

    Raises:
        SpyreError: the file is no llama as this knows it.
    """
    file = read_gguf(source / inner)
    if file.facts.get("general.architecture") != "llama":
        raise SpyreError(f"{Path(inner).name} is no llama")
    config = _config(file)
    write_json(target / "config.json", config)
    write_json(target / "generation_config.json", {k: config[k] for k in _SPECIAL})
    write_safetensors(target / "model.safetensors", dict(_weights(file, config)))
    _write_tokenizer(file, target)


_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def _config(file: Gguf) -> dict[str, Any]:
    def fact(name: str) -> Any:
        return file.facts[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": fact("vocab_size"),
        "hidden_size": fact("embedding_length"),
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": fact("attention.head_count"),
        "num_key_value_heads": fact("attention.head_count_kv"),
        "head_dim": fact("rope.dimension_count"),
        "max_position_embeddings": fact("context_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": fact("rope.freq_base")},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": file.facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": file.facts["tokenizer.ggml.padding_token_id"],
    }


def _weights(file: Gguf, config: dict[str, Any]) -> Iterator[tuple[str, Floats]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in file.tensors:
        match name.split("."):
            case ["blk", layer, part, "weight"] if part in _LAYER:
                values = file.floats(name)
                if part in heads:
                    values = _halves(values, heads[part])
                yield f"model.layers.{layer}.{_LAYER[part]}.weight", values
            case [part, "weight"] if part in _OTHERS:
                yield f"{_OTHERS[part]}.weight", file.floats(name)
            case _:
                raise SpyreError(f"a llama has no place for the tensor {name}")


def _halves(rows: Floats, heads: int) -> Floats:
    """Rows of each head with a rotation's pairs in two halves, where GGUF has them in turn."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _write_tokenizer(file: Gguf, target: Path) -> None:
    facts = {k.removeprefix("tokenizer.ggml."): v for k, v in file.facts.items()}
    if facts["model"] != "gpt2" or facts["pre"] not in _CUTS:
        raise SpyreError(f"the tokenizer {facts['model']}, {facts['pre']} is not known here")
    tokens: list[str] = facts["tokens"]
    write_json(target / "tokenizer.json", _tokenizer(tokens, facts))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": file.facts["llama.context_length"],
            "chat_template": file.facts["tokenizer.chat_template"],
            **{
                f"{ours}_token": tokens[facts[f"{theirs}_token_id"]]
                for ours, theirs in names.items()
            },
        },
    )


def _tokenizer(tokens: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    control = [i for i, kind in enumerate(facts["token_type"]) if kind == _CONTROL]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, **plain} for i in control
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _CUTS[facts["pre"]]},
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["merges"]],
        },
    }
