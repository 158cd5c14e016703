"""A process that runs a replacement that nobody has accepted yet, on calls that it is given.

    python -m openspyre.hf.candidate

In the working directory: `candidate.py`, and `calls.pt` with the calls. It writes `answers.pt`:
data alone, which whoever judges it reads without running anything.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openspyre.hf.code_files import module_of_file
from openspyre.hf.judging import Result, called

_PLAIN = (bool, int, float, str, type(None))


def main() -> int:
    torch.set_num_threads(1)
    asked = torch.load("calls.pt", weights_only=True)
    try:
        replacement = getattr(module_of_file(Path("candidate.py")), "replacement", None)
    except BaseException as error:  # of anybody's code
        return _refused(f"the code raises {type(error).__name__}: {error}")
    if not callable(replacement):
        return _refused("the code defines no function `replacement`")
    from openspyre.hf.formulas import as_plain, formula_of  # loads much, which code may not reach

    answers = [
        _plain(called(replacement, tuple(args), kwargs, getattr(torch, dtype)))
        for dtype, args, kwargs in asked["calls"]
    ]
    formulas = [
        as_plain(formula_of(replacement, tuple(args), kwargs)) for args, kwargs in asked["formulas"]
    ]
    torch.save({"answers": answers, "formulas": formulas, "refused": ""}, "answers.pt")
    return 0


def _refused(why: str) -> int:
    torch.save({"answers": [], "formulas": [], "refused": why[:500]}, "answers.pt")
    return 1


def _plain(result: Result | str) -> dict[str, Any]:
    if isinstance(result, str):
        return {"raised": result}
    leaves = [x if isinstance(x, (Tensor, *_PLAIN)) else repr(x) for x in result.leaves]
    return {
        "leaves": leaves,
        "form": result.form,
        "changed": result.changed,
        "shares": result.shares,
    }


if __name__ == "__main__":
    sys.exit(main())
