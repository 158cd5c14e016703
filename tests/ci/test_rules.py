"""Rules in YAML: all that is wrong with them is said at once, each at its line and column."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openspyre.ci.capability import Row, State
from openspyre.ci.cli import app
from openspyre.ci.native.hooks import Case, Drop, Expect, Keep, Override
from openspyre.ci.native.identity import Identity
from openspyre.ci.reuse.capability_table import derived, read_capability, write_capability
from openspyre.ci.reuse.commands import check_ids
from openspyre.ci.reuse.compiling import compiled, hooks_file, native_only
from openspyre.ci.reuse.formatting import formatted
from openspyre.ci.reuse.isolation import Broken, HookedFile
from openspyre.ci.reuse.ledger import Bucket
from openspyre.ci.reuse.loading import load
from openspyre.ci.reuse.located import InvalidRules
from openspyre.ci.reuse.planning import Collected, FilePlan, planned
from openspyre.ci.reuse.reading import read_rules
from openspyre.ci.reuse.running import Prepared
from openspyre.ci.reuse.schema import RuleSet, Verdict
from openspyre.errors import SpyreError

TODAY = datetime.date(2026, 12, 1)
HEAD = 'schema: openspyre.ci/1\ntorch: ">=2.13,<2.14"\ndevice: other\n'
DATES = "dates: {since: 2026-11-01, expires: 2026-12-15}"
WHY = f"reason: known, issue: 'https://example.org/1', {DATES}"


def rule(id_: str, test: str, *more: str) -> str:
    return f"{{id: {id_}, test: '{test}', {', '.join(more)}}}"


def file_of(*rules: str, path: str = "test_a.py", head: str = "") -> str:
    listed = "".join(f"      - {text}\n" for text in rules)
    return f"{HEAD}{head}files:\n  - path: {path}\n    rules:\n{listed}"


def read(folder: Path, *texts: str, today: datetime.date = TODAY, grace: int = 0) -> RuleSet:
    paths = [folder / f"rules{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return read_rules(paths, today, grace)


GATE = rule("G-1", "TestA::test_b", "verdict: gate")
WRONG = [
    (f"{HEAD}files: [", "4:9: expected the node content"),
    ("", "1:1: the file is empty"),
    ("schema: openspyre.ci/2\n" + HEAD[23:], "1:1: schema is openspyre.ci/1, not 'openspyre.ci/2'"),
    (HEAD + "colour: red\n", "4:9: a file of rules has no field 'colour'"),
    (HEAD + "device: twice\n", "4:1: the key 'device' stands here twice"),
    (HEAD.replace(">=2.13,<2.14", "about 2"), "2:8: torch is a range of versions"),
    (HEAD.replace("device: other\n", ""), "1:1: a file of rules needs 'device'"),
    (HEAD + "defaults: {timeout_s: fast}\n", "4:23: timeout_s is a number, not 'fast'"),
    (HEAD + "defaults: {timeout_s: true}\n", "timeout_s is a number, not True"),
    (HEAD + "defaults: {timeout_s: 0}\n", "timeout_s is between 0 and a day"),
    (HEAD + "defaults: {unlisted: xfail}\n", "unlisted is one of gate, observe, not 'xfail'"),
    (HEAD + "files: {}\n", "4:8: files is a list, not a mapping"),
    (file_of(GATE, path="../a.py"), "5:11: path is a Python file relative to"),
    (file_of(rule("G-1", "A::b", "colour: red")), "7:41: a rule has no field 'colour'"),
    (file_of(rule("G-1", "test_b")), "7:25: test is Class::method"),
    (file_of(rule("G-1", "TestA::test_*")), "test is Class::method"),
    (file_of(rule("G-1", "TestA::test_b", "ops: []")), "ops is empty; leave it out"),
    (file_of(rule("G-1", "TestA::test_b", "ops: [add, add]")), "ops names something twice"),
    (file_of(rule("G-1", "TestA::test_b", "hits: many")), "hits is a whole number"),
    (file_of(rule("G-1", "TestA::test_b", "verdict: pass")), "verdict is one of gate, observe,"),
    (file_of(rule("X-1", "A::b", "verdict: xfail", WHY)), "X-1: xfail needs raises"),
    (file_of(rule("X-1", "A::b", "verdict: xfail", DATES)), "X-1: xfail needs reason"),
    (
        file_of(rule("X-1", "A::b", "verdict: xfail", WHY, "raises: {type: E, match: '('}")),
        "match is no regular expression",
    ),
    (file_of(rule("G-1", "A::b", "raises: {type: E}")), "G-1: only an xfail has raises"),
    (file_of(rule("E-1", "A::b", "verdict: exclude", WHY)), "E-1: exclude needs cause"),
    (
        file_of(rule("Q-1", "A::b", "verdict: quarantine", WHY, "cause: op")),
        "Q-1: quarantine is for crash, hang, infra, not op",
    ),
    (file_of(rule("G-1", "A::b", "tolerance: {atol: 1, rtol: 1}")), "a tolerance needs reason"),
    (file_of(rule("G-1", "A::b", "tolerance: {atol: -1, rtol: 1}")), "is not negative"),
    (
        file_of(rule("X-1", "A::b", "verdict: xfail", WHY, "tolerance: {atol: 1, rtol: 1}")),
        "only gate and observe have a tolerance",
    ),
    (file_of(GATE, GATE), "8:9: G-1 is also the id of a rule at"),
    (file_of(GATE, rule("G-2", "TestA::test_b")), "8:9: G-2 is as specific as G-1 at"),
    (
        file_of(
            rule("G-1", "A::b", "ops: [add, mul]"), rule("G-2", "A::b", "ops: [mul]"),
        ),
        "G-2 is as specific as G-1",
    ),
    (
        file_of(rule("O-1", "A::b", "verdict: observe", "reason: r, dates: {expires: 2026-11-30}")),
        "O-1 expired on 2026-11-30: r",
    ),
    (
        file_of(rule("O-1", "A::b", "verdict: observe", "reason: r, dates: {expires: 2029-11-30}")),
        "O-1 holds for 1095 days, observe at most 180",
    ),
    (
        file_of(
            rule("O-1", "A::b", "verdict: observe", "reason: r", "dates: {since: 2027-01-02, "
            "expires: 2027-01-01}"),
        ),
        "O-1 ends before it begins",
    ),
    ("a: &x\n  b: *x\n", "an alias that contains itself"),
    (HEAD + 'bootstrap: "a\x07b"\n', "4:14: U+0007 is no character of YAML; in a text"),
    ("a: " + "[" * 5000, "1:1: it is nested too deep"),
    ("a: " + "{a: " * 5000, "1:1: it is nested too deep"),
    (HEAD + 'bootstrap: "\\ud800"\n', "4:12: surrogates not allowed: half of a character"),
    (HEAD + "bootstrap: !!bool maybe\n", "4:12: 'maybe' is no bool"),
    (HEAD + "bootstrap: !!timestamp now\n", "4:12: 'now' is no timestamp"),
    (HEAD + "bootstrap: !!int ''\n", "4:12: '' is no int"),
    (HEAD + f"bootstrap: 0x{'f' * 5000}\n", "4:12: '0xfff"),
    (HEAD + "? [a, b]\n: 1\n", "4:3: a key is a word, not several"),
    (HEAD.replace("other", "''"), "3:9: a file of rules needs 'device'"),
    (HEAD.replace("other", "my-device"), "3:9: device is a name, as in torch.NAME, not 'my-dev"),
    (HEAD + "bootstrap: import os\n", "4:12: bootstrap is module or module:function, not"),
    (file_of(rule("G 1", "A::b")), "7:14: id is one word, not 'G 1'"),
    (file_of(GATE, path="'a\"b.py'"), "5:11: path is a Python file relative to"),
    (file_of(rule("''", "A::b")), "7:14: a rule needs 'id'"),
    (file_of(rule("G-1", "A::b", "hits: 0")), "hits is 1 or more, not 0"),
    (file_of(rule("G-1", "A::b", "params: {k: [1]}")), "params maps to plain values"),
    (file_of(rule("G-1", "A::b", "params: {k: 2026-12-01}")), "quote what is a text"),
    (file_of(rule("G-1", "A::b", "params: {a b: 1}")), "'a b' is no name of a parameter"),
    (file_of(rule("G-1", "A::b", "params: {}")), "params is empty"),
    (
        file_of(rule("G-1", "A::b", "reason: r", "tolerance: {atol: .inf, rtol: 1e-3}")),
        "atol is a finite number, not inf",
    ),
    (HEAD + "defaults: {max_days: {xfail: -1}}\n", "xfail is 0 or more, not -1"),
    (file_of(GATE, path="a//b.py"), "5:11: path is a Python file relative to"),
    (file_of(GATE, path="a.py\n    sha256: abc"), "6:13: sha256 is 64 hex digits"),
    *[
        (
            file_of(rule("X-1", "A::b", "verdict: xfail", WHY, f"raises: {{type: E{match}}}")),
            f"match says nothing: {said}",
        )
        for match, said in [
            ("", "it is empty"), (", match: ''", "it is empty"), (", match: .*", "'.*' is in"),
            (", match: 'a?'", "'a?' is in any text"),
        ]
    ],
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_what_is_wrong_is_said_where_it_is(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidRules) as raised:
        read(tmp_path, text)
    assert any(problem in line for line in raised.value.problems), raised.value.problems


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidRules, match="4 problems"):
        read(tmp_path, file_of(rule("X-1", "A", "verdict: xfail", DATES, "raises: {type: E}")))


def test_one_expired_rule_may_have_grace(tmp_path: Path) -> None:
    text = file_of(
        rule("O-1", "A::b", "verdict: observe", "reason: r, dates: {expires: 2026-11-30}")
    )
    assert read(tmp_path, text, grace=1).rules()["O-1"].reason == "r"


def test_other_ops_dtypes_or_params_do_not_clash(tmp_path: Path) -> None:
    rules = [
        rule("G-1", "A::b", "ops: [add]"), rule("G-2", "A::b", "ops: [mul]"),
        rule("G-3", "A::b", "dtypes: [float16]"), rule("G-4", "A::b"), rule("G-5", "A::*"),
        rule("G-6", "A::b", "params: {k: 1}"), rule("G-7", "A::b", "params: {k: 2}"),
        rule("G-8", "B::b"),
    ]  # fmt: skip
    assert len(read(tmp_path, file_of(*rules)).rules()) == 8


def test_files_with_one_path_merge_and_must_agree(tmp_path: Path) -> None:
    one, two = file_of(GATE), file_of(rule("G-2", "TestA::test_c"))
    (merged,) = read(tmp_path, one, two).files
    assert [r.id for r in merged.rules] == ["G-1", "G-2"]
    with pytest.raises(InvalidRules, match="G-2 is as specific as G-1"):
        read(tmp_path, one, file_of(rule("G-2", "TestA::test_b")))
    with pytest.raises(InvalidRules, match="its device is not that of the other files"):
        read(tmp_path, one, two.replace("device: other", "device: another"))


SHA, OTHER_SHA = "a" * 64, "b" * 64


@pytest.mark.parametrize("hashes", [(SHA, ""), ("", SHA), (SHA, SHA), (SHA, OTHER_SHA)])
def test_one_path_has_one_hash(tmp_path: Path, hashes: tuple[str, str]) -> None:
    named = [f"test_a.py\n    sha256: '{sha}'" if sha else "test_a.py" for sha in hashes]
    texts = [file_of(GATE, path=named[0]), file_of(rule("G-2", "TestA::test_c"), path=named[1])]
    if hashes != (SHA, OTHER_SHA):
        assert read(tmp_path, *texts).files[0].sha256 == SHA
        return
    with pytest.raises(InvalidRules) as raised:
        read(tmp_path, *texts)
    (said,) = raised.value.problems
    assert said.startswith(f"{tmp_path}/rules1.yaml:5:5: test_a.py was verified with")
    assert f"{tmp_path}/rules0.yaml:5:5" in said


@pytest.mark.parametrize("digests", [("1", ""), ("", "1"), ("1", "1"), ("1", "2")])
def test_one_set_has_one_capability(tmp_path: Path, digests: tuple[str, str]) -> None:
    heads = [f"capability: {{file: c{d}.json, digest: '{d}'}}\n" if d else "" for d in digests]
    texts = [
        file_of(GATE, head=heads[0]), file_of(rule("G-2", "TestA::test_c"), head=heads[1]),
    ]  # fmt: skip
    if digests != ("1", "2"):
        found = read(tmp_path, *texts).capability
        assert (found.file, found.digest) == ("c1.json", "1") if found else False
        return
    with pytest.raises(InvalidRules) as raised:
        read(tmp_path, *texts)
    (said,) = raised.value.problems
    assert said.startswith(f"{tmp_path}/rules1.yaml:4:13: capability is c2.json with 2")
    assert f"c1.json with 1 at {tmp_path}/rules0.yaml:4:13" in said


@pytest.mark.parametrize(
    "more", [(), ("ops: [add]",), ("dtypes: [float16]",), ("ops: [add]", "params: {k: 1}")]
)
def test_one_file_owns_a_test(tmp_path: Path, more: tuple[str, ...]) -> None:
    """In one file the more specific rule is the owner; two files that own a test do not agree."""
    wide, narrow = rule("G-1", "A::*"), rule("G-2", "A::b", *more)
    assert len(read(tmp_path, file_of(wide, narrow)).rules()) == 2
    for texts in ((wide, narrow), (narrow, wide)):
        with pytest.raises(InvalidRules) as raised:
            read(tmp_path, *[file_of(text) for text in texts])
        (said,) = raised.value.problems
        assert said.startswith(f"{tmp_path}/rules1.yaml:7:9: ")
        assert f"at {tmp_path}/rules0.yaml:7:9: two files own them" in said


def test_files_that_meet_in_a_test_alone(tmp_path: Path) -> None:
    """Only the tests say whether one has this op and this dtype."""
    texts = [file_of(rule("G-1", "A::b", "ops: [add]"))]
    texts.append(file_of(rule("G-2", "A::b", "dtypes: [float16]")))
    (file,) = read(tmp_path, *texts).files
    found = planned(file, TESTS, None, Verdict.OBSERVE).problems
    assert len(found) == 2  # for each k
    assert "G-1 at" in found[0]
    assert "rules1.yaml:7:9" in found[0]
    apart = [
        t for t in TESTS if (t.test.value("op") == "add") != (t.test.value("dtype") == "float16")
    ]
    assert planned(file, apart, None, Verdict.OBSERVE).problems == ()


def test_dates_at_the_end_of_time(tmp_path: Path) -> None:
    last = "reason: r, dates: {since: 9999-12-30, expires: 9999-12-31}"
    text = file_of(rule("O-1", "A::b", "verdict: observe", last))
    assert read(tmp_path, text, grace=10**9).rules()["O-1"].reason == "r"


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    lines = [
        "a0: &a0 [x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)),
    ]
    with pytest.raises(InvalidRules, match="a file of rules has no field 'a29'"):
        read(tmp_path, "\n".join(lines))


def test_a_tolerance_as_python_writes_it(tmp_path: Path) -> None:
    """YAML takes 1e-3 for a text."""
    text = file_of(rule("G-1", "A::b", "reason: r", "tolerance: {atol: 1e-3, rtol: 2}"))
    found = read(tmp_path, text).rules()["G-1"].tolerance
    assert found is not None
    assert (found.atol, found.rtol) == (0.001, 2.0)


ALL = file_of(
    rule("T-1", "A::c", "reason: r", "tolerance: {atol: 0.001, rtol: 1}", "tags: ['model:x', a]"),
    rule("X-1", "A::b", "verdict: xfail", WHY, "raises: {type: E, match: 'a: \"b\"'}", "hits: 3",
         "params: {k: 1, flag: true}", "ops: [mul, add]", "dtypes: [float32]", "isolate: test"),
    head="bootstrap: m:f\ndefaults: {unlisted: gate, timeout_s: 1.5}\n",
)  # fmt: skip


def test_one_form(tmp_path: Path) -> None:
    """Writing is idempotent, and says what was read; the order of rules means nothing."""
    rules = read(tmp_path, ALL)
    text = formatted(rules)
    again = read(tmp_path, text)
    assert formatted(again) == text
    assert again.rules().keys() == rules.rules().keys()
    assert again.rules()["X-1"].params == {"k": "1", "flag": "True"}
    first, second = ALL.index("      - {id: T-1"), ALL.index("      - {id: X-1")
    swapped = ALL[:first] + ALL[second:] + ALL[first:second]
    assert formatted(read(tmp_path, swapped)) == text


# --- owners -------------------------------------------------------------------------------------


def test_(cls: str, method: str, **params: str) -> Collected:
    test = Identity(cls, method, tuple(sorted(params.items())))
    return Collected(f"test_a.py::{test}", test, True)


test_.__test__ = False  # type: ignore[attr-defined]

TESTS = [
    test_("A", "b", op=op, dtype=dtype, k=k)
    for op in ("add", "mul") for dtype in ("float16", "float32") for k in ("1", "2")
]  # fmt: skip
OWNERS = [
    rule("CLASS", "A::*"), rule("METHOD", "A::b"), rule("DTYPE", "A::b", "dtypes: [float16]"),
    rule("OP", "A::b", "ops: [add]"), rule("BOTH", "A::b", "ops: [add]", "dtypes: [float16]"),
    rule("ALL", "A::b", "ops: [add]", "dtypes: [float16]", "params: {k: 2}"),
]  # fmt: skip


def plan(folder: Path, *rules: str, tests: list[Collected] | None = None) -> FilePlan:
    (file,) = read(folder, file_of(*rules)).files
    return planned(file, TESTS if tests is None else tests, None, Verdict.OBSERVE)


def test_the_most_specific_rule_owns_a_test(tmp_path: Path) -> None:
    other = test_("A", "other")
    found = plan(tmp_path, *OWNERS, tests=[*TESTS, other])
    assert found.problems == ()
    assert {t.id.partition("::")[2]: t.source for t in found.tests} == {
        "A::b[dtype=float16,k=1,op=add]": "BOTH", "A::b[dtype=float16,k=2,op=add]": "ALL",
        "A::b[dtype=float32,k=1,op=add]": "OP", "A::b[dtype=float32,k=2,op=add]": "OP",
        "A::b[dtype=float16,k=1,op=mul]": "DTYPE", "A::b[dtype=float16,k=2,op=mul]": "DTYPE",
        "A::b[dtype=float32,k=1,op=mul]": "METHOD", "A::b[dtype=float32,k=2,op=mul]": "METHOD",
        "A::other": "CLASS",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ((rule("G-1", "B::b"),), "G-1: there is no class B"),
        ((rule("G-1", "A::c"),), "G-1: A has no method c"),
        ((rule("G-1", "A::b", "ops: [add, sub]"),), "G-1: no op sub in A::b"),
        ((rule("G-1", "A::b", "dtypes: [int8]"),), "G-1: no dtype int8 in A::b"),
        ((rule("G-1", "A::b", "params: {k: 3}"),), "G-1 owns no test"),
        ((rule("G-1", "A::b", "hits: 7"),), "G-1 owns 8 tests, not 7"),
        ((rule("G-1", "A::*"), rule("G-2", "A::b")), "G-1 owns no test"),
    ],
)
def test_a_rule_that_owns_not_what_it_says(
    tmp_path: Path, rules: tuple[str, ...], problem: str
) -> None:
    assert any(problem in found for found in plan(tmp_path, *rules).problems)


def capability_rows() -> list[Row]:
    return [
        Row("add", "function", "float16", State.CARD, ""),
        Row("add", "function", "float32", State.FALLBACK, "aten::add"),
        Row("add", "gradient", "float32", State.CARD, ""),
        Row("mul", "function", "float16", State.WRONG, "elements differ"),
        Row("sub", "function", "float16", State.UNTRIED, "the CPU runs none"),
    ]


def test_capability_is_what_was_measured(tmp_path: Path) -> None:
    table = derived(capability_rows(), "2.13.0")
    assert table.op_allowlist() == ("add",)
    assert table.op_dtypes() == {"add": ("float16", "float32")}
    assert (table.ops["add"].state, table.ops["add"].bwd) == ("fallback", ("float32",))
    assert (table.ops["mul"].state, "sub" in table.ops) == ("wrong", False)
    write_capability(tmp_path / "c.json", table)
    assert read_capability(tmp_path / "c.json") == table
    changed = (tmp_path / "c.json").read_text().replace("float16", "float64", 1)
    (tmp_path / "c.json").write_text(changed)
    with pytest.raises(SpyreError, match="changed by hand"):
        read_capability(tmp_path / "c.json")


def test_capability_leaves_out_ops_and_dtypes(tmp_path: Path) -> None:
    table = derived(capability_rows()[:1] + capability_rows()[3:], "2.13.0")
    (file,) = read(tmp_path, file_of(rule("G-1", "A::b", "ops: [mul]"))).files
    found = planned(file, TESTS, table, Verdict.OBSERVE)
    buckets = {(t.test.value("op"), t.test.value("dtype")): t.bucket for t in found.tests}
    assert buckets == {
        ("add", "float16"): None, ("add", "float32"): Bucket.EXCLUDED_DTYPE,
        ("mul", "float16"): Bucket.EXCLUDED_OP, ("mul", "float32"): Bucket.EXCLUDED_OP,
    }  # fmt: skip
    assert "owns only tests that the capability table leaves out" in found.problems[0]
    assert {t.reason for t in found.tests if t.bucket is Bucket.EXCLUDED_OP} == {
        "mul: elements differ"
    }


def test_another_digest_is_refused(tmp_path: Path) -> None:
    write_capability(tmp_path / "c.json", derived(capability_rows(), "2.13.0"))
    (tmp_path / "rules.yaml").write_text(
        HEAD + "capability: {file: c.json, digest: 'sha256:0'}\nfiles: []\n"
    )
    with pytest.raises(InvalidRules, match="what the device can do has changed"):
        load([tmp_path / "rules.yaml"])


def test_another_torch_is_refused_or_observed(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(file_of(GATE).replace(">=2.13,<2.14", ">=2.12,<2.13"))
    with pytest.raises(SpyreError, match=r"the rules are for torch >=2\.12,<2\.13"):
        load([path])
    loaded = load([path], allow_drift=True)
    assert loaded.rules.rules()["G-1"].verdict is Verdict.OBSERVE
    assert "everything is observed" in loaded.warnings[0]


# --- compiling ----------------------------------------------------------------------------------

AWAY = ("verdict: exclude", "cause: op", WHY)


def test_native_hooks_where_they_can_say_it(tmp_path: Path) -> None:
    rules = read(
        tmp_path,
        file_of(
            rule("E-1", "A::*", *AWAY), rule("E-2", "B::b", *AWAY), rule("G-1", "B::c"),
            rule("E-3", "B::c", "ops: [add]", "dtypes: [float16]", *AWAY),
            rule("X-1", "B::d", "verdict: xfail", WHY, "raises: {type: E, match: m}"),
        ),
    )  # fmt: skip
    hooks = compiled(rules.files[0], None)
    assert hooks.test_exclusions == {"A": ("*",), "B": ("b",)}
    assert hooks.op_overrides == {
        "add": (Override("E-3", "B", "c", Drop(), ("float16",), "known"),)
    }
    assert [c for c in hooks.cases if not isinstance(c.action, Keep)] == [
        Case("X-1", "B", "d", Expect("E", "m"))
    ]
    text = hooks_file("test_a.py", "other", hooks)
    scope: dict[str, object] = {}
    exec(text.partition("\n# PyTorch runs")[0], scope)  # what was written is what was meant
    assert scope["HOOKS"] == hooks
    native, left = native_only(rules, None)
    assert "unittest.skip('E-3: known'), 'B', 'c', dtypes=[torch.float16]" in native
    assert left == ["X-1: expect of B::d"]


def test_a_test_taken_back_from_an_exclusion_stays(tmp_path: Path) -> None:
    """The native hooks cannot take one back; cases can, the most specific first."""
    rules = read(tmp_path, file_of(rule("E-1", "A::*", *AWAY), rule("G-1", "A::b")))
    hooks = compiled(rules.files[0], None)
    assert hooks.test_exclusions == {}
    assert hooks.cases == (Case("G-1", "A", "b", Keep()), Case("E-1", "A", "*", Drop()))


# --- commands -----------------------------------------------------------------------------------


def invoke(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_check_and_fmt_commands(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(file_of(GATE))
    assert invoke("config", "check", path) == (0, "1 rules for 1 files hold\n")
    assert invoke("config", "fmt", "--check", path) == (1, f"would change {path}\n")
    assert invoke("config", "fmt", path) == (0, f"changed {path}\n")
    assert invoke("config", "fmt", "--check", path) == (0, "")
    path.write_text(file_of(GATE, GATE))
    code, output = invoke("config", "check", path)
    assert (code, f"{path}:8:9: G-1 is also the id" in output) == (2, True)


def test_import_of_the_other_schema(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(
        "test_suite_config:\n  files:\n"
        "  - path: ${TORCH_ROOT}/test/test_binary_ufuncs.py\n"
        "    unlisted_test_mode: skip\n    tests:\n"
        "    - {names: ['TestBinaryUfuncs::test_a', test_b], mode: xfail_strict, tags: [x]}\n"
        "    - {names: ['TestBinaryUfuncs::test_c'], mode: mandatory_success}\n"
    )
    code, output = invoke("config", "import", path, "--device", "other", "--torch", ">=2.13")
    assert code == 1
    assert "test: TestBinaryUfuncs::test_a\n    verdict: xfail" in output
    assert "fill in: test_binary_ufuncs.py: IMPORTED-0001: issue" in output
    assert "fill in: test_binary_ufuncs.py: IMPORTED-0002: the class of test_b" in output
    assert "tests it does not list are skip: here they are observed" in output
    path.write_text(
        "more: 1\ntest_suite_config:\n  other: 1\n  files:\n  - path: pytorch/test/nn/test_a.py\n"
        "    inputs: 1\n    tests: [{names: ['A::test_b'], mode: mandatory_success, cpu: 1}]\n"
    )
    code, output = invoke("config", "import", path, "--device", "o", "--torch", ">=2.13")
    assert (code, "path: nn/test_a.py" in output) == (1, True)
    for left in (
        "more is",
        "other is",
        "nn/test_a.py: inputs is",
        "nn/test_a.py: cpu of A::test_b is",
    ):
        assert f"fill in: {left} not taken over" in output
    path.write_text("tests: []\n")
    assert invoke("config", "import", path, "--device", "o", "--torch", ">=2.13")[0] == 2


def test_doctor_finds_the_hooks() -> None:
    code, output = invoke("config", "doctor", "--json")
    assert (code, all(json.loads(output)["hooks"].values())) == (0, True)


def test_doctor_without_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.opinfo.core", None)
    code, output = invoke("config", "doctor")
    assert (code, "PyTorch's test hooks are missing" in output) == (2, True)


def test_hooks_of_files_of_one_name_lie_apart(tmp_path: Path) -> None:
    path, output = tmp_path / "rules.yaml", tmp_path / "hooks"
    path.write_text(
        file_of(GATE, path="a/b.py") + "  - path: a.b.py\n    rules:\n",
    )
    assert invoke("config", "compile", path, "--output", output)[0] == 0
    found = {str(file.relative_to(output)) for file in output.rglob("*.py")}
    assert found == {"a/b_hooks.py", "a.b_hooks.py"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "none.yaml", "--tests", "."), "cannot read none.yaml"),
        (("run", "none.yaml", "--tests", ".", "--shard", "5/4"), "--shard 5/4 is no part"),
        (("run", "none.yaml", "--tests", ".", "--repeat", "often"), "--repeat often means nothing"),
        (("run", "none.yaml", "--tests", ".", "--budget", "nan"), "--budget nan is no time"),
        (("run", "none.yaml", "--tests", ".", "--ids", "."), "--ids . cannot be read"),
        (("capability", "--survey", "none.json"), "none.json is no survey of ops"),
    ],
)
def test_bad_input_is_told(words: tuple[str, ...], said: str) -> None:
    code, output = invoke(*words)
    assert (code, said in output) == (2, True)


def test_ids_of_another_encoding_are_told(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes(b"a.py::A::b\n\xff\n")
    code, output = invoke("run", "none.yaml", "--tests", ".", "--ids", tmp_path / "ids")
    assert (code, "ids cannot be read" in output, "an id a line" in output) == (2, True, True)
    assert "can't decode byte 0xff" in output


def test_unknown_ids_are_told(tmp_path: Path) -> None:
    """But not those of files that are left out or broken: they may be there."""
    rules = read(tmp_path, file_of(path="test_a.py") + "  - path: test_b.py\n  - path: test_c.py\n")
    first, second, _ = rules.files
    hooked = HookedFile(first.path, tmp_path, for_custom=False)
    here = Prepared(first, planned(first, TESTS, None, Verdict.OBSERVE), hooked, "")
    broken = Prepared(second, FilePlan(second, (), (), {}), hooked, "", Broken("E", ""))
    good = ["test_a.py::A::b[dtype=float16,k=1,op=add]", "test_b.py::A::b", "test_c.py::A::b"]
    check_ids(frozenset(good), [here, broken], rules)
    check_ids(None, [here], rules)
    with pytest.raises(SpyreError, match="names 2 tests that there are not") as raised:
        check_ids(frozenset([*good, "test_a.py::A::b[dtype=float16]", "d.py::A::b"]), [here], rules)
    assert raised.value.why == "d.py::A::b\n       test_a.py::A::b[dtype=float16]"
