"""Sentence embeddings from a stock Hugging Face encoder, on any device."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openspyre.errors import SpyreError

Model = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Sentences:
    """Token ids of sentences, without padding."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    pad: int

    def batches(self, size: int) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """(positions, ids [b, s], mask [b, s]), int64, short ones first, padded to the longest."""
        order = sorted(range(len(self.tokens)), key=lambda i: len(self.tokens[i]))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            width = max(len(self.tokens[i]) for i in chosen)
            ids = torch.full((len(chosen), width), self.pad, dtype=torch.int64)
            mask = torch.zeros((len(chosen), width), dtype=torch.int64)
            for row, i in enumerate(chosen):
                ids[row, : len(self.tokens[i])] = torch.tensor(self.tokens[i])
                mask[row, : len(self.tokens[i])] = 1
            yield chosen, ids, mask


@dataclass(frozen=True, slots=True)
class Encoder:
    """A model with its tokenizer and the pooling its folder asks for."""

    model: torch.nn.Module
    tokenizer: Any
    pooling: str
    longest: int
    vocabulary: int

    def tokenize(self, texts: Sequence[str], *, places: Sequence[str], truncate: bool) -> Sentences:
        """Token ids of `texts`; `places` says where each one stands, for messages.

        Raises:
            SpyreError: a text has no tokens, tokens that the model does not know, or is longer
                than the model can take and `truncate` is false.
        """
        encoded = self.tokenizer(list(texts), truncation=truncate, max_length=self.longest)
        tokens = tuple(tuple(ids) for ids in encoded["input_ids"])
        for place, ids in zip(places, tokens, strict=True):
            self._check(place, ids)
        return Sentences(tuple(texts), tokens, self.tokenizer.pad_token_id or 0)

    def _check(self, place: str, ids: tuple[int, ...]) -> None:
        if not ids:
            raise SpyreError(f"{place} is empty", why="the tokenizer makes no token of it")
        if len(ids) > self.longest:
            raise SpyreError(
                f"{place} is too long",
                why=f"it has {len(ids)} tokens and the model takes {self.longest}",
                hint="shorten it, or pass --truncate to cut it",
            )
        if max(ids) >= self.vocabulary:
            raise SpyreError(
                "the tokenizer does not belong to the model",
                why=f"{place} has token {max(ids)} and the model knows {self.vocabulary} tokens",
                hint="use the tokenizer that the model was trained with",
            )

    def pool(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Unit vectors [b, h] float32 from hidden states [b, s, h] and the mask [b, s]."""
        wide = hidden.float()
        if self.pooling == "cls":
            pooled = wide[:, 0]
        else:
            weights = mask.unsqueeze(-1).float()
            pooled = (wide * weights).sum(1) / weights.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(pooled, dim=-1)

    def embed(
        self,
        model: Model,
        sentences: Sentences,
        *,
        device: str,
        batch: int,
        progress: Callable[[int], None] = lambda count: None,
    ) -> torch.Tensor:
        """Embeddings [n, h] float32 on the CPU, computed by `model` on `device`."""
        rows: list[torch.Tensor] = [torch.empty(0)] * len(sentences.tokens)
        with torch.inference_mode():
            for chosen, ids, mask in sentences.batches(batch):
                output = model(input_ids=ids.to(device), attention_mask=mask.to(device))
                pooled = self.pool(output.last_hidden_state.cpu(), mask)
                for row, i in enumerate(chosen):
                    rows[i] = pooled[row]
                progress(len(chosen))
        return torch.stack(rows)


def load_encoder(folder: Path) -> Encoder:
    """The model of a folder as `save_pretrained` writes it, fp32, on the CPU.

    Raises:
        SpyreError: the folder is missing or holds no configuration, weights or tokenizer, or its
            architecture is not a text encoder that this version of transformers knows.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not folder.is_dir():
        raise SpyreError(f"there is no model folder {folder}", hint="check the path after --model")
    if not (folder / "config.json").exists():
        raise SpyreError(f"{folder} is not a model folder", why="it has no config.json")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise SpyreError(
            f"the model folder {folder} has no weights",
            why="neither *.safetensors nor pytorch_model*.bin is there",
            hint="download the whole model, weights included",
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
        pooling = _pooling(folder)
    except Exception as error:  # transformers and its readers promise no kinds of errors
        raise SpyreError(
            f"the model in {folder} cannot be loaded",
            why=_brief(error),
            hint="use a text encoder (BERT, RoBERTa, MiniLM, ...) with its tokenizer",
        ) from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise SpyreError(
            f"the model folder {folder} has no tokenizer",
            why="there is no file with a vocabulary",
            hint="download the whole model, tokenizer included",
        )
    if getattr(config, "is_encoder_decoder", False) or model.main_input_name != "input_ids":
        raise _no_encoder(config, "semantic search needs an encoder: token ids to hidden states")
    longest = min(
        getattr(config, "max_position_embeddings", 512), getattr(tokenizer, "model_max_length", 512)
    )
    return _tried(model, tokenizer, pooling, int(longest))


def _tried(model: Any, tokenizer: Any, pooling: str, longest: int) -> Encoder:
    """The encoder, once one token is embedded: what is none says so before it is compiled."""
    try:
        vocabulary = model.get_input_embeddings().num_embeddings
        encoder = Encoder(model, tokenizer, pooling, longest, vocabulary)
        encoder.embed(model, Sentences(("",), ((0,),), 0), device="cpu", batch=1)
    except Exception as error:  # the code of any model
        raise _no_encoder(model.config, _brief(error)) from None
    return encoder


def _no_encoder(config: Any, why: str) -> SpyreError:
    return SpyreError(
        f"a model of type {config.model_type} gives no sentence embeddings here",
        why=why,
        hint="use a text encoder (BERT, RoBERTa, MiniLM, ...)",
    )


def _brief(error: Exception) -> str:
    """An error of another library in a line."""
    return textwrap.shorten(str(error), 240, placeholder=" ...") or type(error).__name__


def _pooling(folder: Path) -> str:
    """What `sentence-transformers` wrote beside the model: mean unless it says otherwise."""
    path = folder / "1_Pooling" / "config.json"
    if not path.exists():
        return "mean"
    return "cls" if json.loads(path.read_text()).get("pooling_mode_cls_token") else "mean"
