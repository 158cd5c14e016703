"""What models that pool give on the CPU, in a process of its own: vLLM changes classes.

python -m tests.serve.pooling_reference CASES takes a list of [folder, dtype, whether it classifies]
as JSON and prints, for each, values of the texts in that dtype and in float64: embeddings by
sentence-transformers, or the shares of classes by transformers, of the texts and of pairs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.serve.pooled import QUERY, TEXTS

Values = dict[str, list[list[float]]]


def embedded(folder: str, options: dict[str, Any]) -> Values:
    model = SentenceTransformer(folder, device="cpu", model_kwargs=options)
    return {"embed": [model.encode(text).tolist() for text in TEXTS]}


def classified(folder: str, options: dict[str, Any]) -> Values:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, **options)

    def shares(*texts: str) -> list[float]:
        logits = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
        of_class = logits.sigmoid() if len(logits) == 1 else logits.softmax(-1)
        found: list[float] = of_class.tolist()
        return found

    alone, pairs = [shares(text) for text in TEXTS], [shares(QUERY, text) for text in TEXTS]
    return {"classify": alone, "score": pairs}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    results = []
    for folder, dtype, classifies in json.loads(sys.argv[1]):
        values = classified if classifies else embedded
        kinds = (getattr(torch, name) for name in (dtype, "float64"))
        options = [{"dtype": kind, "attn_implementation": "eager"} for kind in kinds]
        results.append([values(folder, one) for one in options])
    print(json.dumps(results))
