"""What `spyre accuracy` measures: a Hugging Face folder, a known name, a type, or a script."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openspyre.errors import SpyreError
from openspyre.hf.code_files import module_of_file
from openspyre.hf.weights import fetch
from openspyre.tools.accuracy import Inputs

NAMES = ("minilm",)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in float32 on the CPU, and what to call it with."""

    name: str
    model: torch.nn.Module
    inputs: Inputs
    trained: bool


def load_subject(name: str, *, batch: int, length: int, seed: int) -> Subject:
    """The subject that a user names: a script, a model's folder (or its config.json), a name.

    The name of a type of transformers stands for the tiny random model that `spyre models` tries.

    Args:
        batch, length: of the random inputs made for a Hugging Face model; a type has its own.

    Raises:
        SpyreError: there is no such thing, or it cannot be loaded.
    """
    path = Path(name)
    if path.suffix == ".py":
        return _from_script(path)
    if name in NAMES and not path.exists():
        path = fetch(name)
    folder = path.parent if path.name == "config.json" else path
    if not (folder / "config.json").is_file():
        if not path.exists() and (found := _of_type(name, seed)):
            return found
        raise SpyreError(
            f"there is no model {name}",
            why="it is no folder with a config.json, no Python file, no type and no known name",
            hint=f"use a folder, a script, a type (bert, llama), or one of: {', '.join(NAMES)}",
        )
    return _from_folder(name, folder, batch, length, seed)


def _from_script(path: Path) -> Subject:
    if not path.is_file():
        raise SpyreError(f"there is no script {path}")
    made = module_of_file(path)
    model, inputs = getattr(made, "model", None), getattr(made, "inputs", None)
    if not isinstance(model, torch.nn.Module) or inputs is None:
        raise SpyreError(
            f"{path} defines no model and inputs",
            why="`model` must be a torch.nn.Module and `inputs` what it is called with",
            hint="inputs: a tensor, a tuple of arguments, or a dict of keyword arguments",
        )
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    return Subject(path.name, model.float(), inputs, trained=True)


def _of_type(name: str, seed: int) -> Subject | None:
    from openspyre.hf.recipes import recipes  # these load transformers, and a script needs none
    from openspyre.hf.tiny_inputs import inputs_of
    from openspyre.hf.tiny_model import build, model_types

    if name not in model_types():
        return None
    rules = recipes()
    recipe = rules.of(name)
    if not recipe.forward:
        raise SpyreError(f"{name} models have no forward pass of their own: only `generate`")
    try:
        model = build(name, rules, seed).model
        # What it keeps of a call must not be there at the next one.
        inputs = inputs_of(copy.deepcopy(model), rules, recipe, seed).forward
    except SpyreError:
        raise
    except Exception as error:  # transformers and its readers promise no kinds of errors
        raise SpyreError(f"no tiny {name} can be made", why=str(error).splitlines()[0]) from None
    return Subject(name, model, inputs, trained=False)


def _from_folder(name: str, folder: Path, batch: int, length: int, seed: int) -> Subject:
    import transformers  # heavy, and a script needs none of it

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    trained = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    torch.manual_seed(seed)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        known = config.architectures or [""]
        causal = known[0].endswith(("ForCausalLM", "LMHeadModel"))
        auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
        if trained:
            model = auto.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        else:
            make: Any = auto.from_config
            model = make(config).float()
    except Exception as error:  # transformers and its readers promise no kinds of errors
        raise SpyreError(
            f"the model in {folder} cannot be loaded", why=str(error).splitlines()[0]
        ) from None
    return Subject(name, model.eval(), random_inputs(model, config, batch, length, seed), trained)


def random_inputs(
    model: Any, config: Any, batch: int, length: int, seed: int
) -> dict[str, torch.Tensor]:
    """What a Hugging Face model may be called with.

    Raises:
        SpyreError: what it takes is not known.
    """
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "input_ids":
        longest = getattr(config, "max_position_embeddings", None) or length
        count = config.get_text_config().vocab_size
        ids = torch.randint(0, count, (batch, min(length, longest)), generator=generator)
        both = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return {**both, "decoder_input_ids": ids[:, :1]} if config.is_encoder_decoder else both
    side = getattr(config, "image_size", None)
    if model.main_input_name == "pixel_values" and isinstance(side, int):
        shape = (batch, getattr(config, "num_channels", 3), side, side)
        return {"pixel_values": torch.randn(shape, generator=generator)}
    raise SpyreError(
        f"inputs of a {config.model_type} model are not known",
        why=f"it takes {model.main_input_name}",
        hint="write a script that defines `model` and `inputs`",
    )
