"""Random graphs: no stage changes what they mean, the checker passes, the card agrees with the CPU.

`./dev test --long graphs` takes 2,000 and leaves `results/graphs.json`. A failure shows the
smallest kernel that fails; its text in `tests/data/kernels` makes it a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openspyre.compiler import pipeline
from openspyre.compiler.pipeline import STAGES, Stage
from openspyre.ir.kernel import Call, Kernel, Kind
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.spec import CardSpec
from tests.compile.graph_checks import complaint, examined, fault
from tests.lanes import BEGUN
from tests.random_graphs import Graph, random_graph
from tests.random_kernels import changed_stage, of_ops, planned, problem, smallest
from tests.results import write_result

FAST, LONG = 100, 2000
BATCH = 10  # graphs of one test
TOLD = 30.0  # seconds between lines of progress
# torch 2.13 uses its own deprecated `check` in the lowering of diagonal
pytestmark = pytest.mark.filterwarnings("ignore:`torch._prims_common.check`:FutureWarning")
FOUND = sorted((Path(__file__).parents[1] / "data" / "kernels").glob("*.txt"))


@pytest.mark.parametrize("first", range(0, FAST, BATCH))
def test_random_graphs(first: int) -> None:
    complaints = [text for seed in range(first, first + BATCH) if (text := examined(seed)[0])]
    assert not complaints, "\n\n".join(complaints)


@pytest.mark.timeout(4 * 3600)
def test_many_random_graphs(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if not request.config.getoption("--long"):
        return  # the test above takes the first hundred
    start = told = time.monotonic()
    complaints: list[str] = []
    kernels = ops = 0
    torch.spyre.reset_fallbacks()
    for seed in range(LONG):
        text, compiled = examined(seed)
        complaints += [text] if text else []
        kernels, ops = kernels + compiled, ops + len(random_graph(seed).nodes)
        if time.monotonic() - told > TOLD:
            told = time.monotonic()
            with capsys.disabled():
                print(
                    f"graphs: {told - start:.0f} s: {seed + 1}, {len(complaints)} wrong", flush=True
                )
    found: dict[str, object] = {
        "graphs": LONG,
        "ops": ops,
        "kernels": kernels,
        "wrong": len(complaints),
    }
    found |= {"fallbacks": sum(torch.spyre.fallbacks().values()), "complaints": complaints}
    write_result("graphs", {**found, "seconds": round(time.monotonic() - start)}, begun=BEGUN)
    assert not complaints, "\n\n".join(complaints)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_kernels_that_once_failed(path: Path) -> None:
    assert problem(parse_kernel(path.read_text())) == ""


# --- the checks can fail ------------------------------------------------------------------------

SMALL = """kernel small
arguments x w y z
input x: f32[6, 70]
input w: f32[9, 70]
output y: f32[6, 9]
output z: f32[6]
local e: f32[6, 70]
local m: f32[6]
op a reduce i0:6 | r0:70
  m[i0] <- max: x[i0, r0]
op b map i0:6 i1:70
  e[i0, i1] <- exp(x[i0, i1] - m[i0])
op c reduce i0:6 | r0:70
  z[i0] <- sum: e[i0, r0]
op d contract i0:6 i1:9 | r0:70
  y[i0, i1] <- sum: e[i0, r0] * w[i1, r0]
"""


def without_exp(kernel: Kernel, card: CardSpec) -> Kernel:
    """A stage that is wrong: it leaves every `exp` out."""

    def changed(body: object) -> object:
        match body:
            case Call("exp", (inner,)):
                return changed(inner)
            case Call(op, args, dtype):
                return Call(op, tuple(changed(a) for a in args), dtype)  # type: ignore[misc]
        return body

    return replace(
        kernel,
        ops=tuple(replace(op, body=changed(op.body)) for op in kernel.ops),  # type: ignore[arg-type]
    )


def with_stage(name: str, run: Callable[[Kernel, CardSpec], Kernel]) -> tuple[Stage, ...]:
    return tuple((n, run if n == name else r, check) for n, r, check in STAGES)


@pytest.fixture
def wrong_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage leaves every `exp` out."""
    choose = STAGES[1][1]
    wrong = with_stage("choose_layouts", lambda k, card: choose(without_exp(k, card), card))
    monkeypatch.setattr(pipeline, "STAGES", wrong)


def test_a_small_kernel_is_right() -> None:
    assert problem(parse_kernel(SMALL)) == ""


@pytest.mark.usefixtures("wrong_layouts")
def test_a_stage_that_changes_the_meaning_is_named() -> None:
    kernel = parse_kernel(SMALL)
    assert changed_stage(kernel, planned(kernel)[1]).startswith("stage choose_layouts changes ")


@pytest.mark.usefixtures("wrong_layouts")
def test_a_failing_kernel_shrinks_to_the_op_at_fault() -> None:
    small = smallest(parse_kernel(SMALL))
    assert [op.name for op in small.ops] == ["b"]
    assert parse_kernel(print_kernel(small)) == small  # it can become a test
    assert problem(small)


@pytest.mark.usefixtures("wrong_layouts")
def test_a_failing_graph_is_told_with_the_kernel() -> None:
    seed = next(s for s in range(100) if "exp()" in random_graph(s).text)
    graph = random_graph(seed)
    found, compiled = fault(graph)
    assert found.startswith("stage choose_layouts changes ")
    text = complaint(graph, found, compiled, dynamic=False)
    kernel = parse_kernel(text[text.index("kernel ") :])
    assert len(kernel.ops) == 1
    assert problem(kernel)


def test_a_wrong_result_is_told_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no kernel is at fault for: the importer's mistakes."""
    graph = next(g for g in map(random_graph, range(100)) if "exp()" in g.text)
    plain = Graph.function

    def wrong(self: Graph, *, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        nodes = tuple(replace(n, text=n.text.replace("exp()", "exp2()")) for n in self.nodes)
        right, other = plain(self, wide=wide), plain(replace(self, nodes=nodes))
        return lambda *x: other(*x) if x[0].device.type == "spyre" else right(*x)

    monkeypatch.setattr(Graph, "function", wrong)
    found, compiled = fault(graph)
    assert found.startswith("values of ")
    text = complaint(graph, found, compiled, dynamic=False)
    assert text.count(" = ") <= 2  # the op, and what makes it a result
    assert "exp()" in text


def test_ops_taken_out_of_a_kernel_are_a_kernel() -> None:
    kernel = parse_kernel(SMALL)
    part = of_ops(kernel, kernel.ops[1:2])
    assert {t.name: t.role.value for t in part.tensors.values()} == {
        "x": "input", "e": "output", "m": "input",
    }  # fmt: skip
    assert set(part.arguments) == {"x", "m", "e"}
    assert problem(part) == ""


def test_graphs_are_the_same_for_a_seed_and_hold_what_they_should() -> None:
    texts = [random_graph(seed).text for seed in range(FAST)]
    assert texts == [random_graph(seed).text for seed in range(FAST)]
    assert all(2 <= len(random_graph(seed).nodes) <= 12 for seed in range(FAST))
    whole = "".join(texts)
    for word in ("@", "F.linear", ".sum(", "softmax(", "index_select", "gather", "_(", ".expand(",
                 "cat(", "where(", ".flip(", "unfold", "var(", "argmax", ":2]"):  # fmt: skip
        assert word in whole, word
    assert any(op.kind is Kind.CONTRACT for op in parse_kernel(SMALL).ops)
