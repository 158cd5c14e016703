"""A process that tries ops, one job a line: a crash or a hang costs one pair, not the run.

Reads {"op", "pairs", "samples"} from its input. Writes {"ready"}, {"begin"} before a pair,
{"verdict"} behind it and {"done"} behind a job to what was its output, which the libraries' own
printing does not reach.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

import torch

import openspyre
from openspyre.ci.op_samples import entries
from openspyre.ci.op_trial import tried


def main(source: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    openspyre.require()
    torch.set_num_threads(1)
    infos = entries(source)
    print(json.dumps({"ready": source}), file=answers)
    for line in sys.stdin:
        _work(infos, json.loads(line), answers)


def _work(infos: dict[str, Any], job: dict[str, Any], answers: TextIO) -> None:
    info = infos[job["op"]]
    for variant, dtype in job["pairs"]:
        print(json.dumps({"begin": [variant, dtype]}), file=answers)
        found = tried(info, variant, dtype, job["samples"])
        print(json.dumps({"verdict": [found.state.value, found.reason]}), file=answers)
    print(json.dumps({"done": job["op"]}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
