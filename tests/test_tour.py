"""docs/tour.md shows what the code prints today: every block is made again and compared."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch._inductor.utils import fresh_cache, run_and_get_code

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.ir.text_program import print_program
from openspyre.runtime.stages import changed_lines
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import run_program

TOUR = Path(__file__).parents[1] / "docs" / "tour.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```text (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def users_code(folder: Path, text: str) -> ModuleType:
    """The page's Python, as a module of its own."""
    match = PYTHON.search(text)
    assert match, "the tour shows no Python"
    path = folder / "tour.py"
    path.write_text(match[1])
    spec = importlib.util.spec_from_file_location("tour", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported_kernel(module: ModuleType) -> tuple[Kernel, torch.Tensor]:
    """What the importer made of the function, and what the device computed with it."""
    # Inductor's cache serves equal graphs of any function, with the lines of the first.
    with fresh_cache():
        result, (code,) = run_and_get_code(module.compiled, module.x.to("spyre"))
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Name(id="load_kernel"), args=[ast.Constant(value=str(text))]):
                return parse_kernel(text), result.cpu()
    raise AssertionError("the compiled module loads no kernel")


def changes(before: str, after: str) -> str:
    return "\n".join(changed_lines(before, after) or ["(nothing to do here)"]) + "\n"


def on_card(kernel: Kernel, x: torch.Tensor, device: torch.Tensor) -> str:
    name, output = kernel.arguments
    inputs = {name: x.numpy()}
    program = emit(kernel, SPYRE_CARD_V1)
    values, report = run_program(program, kernel, inputs)
    got = torch.from_numpy(values[output])
    oracle = torch.from_numpy(evaluate(kernel, inputs)[output])
    torch.testing.assert_close(got, oracle, atol=2e-6, rtol=1e-3)
    assert torch.equal(got, device)
    first, last = (
        ", ".join(f"{v:.5f}" for v in row.tolist()) for row in (got[0, :4], got[-1, -4:])
    )
    return (
        f"y[0, :4]       {first}\n"
        f"y[-1, -4:]     {last}\n"
        f"cycles         {report.cycles} ({SPYRE_CARD_V1.microseconds(report.cycles):.1f} us)\n"
        f"bound P        {report.bound_p_cycles} cycles: peak rates alone\n"
        f"cores          {report.cores}\n"
        f"SFU busy       {report.sfu_busy} cycles, summed over cores\n"
        f"device memory  {report.device_read_bytes} bytes read,"
        f" {report.device_write_bytes} written\n"
        f"LX peak        {report.lx_peak} bytes of the fullest core\n"
    )


def blocks(folder: Path, text: str) -> Mapping[str, str]:
    """Every printed block of the page, by the word behind its fence."""
    module = users_code(folder, text)
    kernel, device = imported_kernel(module)
    printed = [("importer", print_kernel(kernel))]
    planned = plan_kernel(
        kernel, SPYRE_CARD_V1, lambda name, k: printed.append((name, print_kernel(k)))
    )
    found = {"importer": printed[0][1]}
    found |= {name: changes(before, after) for (_, before), (name, after) in pairwise(printed)}
    found["program"] = print_program(emit(planned, SPYRE_CARD_V1))
    found["card"] = on_card(planned, module.x, device)
    return found


def test_the_tour_is_what_the_code_prints(
    tmp_path: Path, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # lines are shown with paths relative to it
    text = TOUR.read_text()
    made = blocks(tmp_path, text)
    assert [name for name, _ in BLOCK.findall(text)] == list(made)
    fresh = BLOCK.sub(lambda match: f"```text {match[1]}\n{made[match[1]]}```", text)
    if update_golden:
        TOUR.write_text(fresh)
    assert TOUR.read_text() == fresh, "run `./dev golden` and review the diff"


def test_the_tour_shows_every_stage() -> None:
    shown = [name for name, _ in BLOCK.findall(TOUR.read_text())]
    assert shown == ["importer", *(name for name, _, _ in STAGES), "program", "card"]


@pytest.mark.parametrize(("before", "after"), [("a\nb", "a\nb\nc"), ("a", "a")])
def test_changes_are_shown_line_by_line(before: str, after: str) -> None:
    expected = "+ c\n" if before != after else "(nothing to do here)\n"
    assert changes(before, after) == expected
