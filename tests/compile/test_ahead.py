"""Models made ready in one process and run in another: exported, compiled, packaged."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from torch import nn

from openspyre.frontend import ahead
from tests.device.conftest import fresh_python

# torch.export copies its own deprecated pytrees
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")
ROWS = torch.export.Dim("rows", min=1, max=8)
QUICK = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.wide = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Conv1d(5, 4, 3, padding=1)
        self.register_buffer("shift", torch.arange(16.0))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.wide(self.table(ids) + x) + self.shift)
        return self.last(nn.functional.gelu(hidden)).softmax(-1), hidden.sum(0)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval().to("spyre")


def arguments(rows: int, device: str = "spyre") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 11, (rows, 5), generator=generator)
    return ids.to(device), torch.randn(rows, 5, 8, generator=generator).to(device)


def exported(model: Model) -> torch.export.ExportedProgram:
    return torch.export.export(model, arguments(3), dynamic_shapes=({0: ROWS}, {0: ROWS}))


def same(got: object, wanted: object) -> None:
    assert isinstance(got, (tuple, list))
    assert isinstance(wanted, (tuple, list))
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.is_spyre
        torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_exported(model: Model) -> None:
    program = exported(model)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer)
    for rows in (1, 5):
        wanted = model(*arguments(rows))
        same(program.module()(*arguments(rows)), wanted)
        same(again.module()(*arguments(rows)), wanted)
    compiled = torch.compile(again.module())
    same(compiled(*arguments(5)), model(*arguments(5)))
    same(program.run_decompositions().module()(*arguments(2)), model(*arguments(2)))
    with pytest.raises(AssertionError, match="Guard failed"):
        program.module()(*arguments(9))


def test_moved_after_export(model: Model) -> None:
    from torch.export.passes import move_to_device_pass

    model = copy.deepcopy(model).cpu()
    here = torch.export.export(model, arguments(3, "cpu"))
    wanted = model(*arguments(3, "cpu"))
    same(move_to_device_pass(here, "spyre").module()(*arguments(3)), wanted)


# What another process may not load: it has only what the first one made.
WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {refused}:
            raise ImportError("this process has no " + name)
sys.meta_path.insert(0, Refuse())
import torch, openspyre
openspyre.require()
cases = torch.load("cases.pt")
"""
COMPILER = ("openspyre.compiler.pipeline", "openspyre.frontend.scheduling")


@pytest.fixture
def other(model: Model, tmp_path: Path) -> Callable[[str], CompletedProcess[str]]:
    cases = []
    for rows in (1, 3, 8):
        wanted = tuple(t.detach().cpu() for t in model(*arguments(rows)))
        cases.append((arguments(rows), wanted))
    torch.save(cases, tmp_path / "cases.pt")

    def run(code: str) -> CompletedProcess[str]:
        return fresh_python(WITHOUT.format(refused=COMPILER) + code, tmp_path)

    return run


PACKAGE = """
run = torch._inductor.aoti_load_package("model.pt2")
def check(function, cases):
    for arguments, wanted in cases:
        for ours, theirs in zip(function(*arguments), wanted, strict=True):
            assert ours.is_spyre
            torch.testing.assert_close(ours.cpu(), theirs)
check(run, cases)
assert torch.spyre.fallbacks() == {}
assert not any(name.startswith("openspyre.compiler") for name in sys.modules)
def fails(kind, words, *arguments):
    try:
        run(*arguments)
        torch.spyre.synchronize()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError("nothing was raised")
(ids, x), _ = cases[1]
fails(RuntimeError, "is on cpu, the package runs on spyre:0", ids.cpu(), x.cpu())
many = ids[:1].repeat(20, 1), x[:1].repeat(20, 1, 1)
fails(RuntimeError, "holds no program for the sizes [20]", *many)
fails(IndexError, "index 77 is out of range for a dimension of size 11", ids.fill_(77), x)
before = run(*cases[0][0])[1].cpu()
for value, device in ((5.0, "cpu"), (7.0, "spyre")):
    constants = {"norm.bias": torch.full((16,), value, device=device)}
    run.load_constants(constants, check_full_update=False)
    torch.testing.assert_close(run(*cases[0][0])[1].cpu(), before + value)
(ids, x), _ = cases[0]
torch.spyre.synchronize()
torch.spyre.set_per_process_memory_fraction(0)
kept = []
try:
    while True:
        kept.append(torch.empty(1, device="spyre"))
except torch.OutOfMemoryError:
    pass
fails(torch.OutOfMemoryError, "(needed by ", ids, x)
fails(torch.OutOfMemoryError, "OPENSPYRE_MEMORY", ids, x)
torch.spyre.set_per_process_memory_fraction(1)
torch.testing.assert_close(run(ids, x)[1].cpu(), run(ids, x)[1].cpu())
"""


