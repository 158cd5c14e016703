"""What changed and what matters, counted a second time in the plainest way, and edits to find."""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from openspyre.ci.select.stages.git import Repository

Key = tuple[str, str, str]
OTHERS = re.compile(
    r"\bonly(CPU|CUDA|MPS|XPU|HPU)\b|deviceCountAtLeast\([2-9]"
    r"|(not |skipUnless\()TEST_(CUDA|MULTIGPU)"
    r"|(not |skipUnless\()TEST_(CUDNN|MAGMA|CUSPARSE)|(not |skipUnless\()torch\.cuda\.is_available"
    r"|skip_if_lt_x_gpu\([2-9]|requires_(cuda|gpu)|(not |skipUnless\()(HAS|RUN)_(CUDA|GPU)"
    r"|(not |skipUnless\()TEST_(XPU|MPS|WITH_ROCM)|\bonlyOn\("
)
ABSENT = re.compile(
    r"to_sparse|torch\.sparse[._]|sparse_(coo|csr|csc|bsr|bsc|compressed)_tensor|quantize_per"
    r"|_affine_quantized|CUDAGraph|make_graphed_callables|cuda\.graph"
)

NAMED_FOR_ABSENT = re.compile(r"(?i)(?<!non)sparse|quantiz|qint|qtensor|cuda_?graph")


@dataclass(frozen=True)
class Plain:
    """A method as the design counts it: docstrings count as body."""

    body: str
    arguments: str
    decorators: str
    generic: bool
    here: bool  # nothing that is written beside it keeps it from the device


@dataclass(frozen=True)
class Tree:
    """The test files of a ref, and the methods `test*` of their top-level classes."""

    files: Mapping[str, bytes]
    methods: Mapping[Key, Plain]


def tree_of(repository: Repository, ref: str, device: str) -> Tree:
    blobs = {
        path: blob for path, blob in repository.files(ref, ["test"]).items()
        if path.endswith(".py") and path.rpartition("/")[2].startswith("test_")
    }  # fmt: skip
    contents = dict(repository.contents(blobs.values()))
    files = {path: contents[blob] for path, blob in blobs.items()}
    methods = {
        (path, cls, name): method
        for path, data in files.items()
        for cls, name, method in _methods(path, data, device)
    }
    return Tree(files, methods)


def parsed(data: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data)


def tests_in(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for cls in tree.body:
        for method in cls.body if isinstance(cls, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                assert isinstance(cls, ast.ClassDef)
                yield cls, method


def _methods(path: str, data: bytes, device: str) -> Iterator[tuple[str, str, Plain]]:
    tree = parsed(data)
    made: dict[str, list[str]] = {}
    for call in ast.walk(tree):
        match call:
            case ast.Call(
                func=ast.Name(id="instantiate_device_type_tests"), args=[ast.Name(id=name), *_]
            ):
                made.setdefault(name, []).append(ast.unparse(call))
    for cls, method in tests_in(tree):
        calls = made.get(cls.name, [])
        decorators = list(map(ast.unparse, [*method.decorator_list, *cls.decorator_list]))
        here = (
            any(_for(call, device) for call in calls)
            and not OTHERS.search(" ".join(decorators))
            and not re.search(
                r"(?i)(?<!non)sparse|quantiz|qint|qtensor|cuda_?graph", path + cls.name
            )
            and not ABSENT.search(ast.unparse(method))
            and not _has_no_dtype(decorators)
        )
        yield cls.name, method.name, Plain(
            "".join(map(ast.dump, method.body)), ast.dump(method.args),
            "".join(map(ast.dump, method.decorator_list)), bool(calls), here,
        )  # fmt: skip


def _for(call: str, device: str) -> bool:
    only = re.search(r"only_for=([(\[][^)\]]*[)\]]|'\w+')", call)
    return only is None or device in only[1] or "privateuse1" in only[1]


def _has_no_dtype(decorators: list[str]) -> bool:
    """Whether it lists dtypes, and the card has none of them."""
    listed = [d for d in decorators if re.match(r"dtypes\(", d)]
    words = {w for d in listed for w in re.findall(r"torch\.(\w+)", d)}
    plain = all(re.fullmatch(r"dtypes\(((torch\.\w+)(, )?)+\)", d) for d in listed)
    others = {"double", "float64", "cdouble", "cfloat", "complex64", "complex128", "int32", "int",
              "int8", "int16", "uint8", "short", "chalf", "complex32"}  # fmt: skip
    return bool(words) and plain and words <= others


def changed(old: Tree, new: Tree) -> dict[str, list[Key]]:
    """The design's counts."""
    one, other = old.methods, new.methods
    both = sorted(one.keys() & other.keys())
    return {
        "added": sorted(other.keys() - one.keys()),
        "removed": sorted(one.keys() - other.keys()),
        "body": [k for k in both if one[k].body != other[k].body],
        "decorators": [
            k for k in both
            if (one[k].body, one[k].arguments) == (other[k].body, other[k].arguments)
            and one[k].decorators != other[k].decorators
        ],
    }  # fmt: skip


def edited(tree: Tree, seed: int, most: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """One edit in each of some files, and the ids of tests it changed with the kind of edit."""
    choose = random.Random(seed)
    files = sorted({path for (path, *_), method in tree.methods.items() if method.here})
    changed_files: dict[str, bytes] = {}
    ids: dict[str, str] = {}
    for path in choose.sample(files, min(most, len(files))):
        tests = [
            (cls, method) for cls, method in tests_in(parsed(tree.files[path]))
            if tree.methods[path, cls.name, method.name].here
            and method.body[0].lineno > method.lineno
        ]  # fmt: skip
        if not tests:
            continue
        cls, method = choose.choice(tests)
        kind = choose.choice(EDITS)
        text = _edit(tree.files[path].decode(), cls, method, kind)
        if text:
            name = f"{method.name}_renamed" if kind == "rename" else method.name
            changed_files[path] = text.encode()
            ids[f"{path.removeprefix('test/')}::{cls.name}::{name}"] = kind
    return changed_files, ids


EDITS = ("body", "decorator", "rename", "attribute", "helper", "parameter")


def _edit(text: str, cls: ast.ClassDef, method: ast.FunctionDef, kind: str) -> str:
    lines = text.split("\n")
    indent = " " * method.col_offset
    first = min([method.lineno, *(d.lineno for d in method.decorator_list)]) - 1
    match kind:
        case "body":
            last = method.body[-1]
            lines.insert(last.lineno - 1, " " * last.col_offset + "planted = 1")
        case "decorator":
            lines.insert(first, f"{indent}@skipMeta")
        case "parameter":
            lines.insert(first, f"{indent}@parametrize('planted', [1])")
        case "attribute":
            lines.insert(cls.body[-1].end_lineno or 0, f"{indent}planted = 1")
        case "rename":
            at = method.lineno - 1
            lines[at] = lines[at].replace(f"def {method.name}(", f"def {method.name}_renamed(")
        case "helper":
            called = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)}
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and node.name in called:
                    start = node.body[-1]
                    lines.insert(start.lineno - 1, " " * start.col_offset + "planted = 1")
                    return "\n".join(lines)
            return ""
    return "\n".join(lines)
