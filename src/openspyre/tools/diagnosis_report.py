"""What `spyre diagnose` writes: a report for an issue, and a script that repeats the fault."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from openspyre.ir.text import parse_kernel
from openspyre.runtime.diagnosis import Fault, Finding, Meaning
from openspyre.runtime.saved import Run, SavedKernel

_ADVICE = {
    Fault.COMPILER: "Please report it: the capture holds the program, its inputs and its results.",
    Fault.CARD: "Please report it: the software card runs a right program wrong.",
    Fault.REFERENCE: "Please report it: the frontend gives this op another meaning than PyTorch.",
    Fault.UNSTEADY: "Something changed the memory while the launch ran, or the card is not"
    " deterministic. OPENSPYRE_DEBUG=poison,late may show it.",
    Fault.PRECISION: "No fault of the card: compute this op in a wider dtype, or scale its input.",
    Fault.NONE: "",
}


def summary(found: Finding) -> Iterator[str]:
    """The fault in a few lines."""
    yield f"{found.fault.value}: {found.kernel}, launch {found.number}"
    yield f"  {found.why}"
    for wrong in found.wrong:
        yield f"  {wrong}"
    culprit = found.culprit
    if culprit is None:
        if found.fault in (Fault.COMPILER, Fault.CARD, Fault.REFERENCE):
            yield "  no single op is to blame: this version compiles the kernel right"
        return
    yield f"  op {culprit.op}: {culprit.how}"
    if culprit.source:
        yield f"  from {culprit.source}"
    if culprit.alone is not None:
        yield f"  alone (unfused) it is {'wrong' if culprit.alone else 'right'}"
    if culprit.window:
        yield f"  together with {', '.join(culprit.window)}"
    if culprit.difference is not None:
        yield f"  {culprit.difference}"


def report_text(run: Run, kernel: SavedKernel, found: Finding) -> str:
    """A report in Markdown."""
    return "\n".join(_report(run, kernel, found)) + "\n"


def _report(run: Run, kernel: SavedKernel, found: Finding) -> Iterator[str]:
    culprit = found.culprit
    where = f" in `{culprit.op}`" if culprit is not None and culprit.op else ""
    yield f"## {found.fault.value}{where} of kernel `{found.kernel}`"
    yield ""
    yield "```"
    yield from summary(found)
    yield "```"
    yield ""
    if _ADVICE[found.fault]:
        yield _ADVICE[found.fault]
        yield ""
    if culprit is not None:
        yield "### The op"
        yield ""
        yield from ("```", culprit.text, "```", "")
    yield "### To repeat it"
    yield ""
    yield "`python reproduce.py` beside `capture.spyre` (tensors of the run are in it)."
    yield ""
    yield "### Where it was seen"
    yield ""
    yield "| what | |"
    yield "|---|---|"
    yield f"| command | `{run.command}` |"
    yield from (f"| {name} | {value} |" for name, value in run.versions.items())
    yield f"| sizes | {', '.join(map(str, found.sizes)) or 'fixed'} |"
    yield f"| torch | {found.torch or 'not asked'} |"
    for name, loss in (found.losses or {}).items():
        yield f"| rounding moves {name} by | {loss:.2g} |"
    yield ""
    yield from ("<details><summary>The kernel</summary>", "", "```", kernel.text.rstrip(), "```")
    yield from ("", "</details>")


_SCRIPT = '''"""{title}

Needs openspyre and capture.spyre beside it: no model and no torch. Exit code 1 while the fault is
there, 0 when this version of openspyre is right.
"""

from pathlib import Path

from openspyre.tools.repeated_launch import repeated

capture = Path(__file__).with_name("capture.spyre")
raise SystemExit(repeated(capture))
'''
_TORCH_SCRIPT = '''"""{title}

Needs openspyre, torch and capture.spyre beside it: no model. Compiles the kernel's part of the
graph for the card again, calls it with the inputs in the capture, and compares with the CPU in
float64. Exit code 1 while the fault is there, 0 when this version of openspyre is right.
"""

from pathlib import Path

import torch
from torch import device, inf, nan

import openspyre

openspyre.require()
from openspyre.frontend.torch_meaning import repeated


class Graph(torch.nn.Module):
{code}


capture = Path(__file__).with_name("capture.spyre")
raise SystemExit(repeated(capture, Graph(), {inputs}))
'''


def reproducer(kernel: SavedKernel, found: Finding, meaning: Meaning | None) -> str:
    """A script that repeats a fault with the capture beside it."""
    title = f"{found.fault.value} of kernel {found.kernel}."
    title = title[0].upper() + title[1:]
    if found.fault is Fault.REFERENCE and meaning is not None:
        code, inputs = meaning.code(parse_kernel(kernel.text))
        return _TORCH_SCRIPT.format(title=title, code=indent(code, "    "), inputs=inputs)
    return _SCRIPT.format(title=title)
