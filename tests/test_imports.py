"""The import rule of docs: imports flow downhill, at the top of a file, torch from seams on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "openspyre"
# A part may import what stands in an earlier row, and its own row only itself.
ROWS = (
    ("spec", "numerics", "settings", "errors", "__init__", "_built"),
    ("ir",),
    ("compiler", "card", "_C"),
    ("runtime",),
    ("seams",),
    ("frontend", "device"),
    ("hf",),
    ("vllm", "ci", "tools", "testing"),
)
LEVEL = {part: level for level, row in enumerate(ROWS) for part in row}
TORCH_FROM = LEVEL["seams"]
# frontend and device belong together: an op of the device compiles, a compiled graph launches.
SIBLINGS = ({"frontend", "device"}, set(ROWS[0]))
FILES = sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(("openspyre", *(part for part in parts if part != "__init__")))


MODULES = frozenset(map(module_name, FILES))


def part_of(module: tuple[str, ...]) -> str:
    return module[0] if module else "__init__"


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement, with the module it names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, name.name) for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for name in names:
                    whole = f"{module}.{name.name}"
                    yield node, whole if whole in MODULES or module == "openspyre" else module


def for_types_only(tree: ast.AST) -> set[ast.stmt]:
    """Imports under `if TYPE_CHECKING:`: they are not executed."""
    found: set[ast.stmt] = set()
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                found |= {n for stmt in body for n in ast.walk(stmt) if isinstance(n, ast.stmt)}
    return found


def problems(file: Path, text: str) -> Iterator[str]:
    here = part_of(file.with_suffix("").parts)
    tree = ast.parse(text)
    level = LEVEL.get(here)
    if level is None:
        yield f"{file}: the rule knows no part {here!r}"
        return
    skipped = for_types_only(tree)
    for node, module in imported(tree):
        top, *rest = module.split(".")
        at = f"{file}:{node.lineno}: imports {module}"
        if top == "torch" and level < TORCH_FROM and here != "__init__":
            yield f"{at}, but torch comes from seams on"
        if top != "openspyre" or node in skipped:
            continue
        there = part_of(tuple(rest))
        allowed = there == here or LEVEL.get(there, 99) < level
        if not allowed and not any({here, there} <= row for row in SIBLINGS) and here != "__init__":
            yield f"{at}, which lies above or beside it"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_flow_downhill(file: Path) -> None:
    assert list(problems(file, (PACKAGE / file).read_text())) == []


@pytest.mark.parametrize("part", ["ir", "compiler", "card", "runtime"])
def test_nothing_below_the_frontend_imports_late(part: str) -> None:
    late = []
    for path in sorted((PACKAGE / part).rglob("*.py")):
        tree = ast.parse(path.read_text())
        top = {
            n for stmt in tree.body for n in ([stmt] if not isinstance(stmt, ast.If) else stmt.body)
        }
        for node, module in imported(tree):
            if module.split(".")[0] == "openspyre" and node not in top:
                late.append(f"{path.name}:{node.lineno}: {module}")
    assert late == []


def test_there_are_no_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for file in FILES:
        tree = ast.parse((PACKAGE / file).read_text())
        skipped = for_types_only(tree)
        top = set(tree.body)
        graph[module_name(file)] = {
            module for node, module in imported(tree) if node in top and node not in skipped
        }
    known = set(graph)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name in done:
            return
        for other in sorted(graph[name] & known):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(known):
        visit(name, ())


def test_the_environment_is_read_in_one_place() -> None:
    readers = []
    for file in FILES:
        if str(file) == "settings.py":
            continue
        for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr="getenv" | "environ"):
                    readers.append((str(file), node.lineno))
    # the demo keeps Hugging Face's hub client off the network before it is imported
    assert [r for r in readers if r[0] != "tools/demo.py"] == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("ir/a.py", "import torch", "torch comes from seams on"),
        ("ir/a.py", "def f():\n    from torch.fx import Node", "torch comes from seams on"),
        ("ir/a.py", "from openspyre.compiler.b import c", "above or beside"),
        ("card/a.py", "from openspyre.compiler.b import c", "above or beside"),
        ("compiler/a.py", "import openspyre.runtime.b", "above or beside"),
        ("device/a.py", "from openspyre import tools", "above or beside"),
        ("misc/a.py", "import os", "knows no part"),
    ],
)
def test_the_rule_notices(file: str, text: str, problem: str) -> None:
    assert any(problem in line for line in problems(Path(file), text))


def test_the_rule_allows_what_lies_below() -> None:
    text = "from openspyre.ir.kernel import Kernel\nfrom openspyre.errors import SpyreError"
    assert list(problems(Path("compiler/a.py"), text)) == []
