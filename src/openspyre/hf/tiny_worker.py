"""The process that tries one type: forked from a server that has loaded PyTorch and transformers.

It says over a pipe what begins, with what was found so far, and at the end what was found.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import huggingface_hub.constants
import torch
import torch._inductor.compile_fx

import openspyre
from openspyre.hf.outcomes import Outcome
from openspyre.hf.tiny_model import model_types

model_types()  # loads transformers' lists


def work(name: str, pipe: Connection, lanes: Sequence[str], fault: str) -> None:
    """Tries a type: all that the process does."""
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # what would download cannot be built
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # no pool of processes for one small model
    if lanes:
        openspyre.require()
    from openspyre.hf.tiny_trial import tried  # loads the native part

    def begin(stage: str, so_far: Outcome) -> None:
        pipe.send_bytes(json.dumps({"stage": stage, "so far": so_far.as_dict()}).encode())

    outcome = tried(name, begin, lanes, fault=_named(fault) if fault else None)
    pipe.send_bytes(json.dumps({"outcome": outcome.as_dict()}).encode())
    pipe.close()


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)
