"""Stage 1: each planted change of *up* is found, of its kind, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.ci.select.stages.diff import Diff, diff_from, diff_of, diff_text
from openspyre.ci.select.stages.enumeration import enumerate_ref
from openspyre.ci.select.stages.errors import SelectionError
from openspyre.ci.select.stages.git import Repository
from openspyre.ci.select.stages.layout import Layout
from openspyre.ci.select.stages.records import Enumeration, enumeration_of, enumeration_text
from tests.ci.select.openreg import LAYOUT, enumerated
from tests.ci.select.planted_changes import CASES, HEAD, INFRA, ONE, TWO, suite, trees
from tests.ci.select.repositories import make_repository

UTILS = "torch/testing/_internal/common_utils.py"
DEVICES = "torch/testing/_internal/common_device_type.py"
METHODS = "torch/testing/_internal/common_methods_invocations.py"
CORE = "torch/testing/_internal/opinfo/core.py"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    base, head = trees()
    folder = tmp_path_factory.mktemp("git") / "up.git"
    return Repository(make_repository(folder, {"base": base, "head": head}))


@pytest.fixture(scope="module")
def found(up: Repository) -> tuple[Enumeration, Enumeration]:
    return enumerate_ref(up, "base", LAYOUT), enumerate_ref(up, "head", LAYOUT)


def changed(before: dict[str, str | bytes], after: dict[str, str | bytes]) -> Diff:
    return diff_of(enumerated(before), enumerated({**before, **after}), LAYOUT)


def kinds(diff: Diff) -> dict[str, str]:
    return {change.id: change.kind for change in diff.changes}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_change_is_found(name: str, found: tuple[Enumeration, Enumeration]) -> None:
    everything = kinds(diff_of(*found, LAYOUT))
    for id, kind in CASES[name].kinds.items():
        assert everything.get(id) == kind, id


def test_nothing_else_is_found(found: tuple[Enumeration, Enumeration]) -> None:
    expected = {id: kind for planted in CASES.values() for id, kind in planted.kinds.items()}
    assert kinds(diff_of(*found, LAYOUT)) == expected


def test_refs_swapped(found: tuple[Enumeration, Enumeration]) -> None:
    base, head = found
    there, back = diff_of(base, head, LAYOUT), diff_of(head, base, LAYOUT)
    opposite = {"added": "removed", "removed": "added"}
    turned = {c.was or c.id: tuple(opposite.get(k, k) for k in c.kinds) for c in there.changes}
    assert {c.id: c.kinds for c in back.changes} == turned


def test_a_ref_and_itself(found: tuple[Enumeration, Enumeration]) -> None:
    for one in found:
        assert diff_of(one, one, LAYOUT).changes == ()


def test_files_of_a_stage_round_trip(found: tuple[Enumeration, Enumeration]) -> None:
    for one in found:
        text = enumeration_text(one)
        assert enumeration_of(text) == one
    text = diff_text(diff_of(*found, LAYOUT))
    assert diff_text(diff_from(text)) == text


def test_nothing_upstream_is_imported(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    bad = f"open({str(mark)!r}, 'w')\nimport sys\nsys.exit(3)\n" + suite(ONE)
    assert [t.id for t in enumerated({"test/test_bad.py": bad}).tests] == [
        "test_bad.py::TestA::test_x"
    ]
    assert not mark.exists()


def test_a_new_op_in_a_table() -> None:
    tests = {"test/test_ops.py": suite(
        "@ops(op_db)\ndef test_all(self, op):\n    pass\n"
        "@ops(unary_ops)\ndef test_unary(self, op):\n    pass\n" + ONE)}  # fmt: skip
    text = INFRA[METHODS]
    new = text.replace("op_db = [", 'op_db = [\n    OpInfo("mul", dtypes=(1,)),')
    diff = changed(tests, {METHODS: new})
    assert kinds(diff) == {
        f"opinfo::{METHODS}::op_db::mul": "opinfo", "test_ops.py::TestA::test_all": "opinfo",
    }  # fmt: skip
    assert diff.changes[-1].ops == ("mul",)


@pytest.mark.parametrize(
    ("old", "new", "op"),
    [
        ('"add", dtypes=(1, 2)', '"add", dtypes=(1, 3)', "add"),
        ('"floor", dtypes=(1,)', '"floor", dtypes=(2,)', "div.floor"),
        ("return [1]", "return [1, 2]", "add"),
        ('"sin", dtypes=(1,)', '"sin", dtypes=()', "sin"),
    ],
)
def test_an_entry_that_differs(old: str, new: str, op: str) -> None:
    tests = {"test/test_ops.py": suite(
        "@ops(op_db)\ndef test_all(self, op):\n    pass\n"
        "@ops(unary_ops)\ndef test_unary(self, op):\n    pass\n" + ONE)}  # fmt: skip
    diff = changed(tests, {METHODS: INFRA[METHODS].replace(old, new)})
    ops = {c.id.rpartition("::")[2]: c.ops for c in diff.changes if c.is_test}
    assert ops == {"test_all": (op,)} | ({"test_unary": (op,)} if op == "sin" else {})
    assert f"opinfo::{METHODS}::op_db::{op}" in kinds(diff)


@pytest.mark.parametrize(
    ("path", "old", "new", "reached"),
    [
        (UTILS, "return a == b", "return a is b", {"test_x", "test_y"}),
        (UTILS, "self.seed = 1", "self.seed = 2", {"test_x", "test_y", "test_z"}),
        (UTILS, "precision = 0", "precision = 1", {"test_x", "test_y", "test_z"}),
        (UTILS, "return 1", "return 2", {"test_z"}),
        (UTILS, "return text", "return [text]", set()),
        (DEVICES, "only_for=None):\n    pass", "only_for=None):\n    return 1",
         {"test_x", "test_y", "test_z"}),
    ],
)  # fmt: skip
def test_test_machinery(path: str, old: str, new: str, reached: set[str]) -> None:
    tests = {"test/test_it.py": suite(
        TWO + "\ndef test_z(self):\n    freeze_rng()\n",
        top="from torch.testing._internal.common_utils import freeze_rng")}  # fmt: skip
    assert INFRA[path].count(old) == 1
    diff = changed(tests, {path: INFRA[path].replace(old, new)})
    assert {c.id.rpartition("::")[2] for c in diff.changes if c.is_test} == reached
    assert all(c.kinds == ("infra",) for c in diff.changes)
    assert any(c.id.startswith(f"infra::{path}::") for c in diff.changes)


@pytest.mark.parametrize("text", ["x = 1\n", "def (\n", "from nowhere import aid\n", None])
def test_a_helper_that_is_gone(text: str | None) -> None:
    """Its file does not define it any more, does not parse, imports it, or is not there."""
    tests: dict[str, str | bytes] = {
        "test/test_it.py": suite(
            "def test_x(self):\n    aid()\n" + TWO[len(ONE) :], top="from aids import aid"
        ),
        "test/aids.py": "def aid():\n    pass\n",
    }
    after = {path: t for path, t in {**tests, "test/aids.py": text}.items() if t is not None}
    diff = diff_of(enumerated(tests), enumerated(after), LAYOUT)
    assert kinds(diff) == {"test_it.py::TestA::test_x": "helpers"}


@pytest.mark.parametrize("old", ["def freeze_rng():\n    return 1\n", "    def assertWarns"])
def test_machinery_that_is_gone(old: str) -> None:
    body = "def test_x(self):\n    freeze_rng()\n    self.assertWarns(1)\n"
    top = "from torch.testing._internal.common_utils import freeze_rng"
    tests: dict[str, str | bytes] = {"test/test_it.py": suite(body + TWO[len(ONE) :], top=top)}
    new = INFRA[UTILS].replace(old, "    def other" if old.startswith(" ") else "")
    assert kinds(changed(tests, {UTILS: new}))["test_it.py::TestA::test_x"] == "infra"


def test_what_the_machinery_uses() -> None:
    """A module that is no machinery, behind a function that is."""
    used = "from torch.testing._close import close\n"
    utils = used + INFRA[UTILS].replace("return a == b", "return close(a, b)")
    before: dict[str, str | bytes] = {
        "test/test_it.py": suite(TWO + "\ndef test_z(self):\n    pass\n"), UTILS: utils,
        "torch/testing/_close.py": "def close(a, b):\n    return a == b\n",
    }  # fmt: skip
    diff = changed(before, {"torch/testing/_close.py": "def close(a, b):\n    return a is b\n"})
    assert kinds(diff) == {f"test_it.py::TestA::test_{letter}": "infra" for letter in "xy"}


@pytest.mark.parametrize(
    "body",
    [
        "def test_x(self):\n    for op in op_db:\n        self.assertEqual(op, op)\n",
        "listed = list(op_db)\n@ops(listed)\ndef test_x(self, op):\n    pass\n",
    ],
)
def test_a_table_by_another_way(body: str) -> None:
    tests: dict[str, str | bytes] = {"test/test_it.py": suite(body + TWO[len(ONE) :])}
    diff = changed(tests, {METHODS: INFRA[METHODS].replace("(1, 2)", "(1, 3)")})
    assert [(c.id, c.ops) for c in diff.changes if c.is_test] == [
        ("test_it.py::TestA::test_x", ("add",))
    ]


@pytest.mark.parametrize("path", ["test/conftest.py", "test/run_test.py", UTILS])
@pytest.mark.parametrize("text", ["import sys\nsys.settrace(None)\n", "def (:\n"])
def test_machinery_that_no_test_names(path: str, text: str) -> None:
    tests: dict[str, str | bytes] = {"test/test_it.py": suite(TWO), "test/conftest.py": "",
                                     "test/run_test.py": ""}  # fmt: skip
    after = (INFRA.get(path, "") + text) if text.startswith("import") else text
    assert set(kinds(changed(tests, {path: after}))) >= {
        "test_it.py::TestA::test_x", "test_it.py::TestA::test_y"
    }  # fmt: skip


def test_a_conftest_concerns_its_folder() -> None:
    tests: dict[str, str | bytes] = {
        "test/test_it.py": suite(ONE), "test/sub/test_it.py": suite(ONE),
        "test/sub/conftest.py": "",
    }  # fmt: skip
    diff = changed(tests, {"test/sub/conftest.py": "def hook():\n    pass\n"})
    assert [c.id for c in diff.changes if c.is_test] == ["sub/test_it.py::TestA::test_x"]


def test_two_tests_of_one_name() -> None:
    """Which of two equal tests moved cannot be told: then they are added and removed."""
    before: dict[str, str | bytes] = {
        f"test/test_{n}.py": suite("def test_q(self):\n    pass", name="TestQ") for n in "ab"
    }
    after = {"test/test_c.py": before["test/test_a.py"], "test/test_d.py": before["test/test_a.py"]}
    empty: dict[str, str | bytes] = dict.fromkeys(before, "")
    diff = changed(before, {**empty, **after})
    assert sorted(kinds(diff).values()) == ["added", "added", "removed", "removed"]


PARTS: tuple[Callable[[str], str], ...] = (
    lambda s: s.replace("(1, 1)", "(1, 2)"),
    lambda s: s.replace("def test_x", "@skipMeta\n    def test_x"),
    lambda s: s.replace("test_y", "test_w"),
    lambda s: s + "\nclass TestB(TestCase):\n    def test_x(self):\n        return 1\n",
    lambda s: s.replace("globals())", "globals(), only_for='cpu')"),
    lambda s: "import os\n" + s,
    lambda s: s.replace("class TestA", "class TestC").replace("(TestA,", "(TestC,"),
    lambda s: s.replace("\n", "\r\n"),
    lambda s: s + "def (:\n",
    lambda s: "",
)


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(range(len(PARTS))), max_size=3), min_size=2, max_size=4))
def test_any_edits_swapped(edits: list[list[int]]) -> None:
    before, after = {}, dict(INFRA)
    before |= INFRA
    for number, chosen in enumerate(edits):
        text = suite(TWO)
        before[f"test/test_{number}.py"] = text
        for edit in chosen:
            text = PARTS[edit](text)
        after[f"test/test_{number}.py"] = text
    base, head = enumerated(before), enumerated(after)
    there, back = diff_of(base, head, LAYOUT), diff_of(head, base, LAYOUT)
    for one, other in ((there, back), (back, there)):
        added = {c.id for c in one.changes if "added" in c.kinds}
        assert added == {c.id for c in other.changes if "removed" in c.kinds}
    assert {(c.was, c.id) for c in there.changes if c.was} == {
        (c.id, c.was) for c in back.changes if c.was
    }


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([suite(TWO), *INFRA.values()]))
def test_comments_and_blank_lines_change_nothing(seed: int, text: str) -> None:
    choose = random.Random(seed)
    lines = text.split("\n")
    for _ in range(5):
        at = choose.randrange(len(lines))
        lines.insert(at, choose.choice(["", "# a comment", "    # deeper", "\t"]))
    files: dict[str, str | bytes] = {"test/test_it.py": text}
    diff = changed(files, {"test/test_it.py": "\n".join(lines)})
    assert diff.changes == ()


@pytest.mark.parametrize(
    ("ref", "tests", "message"),
    [
        ("missing", "test", "rev-parse failed"),
        ("--all", "test", "is no ref"),
        ("head", "nowhere", "has no tests in nowhere/"),
    ],
)
def test_a_wrong_name(up: Repository, ref: str, tests: str, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        enumerate_ref(up, ref, Layout(tests=tests))


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "other"}', "[]", "nothing"])
def test_a_file_that_is_no_enumeration(text: str) -> None:
    with pytest.raises(SelectionError, match="enumerate again"):
        enumeration_of(text)


def test_tests_at_the_top_of_a_repository(tmp_path: Path) -> None:
    before = {**INFRA, "aid.py": "def aid():\n    return 1\n", "test_top.py": suite(
        "def test_x(self):\n    aid()\n", top="from aid import aid")}  # fmt: skip
    after = {**before, "aid.py": "def aid():\n    return 2\n"}
    repository = Repository(make_repository(tmp_path / "top.git", {"a": before, "b": after}))
    for top in (".", ""):
        layout = Layout(tests=top)
        pair = [enumerate_ref(repository, ref, layout) for ref in "ab"]
        assert kinds(diff_of(pair[0], pair[1], layout)) == {"test_top.py::TestA::test_x": "helpers"}


def test_a_null_byte_is_a_record() -> None:
    (broken,) = enumerated({"test/test_it.py": b"x = 1\0"}).broken
    assert broken.test_file
    assert "null" in broken.error
    assert HEAD not in broken.error
