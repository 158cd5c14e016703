"""One forward of a model on the card, recorded: of its folder, its config or its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openspyre.errors import SpyreError
from openspyre.runtime.recording import recorded
from openspyre.runtime.saved import Run
from openspyre.tools.accuracy_models import NAMES, Subject, load_subject, random_inputs
from openspyre.tools.layered import configured

_LARGEST = 1 << 30  # parameters of a model with random weights


@dataclass(frozen=True, slots=True)
class Called:
    """A model and how it is called.

    Attributes:
        eager: op by op, without a compiler.
        overrides: of its config; it has random weights then.
    """

    name: str
    dtype: str
    batch: int
    length: int
    eager: bool
    overrides: Mapping[str, Any]
    seed: int = 0


def model_run(called: Called, room: int, wanted: str, launches: int) -> Run:
    """What one forward runs on the card.

    Raises:
        SpyreError: there is no such model or dtype, or it cannot be called.
    """
    subject = _subject(called)
    dtype = getattr(torch, called.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise SpyreError(f"there is no dtype {called.dtype} for a model")
    model = subject.model.to(dtype).to("spyre")
    torch._dynamo.reset()
    function = model if called.eager else torch.compile(model, dynamic=False)
    inputs = torch.utils._pytree.tree_map(lambda t: _moved(t, dtype), subject.inputs)
    words = {} if isinstance(inputs, tuple) else {**inputs, **_plain_options(subject)}
    with recorded(subject.name, room, wanted, launches) as recorder, torch.inference_mode():
        try:
            function(*inputs) if isinstance(inputs, tuple) else function(**words)
            torch.spyre.synchronize()  # type: ignore[attr-defined]
        except Exception as error:  # the code of any model; what ran before it is looked at
            line = next(iter(str(error).strip().splitlines()), "")
            recorder.error = f"{type(error).__name__}: {line}"
    return recorder.run


def _moved(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to("spyre", dtype if value.is_floating_point() else value.dtype)


def _plain_options(subject: Subject) -> dict[str, Any]:
    """Without a cache, which is no result that one looks at."""
    takes = hasattr(getattr(subject.model, "config", None), "use_cache")
    return {"use_cache": False} if takes else {}


def _subject(called: Called) -> Subject:
    path = Path(called.name)
    there = path.exists() or called.name in NAMES
    if there and not called.overrides:
        return load_subject(called.name, batch=called.batch, length=called.length, seed=called.seed)
    import transformers  # heavy, and a script needs none of it

    config = configured(called.name, called.overrides)
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    auto: Any = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    with torch.device("meta"):
        count = sum(p.numel() for p in auto.from_config(config).parameters())
    if count > _LARGEST:
        raise SpyreError(
            f"a {config.model_type} model of this config has {count / 1e9:.1f} billion parameters",
            why="its weights would be random, and all in memory",
            hint="--override num_hidden_layers=2 --override hidden_size=64 ...",
        )
    torch.manual_seed(called.seed)
    model = auto.from_config(config).float().eval()
    inputs = random_inputs(model, config, called.batch, called.length, called.seed)
    return Subject(called.name, model, inputs, trained=False)
