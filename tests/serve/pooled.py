"""Tiny models that embed, classify and score, as folders that vLLM and transformers load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.serve.tiny import VOCABULARY

LONGEST = 120
_SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST + 8, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
# What is special about each kind: kinds of tokens, an odd depth of heads, windows to both sides.
KINDS: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, "hidden_size": 60, "num_attention_heads": 3},
    "xlm-roberta": {"type_vocab_size": 1},
    "modernbert": {
        "local_attention": 16, "global_attn_every_n_layers": 2, "reference_compile": False,
    },
    "qwen3": {"num_key_value_heads": 2, "head_dim": 20, "tie_word_embeddings": False},
}  # fmt: skip
TEXTS = (
    "a", "The card is software.", "", "What is a stick?",
    "A stick is 128 bytes that lie together; a load costs the sticks that it touches, no less.",
    "Rows of a batch differ in length, one of them has 50 letters",
)  # fmt: skip
QUERY = TEXTS[3]


def write_pooled(kind: str, dtype: torch.dtype, folder: Path, labels: int = 0) -> None:
    """Writes the model of a kind with its tokenizer; with labels, one that classifies."""
    chosen = {**_SHAPE, **KINDS[kind], **({"num_labels": labels} if labels else {})}
    config = AutoConfig.for_model(kind, **chosen)
    made = AutoModelForSequenceClassification if labels else AutoModel
    model: nn.Module = made.from_config(config)
    generator = torch.Generator().manual_seed(11)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15, generator=generator)
    model.to(dtype).save_pretrained(folder)
    _write_tokenizer(kind, folder)


def write_pooling(folder: Path, mode: str) -> None:
    """Makes it a model of sentence-transformers: pools by "cls", "mean" or "lasttoken"."""
    steps = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{step}"}
        for n, (path, step) in enumerate(zip(paths, steps, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path in paths[1:]:
        (folder / path).mkdir()
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    pooling: dict[str, Any] = {"word_embedding_dimension": size}
    for name, key in (("cls", "cls_token"), ("mean", "mean_tokens"), ("lasttoken", "lasttoken")):
        pooling[f"pooling_mode_{key}"] = name == mode
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))


def _write_tokenizer(kind: str, folder: Path) -> None:
    """A tokenizer of single bytes that puts `<s>` before a text and `</s>` behind it."""
    special = ["<pad>", "<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - len(special)]
    numbers = {token: number for number, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )  # fmt: skip
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", cls_token="<s>", sep_token="</s>",
        model_max_length=LONGEST, model_input_names=names,
    ).save_pretrained(folder)  # fmt: skip
