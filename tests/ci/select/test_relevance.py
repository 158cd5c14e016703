"""Stage 2: the rules, each by a change that it decides and one beside it that it does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from openspyre.ci.select.stages.agent import NoAnswer, Question, command, consult, question
from openspyre.ci.select.stages.diff import Change, diff_of
from openspyre.ci.select.stages.errors import SelectionError
from openspyre.ci.select.stages.knowledge import (
    History,
    Past,
    capability_of,
    history_of,
    policy_of,
)
from openspyre.ci.select.stages.plan import label_text, labels_from
from openspyre.ci.select.stages.relevance import Judged, Label, World, judge, judged, tables_of
from tests.ci.select.openreg import LAYOUT, enumerated, openreg
from tests.ci.select.planted_changes import ONE, suite

SUITE = "test_it.py::TestA::test_x"
YAML = {
    "files": [
        {
            "path": "test_it.py",
            "guards": {"bypass": ["TestFree"]},
            "rules": [{"id": "A-1", "test": "TestA::test_asked", "verdict": "gate"}],
        }
    ]
}


def label(text: str, *, id: str = SUITE, ops: tuple[str, ...] = (), history: History | None = None,
          path: str = "test_it.py") -> Judged:  # fmt: skip
    found = enumerated({f"test/{path}": text})
    world = World(
        openreg(), policy_of([YAML]), history or History(), tables_of(found, LAYOUT)
    )  # fmt: skip
    return judge(Change(id, ("body",), ops=ops), found.by_id()[id], world)


def method(decorators: str, body: str = "pass", **kw: object) -> str:
    return suite(f"{decorators}\ndef test_x(self, device, dtype=None, op=None):\n    {body}\n")


@pytest.mark.parametrize(
    ("decorators", "body", "rule"),
    [
        ("@onlyCUDA", "pass", "R03"),
        ("@onlyCPU", "pass", "R03"),
        ("@common_device_type.onlyMPS", "pass", "R03"),
        ("@onlyNativeDeviceTypes", "pass", "R99"),
        ("@onlyCUDAAndPRIVATEUSE1", "pass", "R99"),
        ("@onlyAccelerator", "pass", "R99"),
        ("@onlyPRIVATEUSE1", "pass", "R99"),
        ("@onlyOn(['cuda', 'xpu'])", "pass", "R03"),
        ("@onlyOn(['cuda', 'openreg'])", "pass", "R99"),
        ("@skipPRIVATEUSE1", "pass", "R03"),
        ("@skipOpenreg", "pass", "R03"),
        ("@skipMeta", "pass", "R99"),
        ("@skipCUDAIf(True, 'x')", "pass", "R99"),
        ("@unittest.skipIf(not TEST_CUDA, 'x')", "pass", "R03"),
        ("@unittest.skipIf(TEST_CUDA, 'x')", "pass", "R99"),
        ("@unittest.skipUnless(torch.cuda.is_available(), 'x')", "pass", "R03"),
        ("@deviceCountAtLeast(2)", "pass", "R05"),
        ("@deviceCountAtLeast(1)", "pass", "R99"),
        ("@unittest.skipIf(not TEST_MAGMA, 'x')", "pass", "R06"),
        ("", "torch.sparse_coo_tensor([1])", "R06"),
        ("", "device.to_sparse_csr()", "R06"),
        ("", "torch.quantize_per_tensor(1)", "R06"),
        ("@dtypes(torch.cfloat, torch.complex128)", "pass", "R06"),
        ("@dtypes(torch.cfloat, torch.float)", "pass", "R99"),
        ("@ops([op for op in op_db if op.name == 'sin'], dtypes=OpDTypes.supported_backward)",
         "pass", "R07"),
        ("@ops(op_db, dtypes=OpDTypes.supported_backward)", "pass", "R10"),
        ("@ops([op for op in op_db if op.name in ('div.floor',)])", "pass", "R08"),
        ("@ops([op for op in op_db if op.name != 'sin'])", "pass", "R10"),
        ("@ops(unary_ops)", "pass", "R10"),
        ("@dtypes(torch.double)", "pass", "R09"),
        ("@dtypes(torch.double, torch.half)", "pass", "R99"),
        ("@dtypes(*floating_types())", "pass", "R99"),
        ("@dtypesIfPRIVATEUSE1(torch.float)\n@dtypes(torch.double)", "pass", "R99"),
        ("@ops(op_db)", "pass", "R10"),
        ("", "torch.add(1, 2)", "R10"),
        ("", "device.add_(2)", "R10"),
        ("", "pass", "R99"),
    ],
)  # fmt: skip
def test_a_rule_decides(decorators: str, body: str, rule: str) -> None:
    found = label(method(decorators, body))
    assert found.rule == rule, found.evidence
    assert found.label is {"R10": Label.RELEVANT, "R99": Label.UNSURE}.get(rule, Label.IRRELEVANT)
    if rule != "R99":
        assert found.evidence[0].startswith("test/test_it.py:")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("only_for='cpu'", "R03"), ("only_for=('cuda', 'openreg')", "R99"),
        ("only_for=('privateuse1',)", "R99"), ("except_for=('openreg',)", "R03"),
        ("except_for='cpu'", "R99"), ("only_for=chosen", "R99"),
    ],
)  # fmt: skip
def test_where_classes_are_made(arguments: str, rule: str) -> None:
    text = suite(ONE).replace("globals())", f"globals(), {arguments})")
    assert label(text).rule == rule


def test_not_generic() -> None:
    assert label(suite(ONE, generic=False)).rule == "R04"


def test_what_is_asked_comes_before_guards() -> None:
    text = suite("@onlyCUDA\ndef test_asked(self):\n    pass\n")
    found = label(text, id="test_it.py::TestA::test_asked")
    assert (found.rule, found.label) == ("R02", Label.RELEVANT)
    assert "A-1" in found.evidence[0]


def test_what_ran_before() -> None:
    history = History({SUITE: Past(passed=1, last="passed")})
    assert label(suite(ONE, generic=False), history=history).rule == "R02"


def test_a_lifted_guard() -> None:
    text = suite("@onlyCPU\ndef test_x(self):\n    pass\n", name="TestFree")
    assert label(text, id="test_it.py::TestFree::test_x").rule == "R99"


def test_a_file_of_a_feature_that_is_absent() -> None:
    id = "test_sparse_it.py::TestA::test_x"
    assert label(suite(ONE), id=id, path="test_sparse_it.py").rule == "R06"


@pytest.mark.parametrize(("ops", "rule"), [(("div.floor",), "R08"), (("add", "div.floor"), "R10")])
def test_entries_of_tables(ops: tuple[str, ...], rule: str) -> None:
    found = label(method("@ops(op_db)"), ops=ops)
    assert found.rule == rule
    assert found.ops == (ops if rule == "R10" else ())


def test_modules_are_no_ops() -> None:
    modules = "torch/testing/_internal/common_modules.py"
    text = suite("@modules(module_db)\ndef test_x(self, info):\n    pass\n",
                 top="from torch.testing._internal.common_modules import module_db")  # fmt: skip
    found = enumerated({
        "test/test_it.py": text, modules: "module_db = [ModuleInfo(torch.nn.Linear)]\n",
    })  # fmt: skip
    assert found.by_id()[SUITE].tables
    world = World(openreg(), tables=tables_of(found, LAYOUT))
    assert judge(Change(SUITE, ("body",)), found.by_id()[SUITE], world).rule == "R99"


def test_every_change_has_one_label() -> None:
    base = enumerated({"test/test_it.py": suite(ONE)})
    head = enumerated(
        {"test/test_it.py": suite(ONE.replace("1, 1", "2, 2")), "test/test_b.py": "("}
    )
    diff = diff_of(base, head, LAYOUT)
    labels = judged(diff, base, head, World(openreg()))
    assert [one.id for one in labels] == [change.id for change in diff.changes]
    assert {one.id: one.rule for one in labels} == {SUITE: "R99", "test_b.py::*": "R99"}
    assert labels_from(label_text(labels)) == labels


@pytest.mark.parametrize(
    ("kind", "rule", "path"),
    [
        ("infra", "R01", "a.py::f"), ("opinfo", "R01", "a.py::db::add"),
        ("product", "R11", "a.cpp"),
        ("product", "R12", "README.md"), ("data", "R12", "test/a.txt"),
    ],
)  # fmt: skip
def test_what_is_no_test(kind: str, rule: str, path: str) -> None:
    assert judge(Change(f"{kind}::{path}", (kind,)), None, World(openreg())).rule == rule


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda v: capability_of(v, "openreg"), {}),
        (lambda v: capability_of(v, "openreg"), {"ops": {"add": {}}}),
        (lambda v: policy_of([v]), {"files": [{}]}),
        (lambda v: policy_of([v]), []),
        (history_of, {"id": {"other": 1}}),
        (history_of, []),
    ],
)
def test_bad_input_is_told(read: object, value: object) -> None:
    with pytest.raises(SelectionError):
        read(value)  # type: ignore[operator]


# --- the agent ------------------------------------------------------------------------------

UNSURE = Judged("a", Label.UNSURE, "R99", ("no rule decides",), ops=("add",))
SURE = Judged("b", Label.IRRELEVANT, "R04", ("no",))
ASKED = {id: question(id, "one\ntwo\nthree", 1, 2, "hunk", "sha256:0") for id in "ab"}


def answer(**changes: object) -> str:
    given = {"id": "a", "label": "irrelevant", "cited_lines": [2], "why": "it is so", **changes}
    return json.dumps({"answers": [given]})


def test_an_answer_counts() -> None:
    found = consult([UNSURE, SURE], ASKED, lambda _: answer(), name="oracle")
    assert found.labels[0] == Judged(
        "a", Label.IRRELEVANT, "agent", ("it is so", "2: two"), ("add",), "oracle"
    )
    assert (found.labels[1], found.changed, found.problem) == (SURE, 1, "")


@pytest.mark.parametrize(
    "text",
    [
        answer(id="b"), answer(id="other"), answer(cited_lines=[3]), answer(cited_lines=[]),
        answer(cited_lines=["2"]), answer(cited_lines=[True]), answer(cited_lines=None),
        answer(label="maybe"), answer(label="unsure"), answer(label=1), answer(why=None), "{", "[]",
        "", '{"answers": 1}', '{"answers": [1]}', '{"answers": [{"id": ["a"]}]}',
        json.dumps({"answers": [json.loads(answer())["answers"][0]] * 2}),
    ],
)  # fmt: skip
def test_an_answer_does_not_count(text: str) -> None:
    found = consult([UNSURE, SURE], ASKED, lambda _: text, name="liar")
    assert found.labels == (UNSURE, SURE)
    assert found.changed == 0
    assert found.refused or found.problem or json.loads(text)["answers"] != []


def test_an_agent_that_fails(tmp_path: Path) -> None:
    def program(text: str) -> list[str]:
        return [sys.executable, "-c", text]

    for words, seconds, why in (
        (program("import time; time.sleep(20)"), 0.3, "no answer within"),
        (program("raise SystemExit(3)"), 10, "exit code 3"),
        ([str(tmp_path / "missing")], 10, "does not run"),
    ):
        found = consult([UNSURE], ASKED, command(words, seconds), name="x")
        assert found.labels == (UNSURE,)
        assert why in found.problem
    text = "import sys, json; b = json.load(sys.stdin)['batch'][0]; print(json.dumps({'answers':"
    text += (
        " [{'id': b['id'], 'label': 'relevant', 'cited_lines': [1], 'why': b['source']['1']}]}))"
    )
    found = consult([UNSURE], ASKED, command(program(text), 20), name="x")
    assert found.labels[0].label is Label.RELEVANT


def test_answers_are_remembered_by_content(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return answer()

    for _ in range(2):
        found = consult([UNSURE], ASKED, ask, name="x", cache=tmp_path)
        assert found.labels[0].label is Label.IRRELEVANT
    assert len(asked) == 1
    other = {"a": Question("a", {"1": "other", "2": "two"}, "hunk", "sha256:0")}
    consult([UNSURE], other, ask, name="x", cache=tmp_path)
    assert len(asked) == 2
    (next(iter(tmp_path.iterdir()))).write_text("{")
    consult([UNSURE], ASKED, ask, name="x", cache=tmp_path)
    consult([UNSURE], other, ask, name="x", cache=tmp_path)
    assert len(asked) == 3


def test_the_cost_cap_asks_nothing() -> None:
    def ask(_: str) -> str:
        raise NoAnswer("it was asked")

    found = consult([UNSURE], ASKED, ask, name="x", most=0)
    assert found.labels == (UNSURE,)
    assert "more than the 0" in found.problem
