"""Tiny models with random weights, as folders that vLLM and transformers load.

Weights are large enough that what is generated varies and does not repeat.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 256
_SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
# What is special about each kind: an odd depth of heads, multipliers, a window and caps.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 20},
    "granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "gemma2": {
        "tie_word_embeddings": True,
        "sliding_window": 24, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 20.0,
    },
}  # fmt: skip


def write_model(kind: str, dtype: torch.dtype, folder: Path) -> None:
    """Writes the model of a kind, the same one every time."""
    config = AutoConfig.for_model(kind, **{**_SHAPE, **KINDS[kind]})
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # Where the embedding is the head too, a large one would repeat its own tokens.
            tied = config.tie_word_embeddings and "embed" in name
            torch.nn.init.normal_(parameter, std=0.02 if tied else 0.25, generator=generator)
    model.to(dtype).save_pretrained(folder)


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of single bytes, with a template for chats, beside a model."""
    special = ["<pad>", "<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - len(special)]
    numbers = {token: number for number, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    whole.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    )
    whole.save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Prompts of mixed lengths; the last two share their first 40 tokens with the third."""
    lengths = (3, 17, 61, 1, 33, 16)
    made = [
        [(7 * i * i + 13 * k + 11 * k * i) % (VOCABULARY - 6) + 3 for i in range(n)]
        for k, n in enumerate(lengths)
    ]
    return [*made, [*made[2][:40], 9, 8, 7], [*made[2][:40], 11]]
