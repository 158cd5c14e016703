"""What somebody has to know to write a replacement: a brief for a person or a coding agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openspyre
from openspyre.hf.drafted import described
from openspyre.hf.gaps import Call, FailingOp
from openspyre.hf.judging import CONDITION, FACTOR, ULPS
from openspyre.hf.proof_inputs import STRIDES, VALUES
from openspyre.runtime.places import split_place

_AROUND = 4  # lines of source before and behind the call


def brief_facts(failing: FailingOp, model: str, refusal: str = "") -> dict[str, Any]:
    """The brief as plain data.

    Args:
        refusal: why the last attempt was not accepted.
    """
    return {
        "model": model,
        "op": failing.op,
        "stage": failing.stage,
        "rule": failing.rule,
        "count": failing.count,
        "calls": [
            {
                "function": call.name.replace(":", "."),
                "place": call.place,
                "module": call.module,
                "source": _source(call),
                "args": [described(value) for value in call.args],
                "kwargs": {name: described(value) for name, value in call.kwargs.items()},
            }
            for call in failing.calls
        ],
        "versions": {"openspyre": openspyre.__version__, "torch": version("torch")},
        "values": list(VALUES),
        "strides": list(STRIDES),
        "refusal": refusal,
    }


def brief_text(facts: dict[str, Any]) -> str:
    """The brief in Markdown, with the facts as JSON at its end."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield f"# A replacement for `{facts['op']}`\n"
    yield (
        f"The model `{facts['model']}` runs on a card for whose compiler this op is a gap"
        f" ({facts['stage']}): {facts['rule']}. Write Python code that computes the same from ops"
        " that the compiler has: arithmetic, comparisons, `where`, reductions, matrix products,"
        " `cumsum`, `gather`, `sort`, views, `cat`.\n"
    )
    for call in facts["calls"]:
        yield f"## {call['function']}\n"
        yield f"At {call['place'] or 'an unknown place'}, in module {call['module']}.\n"
        if call["source"]:
            yield f"```python\n{call['source']}\n```\n"
        yield f"Arguments: `{json.dumps(call['args'])}`, by name `{json.dumps(call['kwargs'])}`.\n"
    yield "## What to answer\n"
    yield (
        "One Python file on standard output and nothing else. It defines `replacement`, called"
        " with the arguments of the function. It may import torch and math alone, must not call"
        " the function that it replaces, change arguments or return their memory, and works on"
        " any device, in any floating dtype and for all sizes.\n"
    )
    yield "## How it is judged\n"
    yield (
        "Against the original in float64, float32, float16 and bfloat16, on sizes 0, 1 and odd,"
        f" values {', '.join(facts['values'])}; strides: {', '.join(facts['strides'])}. An element"
        f" may be off by {FACTOR:g} x the original's own error + {ULPS:g} units in the last place"
        f" + {CONDITION:g} x what the original moves when its inputs do by one rounding. NaN and"
        " infinities must be those of the original. Then the model is run with it on the card.\n"
    )
    if facts["refusal"]:
        yield f"## The last answer was refused\n\n{facts['refusal']}\n"
    yield f"## The same as JSON\n\n```json\n{json.dumps(facts, indent=1)}\n```"


def _source(call: Call) -> str:
    """The lines around a call."""
    place, _ = split_place(call.place)
    file, _, number = place.rpartition(":")
    path = next((p for p in _candidates(file) if p.is_file()), None)
    if path is None or not number.isdecimal():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    first = max(0, int(number) - 1 - _AROUND)
    return "\n".join(lines[first : int(number) + _AROUND])


def _candidates(file: str) -> Iterator[Path]:
    """Where a place's file may lie: places are shortened (`runtime.places`)."""
    if file:
        yield Path(file)
        yield Path(json.__file__).parents[1] / "site-packages" / file
        yield Path(openspyre.__file__).parents[1] / file
        import torch

        yield Path(torch.__file__).parents[1] / file
