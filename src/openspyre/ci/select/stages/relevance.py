"""Stage 2: ordered, pure rules say whether a change matters to a device, and on what evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from .diff import Change, Diff
from .knowledge import Ability, Capability, History, Policy
from .layout import Layout
from .records import Enumeration, Test


class Label(Enum):
    """What a rule says of a change."""

    RELEVANT = "relevant"
    IRRELEVANT = "irrelevant"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Judged:
    """A change and its label.

    Attributes:
        evidence: lines that anybody can look up.
        ops: full names of ops outside which the test does not matter; empty is no limit.
        decided_by: "rule", or the name of the agent.
    """

    id: str
    label: Label
    rule: str
    evidence: tuple[str, ...]
    ops: tuple[str, ...] = ()
    decided_by: str = "rule"


@dataclass(frozen=True, slots=True)
class World:
    """All that rules may look at."""

    capability: Capability
    policy: Policy = field(default_factory=Policy)
    history: History = field(default_factory=History)
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Found = tuple[Label, str]
Rule = Callable[[Change, Test, World], Found | None]

_OTHERS = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "meta", "lazy", "rocm", "mtia", "npu")
_SPECIAL = (
    r"TEST_CUDA\w*|TEST_MULTIGPU|TEST_MPS|TEST_XPU|TEST_HPU|TEST_WITH_ROCM|HAS_CUDA\w*|HAS_GPU\w*"
    r"|HAS_XPU\w*|HAS_MPS|RUN_CUDA\w*|RUN_GPU|torch\.(?:cuda|mps|xpu)\.is_available\(\)"
)
_NEEDS_OTHER = re.compile(
    rf"skip(?:Test)?If\(\s*not (?:{_SPECIAL})|skipUnless\(\s*(?:{_SPECIAL})"
    r"|\brequires?_(?:cuda|gpu|mps|xpu|rocm)\w*"
)
_COUNT = re.compile(
    r"(?:deviceCountAtLeast|skip_if_lt_x_gpu|requires_world_size|require_world_size)\((\d+)"
    r"|(?:not |skipUnless\()(TEST_MULTIGPU)|\b(?:requires_)?(multi_?gpu)\b", re.IGNORECASE,
)  # fmt: skip
_LIBRARIES = ("cudnn", "magma", "cusparse", "cusolver", "miopen", "nccl", "hipsparse", "cublas")
_SOURCE = (
    ".cpp", ".cc", ".c", ".h", ".hpp", ".cuh", ".cu", ".mm", ".metal", ".yaml", ".py", ".inl", ".td"
)  # fmt: skip
_FEATURES: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "sparse": (
        re.compile(r"(?i)(?<!non)sparse"),
        re.compile(r"\bto_sparse|^torch\.sparse[._]|sparse_(?:coo|cs[rc]|bs[rc]|compressed)_tensor"),
    ),
    "quantized": (
        re.compile(r"(?i)quantiz|(?<![a-z])qint|(?<![a-z])qtensor"),
        re.compile(r"quantize_per_|_make_per_\w+_quantized|_affine_quantized"),
    ),
    "graphs": (
        re.compile(r"(?i)cuda_?graph"), re.compile(r"CUDAGraph|make_graphed_callables|cuda\.graph"),
    ),
}  # fmt: skip
"""What a file or class is called, and what a test calls, that needs a feature."""
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    "short": "int16", "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip
_GRADIENT = re.compile(r"supported_backward|(?<!no_)grad(?:grad)?check|test_\w*grad(?:grad)?\b")
_OP_FILTER = re.compile(r"""["']([\w.]+)["']""")


def judged(diff: Diff, base: Enumeration, head: Enumeration, world: World) -> list[Judged]:
    """One label for each change, in the order of the diff."""
    old, new = base.by_id(), head.by_id()
    return [judge(c, new.get(c.id) or old.get(c.id), world) for c in diff.changes]


def judge(change: Change, test: Test | None, world: World) -> Judged:
    """The label of one change, by the first rule that says something."""
    if not change.is_test:
        return _no_test(change)
    if test is None:
        return Judged(change.id, Label.UNSURE, "R99", change.why)
    for name, rule in RULES:
        if (found := rule(change, test, world)) is not None:
            label, evidence = found
            ops = change.ops if label is not Label.IRRELEVANT else ()
            return Judged(change.id, label, name, (evidence, *change.why), ops)
    return Judged(change.id, Label.UNSURE, "R99", ("no rule decides", *change.why), change.ops)


def tables_of(enumeration: Enumeration, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Full names of the ops of a table, by what tests call it.

    Tables of modules and optimizers have no ops, and those of other files have ops of their own:
    a capability table says nothing of either.
    """
    found: dict[str, dict[str, None]] = {}
    for entry in enumeration.entries:
        if not layout.is_infra(entry.table.partition("::")[0]):
            continue
        for key in (entry.table, f"{entry.table}/{entry.maker}"):
            found.setdefault(key, {})[entry.full_name] = None
    return {key: tuple(names) for key, names in found.items()}


def _no_test(change: Change) -> Judged:
    kind = change.id.split("::")[0]
    if kind in ("infra", "opinfo"):
        reason = "all tests run in it: what reaches it has a line of its own"
        return Judged(change.id, Label.RELEVANT, "R01", (reason, *change.why))
    if kind == "product" and is_source(change.id):
        reason = "tests of the ops that its lines name run, else all gates"
        return Judged(change.id, Label.RELEVANT, "R11", (reason, *change.why))
    reason = "no part of the product; tests that name it have a line of their own"
    return Judged(change.id, Label.IRRELEVANT, "R12", (reason, *change.why))


def is_source(path: str) -> bool:
    """Whether what a file says becomes part of the product."""
    return path.endswith(_SOURCE)


def _at(test: Test, text: str) -> str:
    return f"{test.at}:{test.line}: {text}"


# --- rules ----------------------------------------------------------------------------------


def known(change: Change, test: Test, world: World) -> Found | None:
    """R02: somebody asks something of it, or it ran before."""
    for id in (change.id, change.was):
        if id and (rules := world.policy.of(id)):
            return Label.RELEVANT, f"rule {rules[0].id} of the YAML: {rules[0].verdict}"
        if id and (past := world.history.of(id)).last:
            return Label.RELEVANT, f"it ran before, and {past.last}"
    return None


def other_device(change: Change, test: Test, world: World) -> Found | None:
    """R03: its own words keep it to other devices."""
    owner = f"{test.file}::{test.cls}"
    device = world.capability.device
    names = {device, "privateuse1"}
    if test.file not in world.policy.for_custom:
        if test.only_for and not names & set(test.only_for):
            return Label.IRRELEVANT, _at(test, f"only_for={test.only_for}")
        if names & set(test.except_for):
            return Label.IRRELEVANT, _at(test, f"except_for={test.except_for}")
    if owner in world.policy.bypass:
        return None
    for guard in test.guards:
        if _is_for_others(guard, names):
            return Label.IRRELEVANT, _at(test, f"@{guard}")
    return None


def _is_for_others(guard: str, names: Iterable[str]) -> bool:
    word = guard.partition("(")[0].rpartition(".")[2].lower()
    if word.startswith("skip") and word.removeprefix("skip") in names:
        return True
    if word == "onlyon":
        listed = set(re.findall(r"['\"](\w+)['\"]", guard))
        return bool(listed) and not listed & set(names)
    if word.startswith("only"):
        only = word.removeprefix("only")
        return only in _OTHERS or (
            "and" in only and not any(name in only for name in names)
            and all(part in _OTHERS for part in only.split("and"))
        )  # fmt: skip
    return bool(_NEEDS_OTHER.search(guard))


def not_generic(change: Change, test: Test, world: World) -> Found | None:
    """R04: no class of it is made for our device."""
    if test.generic:
        return None
    return Label.IRRELEVANT, _at(test, f"no instantiate_device_type_tests({test.cls})")


def more_devices(change: Change, test: Test, world: World) -> Found | None:
    """R05: it needs more devices than there are."""
    for guard in test.guards:
        if found := _COUNT.search(guard):
            needed = int(found[1]) if found[1] else 2
            if needed > world.capability.devices:
                text = f"@{guard}: {needed} devices, there are {world.capability.devices}"
                return Label.IRRELEVANT, _at(test, text)
    return None


def absent_feature(change: Change, test: Test, world: World) -> Found | None:
    """R06: it needs what the device has not."""
    features = world.capability.features
    for feature, (named, used) in _FEATURES.items():
        if feature in features:
            continue
        texts = [t for t in (test.file, test.cls) if named.search(t)]
        texts += [t for t in (*test.calls, *test.called) if used.search(t)]
        if texts:
            return Label.IRRELEVANT, _at(test, f"{texts[0]}: the device has no {feature}")
    for library in _LIBRARIES:
        needs = re.compile(rf"(?:not |skipUnless\()(?:TEST|HAS)_{library}", re.IGNORECASE)
        if library not in features and (guard := next(filter(needs.search, test.guards), "")):
            return Label.IRRELEVANT, _at(test, f"@{guard}: the device has no {library}")
    wanted = _own_dtypes(test)
    if "complex" not in features and wanted and all(d.startswith("complex") for d in wanted):
        return Label.IRRELEVANT, _at(test, f"only {', '.join(wanted)}: the device has no complex")
    return None


def forward_only(change: Change, test: Test, world: World) -> Found | None:
    """R07: it takes gradients of ops that have none on the device."""
    ops = _ops(change, test, world)
    text = _gradient(test)
    if not ops or not text:
        return None
    able = [_able(op, world.capability) for op in ops if _inside(op, world.capability)]
    if able and not any(a.bwd for a in able):
        return Label.IRRELEVANT, _at(test, f"{text}: {_some(ops)} only go forward")
    return None


def outside(change: Change, test: Test, world: World) -> Found | None:
    """R08: all its ops are outside what the device can do."""
    ops = _ops(change, test, world)
    if not ops or any(_inside(op, world.capability) for op in ops):
        return None
    return Label.IRRELEVANT, _at(test, f"{_some(ops)}: outside the capability table")


def no_dtype(change: Change, test: Test, world: World) -> Found | None:
    """R09: no dtype of it is among those of the device."""
    wanted = set(_own_dtypes(test))
    dtypes = world.capability.dtypes
    if wanted and dtypes and not wanted & dtypes:
        return Label.IRRELEVANT, _at(test, f"{_some(wanted)}: none is a dtype of the device")
    ops = _ops(change, test, world)
    if wanted and ops:
        able = [_able(op, world.capability) for op in ops if _inside(op, world.capability)]
        if able and not any(wanted & _dtypes(a, test) for a in able):
            return Label.IRRELEVANT, _at(test, f"{_some(wanted)}: in none of these does an op work")
    return None


def inside(change: Change, test: Test, world: World) -> Found | None:
    """R10: the device can do what it asks."""
    ops = _ops(change, test, world)
    able = [op for op in ops if _inside(op, world.capability)]
    if able:
        return Label.RELEVANT, _at(test, f"{_some(able)}: inside the capability table")
    known_ops, missing = _called_ops(test, world.capability)
    if known_ops and not missing:
        return Label.RELEVANT, _at(test, f"it calls {_some(known_ops)}, which work")
    return None


RULES: tuple[tuple[str, Rule], ...] = (
    ("R02", known), ("R03", other_device), ("R04", not_generic), ("R05", more_devices),
    ("R06", absent_feature), ("R07", forward_only), ("R08", outside), ("R09", no_dtype),
    ("R10", inside),
)  # fmt: skip
"""In order; R01, R11 and R12 are for changes that are no tests, R99 for what none decides."""


def _inside(op: str, capability: Capability) -> bool:
    ability = capability.ops.get(op.removeprefix("_refs."))
    return ability is not None and ability.inside


def _able(op: str, capability: Capability) -> Ability:
    """What a reference in Python can do is what its op can."""
    return capability.ops[op.removeprefix("_refs.")]


def _dtypes(ability: Ability, test: Test) -> frozenset[str]:
    return ability.bwd if _gradient(test) else ability.fwd


def _gradient(test: Test) -> str:
    """Why it is taken for a test of gradients; empty if it is not."""
    for text in (*test.generated_by, *test.called):
        if _GRADIENT.search(text):
            return text
    return ""


def _ops(change: Change, test: Test, world: World) -> tuple[str, ...]:
    """The ops that it is generated for, where the source says which; else none."""
    if change.ops:
        return change.ops
    listed = {op for table in test.tables for op in world.tables.get(table, ())}
    for text in test.generated_by:
        if "!=" in text or "not in" in text:
            continue
        named = {n for n in _OP_FILTER.findall(text) if n in listed}
        if named and re.search(r"==|\bin\b", text):
            return tuple(sorted(named))
    return tuple(sorted(listed))


def _own_dtypes(test: Test) -> tuple[str, ...]:
    """Dtypes that a test lists itself; none where one is not written out."""
    found: list[str] = []
    if any("dtypesIfPRIVATEUSE1(" in text for text in test.generated_by):
        return ()  # those hold for our device
    for text in test.generated_by:
        if not re.match(r"(?:\w+\.)*dtypes\(", text):
            continue
        inner = text.partition("(")[2].removesuffix(")")
        for part in inner.split(","):
            word = re.fullmatch(r"\s*[\[(]?\s*torch\.(\w+)\s*[\])]?\s*", part)
            if word is None:
                return ()
            found.append(_DTYPES.get(word[1], word[1]))
    return tuple(found)


def _called_ops(test: Test, capability: Capability) -> tuple[list[str], list[str]]:
    """Ops that a test calls: those that work, and those that are known not to."""
    works: list[str] = []
    fails: list[str] = []
    names = {name.removeprefix("torch.") for name in test.calls}
    names |= {name.rstrip("_") for name in test.called}
    for name in sorted(names):
        if (ability := capability.ops.get(name)) is not None:
            (works if ability.inside else fails).append(name)
    return works, fails


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + more


def selected(labels: Iterable[Judged]) -> Iterator[Judged]:
    """What runs: relevant, or unsure."""
    return (one for one in labels if one.label is not Label.IRRELEVANT)