def test_a_package_runs_without_the_compiler(
    model: Model, tmp_path: Path, other: Callable[[str], CompletedProcess[str]]
) -> None:
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            exported(model), package_path=f"{tmp_path}/model.pt2", inductor_configs=QUICK
        )
    done = other(PACKAGE)
    assert done.returncode == 0, done.stderr
    assert "outdated" not in done.stderr


def test_a_package_of_another_version_is_refused(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library says which calls it was made for; what is in memory after that is not run."""
    calls = ahead._CALLS.read_text()
    older = tmp_path / "package_calls.h"
    older.write_text(calls.replace("kPackageVersion = ", "kPackageVersion = 100"))
    monkeypatch.setattr(ahead, "_CALLS", older)
    path = f"{tmp_path}/model.pt2"
    program = torch.export.export(nn.ReLU(), (torch.ones(3, device="spyre"),))
    torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=QUICK)
    with pytest.raises(RuntimeError, match=r"version 100\d .*has version \d\s+try: make the pack"):
        torch._inductor.aoti_load_package(path)


# --- compiled by Inductor, kept by its own means ------------------------------------------------

NOTHING_LOWERED = """
import torch, openspyre
openspyre.require()
from torch._inductor import compile_fx
def refuse(*_, **__):
    raise AssertionError("compiled again")
compile_fx.fx_codegen_and_compile = refuse
"""
LOADED = (
    NOTHING_LOWERED
    + """
x, y, wanted = torch.load("case.pt")
run = torch._inductor.CompiledArtifact.load(path="artifact", format="binary")
(found,) = run(x.to("spyre"), y.to("spyre"))
assert found.is_spyre
torch.testing.assert_close(found.cpu(), wanted)
assert torch.spyre.fallbacks() == {}
print("fine")
"""
)


def test_standalone_compile(tmp_path: Path) -> None:
    graphs: list[tuple[torch.fx.GraphModule, Sequence[object]]] = []

    def keep(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> torch.fx.GraphModule:
        graphs.append((graph, inputs))
        return graph

    x, y = torch.randn(4, 5, device="spyre"), torch.randn(5, device="spyre")
    torch._dynamo.reset()
    torch.compile(lambda x, y: torch.softmax(x * y + 1, -1), backend=keep, dynamic=False)(x, y)
    graph, inputs = graphs[0]
    compiled = torch._inductor.standalone_compile(graph, inputs)
    wanted = torch.softmax(x.cpu() * y.cpu() + 1, -1)
    torch.testing.assert_close(compiled(x, y)[0].cpu(), wanted)
    compiled.save(path=f"{tmp_path}/artifact", format="binary")
    torch.save((x.cpu(), y.cpu(), wanted), tmp_path / "case.pt")
    done = fresh_python(LOADED, tmp_path, TORCHINDUCTOR_CACHE_DIR="empty")
    assert done.stdout == "fine\n", done.stderr


WRITER = """
import torch, openspyre
openspyre.require()
def model(x, w):
    return (torch.relu(x @ w) + 1).softmax(-1)
x, w = torch.ones(3, 8, device="spyre"), torch.ones(8, 5, device="spyre", requires_grad=True)
def run():
    found = torch.compile(model)(x, w)
    found[:, 0].sum().backward()
    torch.testing.assert_close(found.detach().cpu(), torch.full((3, 5), 0.2))
    assert w.grad.is_spyre
"""
SAVES = """
from model import *
run()
data, info = torch.compiler.save_cache_artifacts()
assert len(info.inductor_artifacts) == 2, info
open("artifacts", "wb").write(data)
print("fine")
"""
READS = (
    NOTHING_LOWERED
    + """
assert torch.compiler.load_cache_artifacts(open("artifacts", "rb").read()) is not None
from model import *
run()
print("fine")
"""
)


def test_cache_artifacts_go_to_another_process(tmp_path: Path) -> None:
    """Its caches are empty, and it lowers no graph: forward and backward come as they were."""
    (tmp_path / "model.py").write_text(WRITER)
    for code, cache in ((SAVES, "first"), (READS, "second")):
        done = fresh_python(code, tmp_path, path=(tmp_path,), TORCHINDUCTOR_CACHE_DIR=cache)
        assert done.stdout == "fine\n", done.stderr
    assert {p.name for p in tmp_path.iterdir()} >= {"first", "second"}
    alone = "\n".join(line for line in READS.splitlines() if "load_cache" not in line)
    done = fresh_python(alone, tmp_path, path=(tmp_path,), TORCHINDUCTOR_CACHE_DIR="third")
    assert "compiled again" in done.stderr  # without them it would lower them
