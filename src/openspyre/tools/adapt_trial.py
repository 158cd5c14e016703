"""A process that runs a model with an adapter that nobody has accepted yet, on the card.

    python -m openspyre.tools.adapt_trial

In the working directory: `adapter.py`, `subject.json` with what `load_subject` takes, `state.pt`
with the model's weights. It writes `outputs.pt`: data alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import openspyre
from openspyre.hf.drafted import read_adapters
from openspyre.hf.trials import outputs_of
from openspyre.tools.accuracy_models import load_subject


def main() -> int:
    openspyre.require()
    subject = load_subject(**json.loads(Path("subject.json").read_text()))
    state = torch.load("state.pt", weights_only=True)
    subject.model.load_state_dict(state["weights"])
    found = outputs_of(subject.model, state["inputs"], read_adapters(Path("adapter.py"))[0])
    plain = {name: getattr(found, name) for name in found.__dataclass_fields__}
    plain |= {name: list(plain[name]) for name in ("eager", "compiled")}
    torch.save(plain, "outputs.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
