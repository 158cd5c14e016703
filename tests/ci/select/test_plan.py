"""Stage 3: tiers, order, budget, and an explanation for everything."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.ci.select.stages.diff import Diff, diff_of
from openspyre.ci.select.stages.errors import SelectionError
from openspyre.ci.select.stages.explaining import Known, explained
from openspyre.ci.select.stages.knowledge import Asked, History, Past, Policy, with_outcomes
from openspyre.ci.select.stages.plan import Plan, Tier, Wishes, plan_from, plan_of, plan_text
from openspyre.ci.select.stages.product import ops_named
from openspyre.ci.select.stages.relevance import Judged, World, judged, tables_of
from tests.ci.select.openreg import LAYOUT, enumerated, openreg
from tests.ci.select.planted_changes import INFRA, suite

NAMES = [f"test_{letter}" for letter in "abcdefghij"]
GATES = ("test_i", "test_j")
DAY = datetime.date(2026, 11, 30)


def _file(*changed: str) -> str:
    bodies = {name: "torch.add(1)" if name < "test_e" else "pass" for name in NAMES}
    return suite(
        "\n".join(
            f"def {name}(self, device):\n    {body}{'; x = 1' if name in changed else ''}"
            for name, body in bodies.items()
        )
        + "\n@ops(op_db)\ndef test_ops(self, op):\n    pass\n"
    )


def _id(name: str) -> str:
    return f"test_it.py::TestA::{name}"


POLICY = Policy(tuple(Asked(name, _id(name), "gate") for name in GATES))


def make(
    wishes: Wishes | None = None, *, history: History | None = None, policy: Policy = POLICY,
    changed: tuple[str, ...] = ("test_a", "test_b", "test_f"), machinery: bool = False,
    product: dict[str, tuple[str, ...]] | None = None,
) -> tuple[Plan, Known]:  # fmt: skip
    base = enumerated({"test/test_it.py": _file()})
    infra = {
        path: text.replace("return a == b", "return a is b") if machinery else text
        for path, text in INFRA.items()
    }
    head = enumerated({**infra, "test/test_it.py": _file(*changed)})
    diff = diff_of(base, head, LAYOUT)
    past = history or History()
    world = World(openreg(), policy, past, tables_of(head, LAYOUT))
    labels = judged(diff, base, head, world)
    plan = plan_of(diff, labels, head, openreg(), policy, past, product or {}, wishes or Wishes())
    return plan, Known(base, head, diff, tuple(labels), plan, policy)


def tiers(plan: Plan) -> dict[str, int]:
    return {one.id.rpartition("::")[2]: one.tier for one in plan.chosen}


def test_tiers() -> None:
    history = History({_id("test_g"): Past(1, 1, "failed", 2.0)})
    found = tiers(make(changed=("test_a", "test_f", "test_i"), history=history)[0])
    found.pop("test_j", None)  # its turn comes with the commit
    assert found == {
        "test_a": Tier.CHANGED, "test_f": Tier.UNSURE, "test_g": Tier.ALWAYS, "test_i": Tier.ALWAYS,
    }  # fmt: skip


def test_a_rule_that_expires() -> None:
    rules = (Asked("X", _id("test_h"), "xfail", expires=DAY + datetime.timedelta(days=14)),)
    policy = Policy(rules)
    assert tiers(make(Wishes(today=DAY), policy=policy)[0])["test_h"] == Tier.ALWAYS
    day_before = DAY - datetime.timedelta(days=1)
    assert "test_h" not in tiers(make(Wishes(today=day_before), policy=policy)[0])


def test_order_is_by_tier_score_and_id() -> None:
    history = History({_id("test_b"): Past(0, 3, "passed", 1.0)})
    plan = make(history=history)[0]
    names = [one.id.rpartition("::")[2] for one in plan.chosen]
    assert names[:2] == ["test_b", "test_a"]
    assert [o.tier for o in plan.chosen] == sorted(o.tier for o in plan.chosen)
    assert plan_from(plan_text(plan)) == plan


def test_ops_of_models_come_first() -> None:
    labels = ("test_a", "test_f", "test_g")
    first = make(Wishes(model_ops=frozenset({"add"})), changed=labels)[0].chosen[0]
    assert first.id == _id("test_a")
    assert first.parts["weight"] == 2.0


@settings(max_examples=25)
@given(
    st.floats(0, 20), st.floats(0, 20),
    st.lists(st.sampled_from(NAMES[:8]), min_size=1, unique=True),
    st.lists(st.floats(0.01, 5), min_size=8, max_size=8),
)  # fmt: skip
def test_a_larger_budget_runs_more(
    one: float, other: float, changed: list[str], seconds: list[float]
) -> None:
    past = {_id(n): Past(seconds=s) for n, s in zip(NAMES[:8], seconds, strict=True)}
    small, large = sorted((one, other))
    few = make(Wishes(budget=small), history=History(past), changed=tuple(changed))[0]
    many = make(Wishes(budget=large), history=History(past), changed=tuple(changed))[0]
    assert few.chosen == many.chosen[: len(few.chosen)]
    assert few.seconds <= small
    ranks = [out.rank for out in few.left_out if out.bucket == "over-budget"]
    assert ranks == list(range(len(few.chosen) + 1, len(few.chosen) + 1 + len(ranks)))


def test_what_always_runs_is_never_cut() -> None:
    history = History({_id("test_g"): Past(1, 1, "failed", 2.0)})
    assert len(make(Wishes(budget=2.0), history=history)[0].chosen) == 1
    with pytest.raises(SelectionError, match="what always runs takes 2 s, the budget is 1 s"):
        make(Wishes(budget=1.0), history=history)
    with pytest.raises(SelectionError, match="is none"):
        make(Wishes(budget=-1.0))
    assert make(Wishes(budget=0.0))[0].chosen == ()


def test_machinery_reaches_everything() -> None:
    """No test of the file calls what changed, but for its class; the machinery has its line."""
    plan, known = make(changed=(), machinery=True)
    assert tiers(plan).keys() <= set(GATES)
    assert [c.id for c in known.diff.changes if not c.is_test] == [
        "infra::torch/testing/_internal/common_utils.py::TestCase._close"
    ]


def test_product_source() -> None:
    product = {"product::aten/add.cpp": ("add",)}
    plan = make(changed=(), product=product)[0]
    found = {one.id.rpartition("::")[2]: one.ops for one in plan.chosen if one.tier == Tier.REACHED}
    assert found == dict.fromkeys(NAMES[:4], ()) | {"test_ops": ("add",)}
    gates = make(changed=(), product={"product::aten/other.cpp": ()})[0]
    assert tiers(gates) == dict.fromkeys(GATES, Tier.REACHED)


@pytest.mark.parametrize(
    ("line", "ops"),
    [
        ("structured_add_out(a)", {"add"}), ("at::add_(b)", {"add"}), ("AddKernel k;", {"add"}),
        ("void div_floor_kernel()", set()), ("div_stub(", {"div.floor"}), ("address", set()),
        ("native::relu_backward", {"nn.functional.relu"}), ("linalg_svd_out", {"linalg.svd"}),
    ],
)  # fmt: skip
def test_ops_in_a_hunk(line: str, ops: set[str]) -> None:
    known = ["add", "div.floor", "nn.functional.relu", "linalg.svd"]
    assert ops_named([line], known) == ops


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_a", ["changed: body", "relevant by R10", "runs: rank 1", "tier 1 (changed)"]),
        ("test_f", ["changed: body", "unsure by R99", "does not run: over-budget: rank 3 of"]),
        ("test_g", ["unchanged", "does not run: not-selected: it did not change"]),
        ("test_a[dtype=float32]", ["changed: body", "test/test_it.py:"]),
    ],
)
def test_everything_is_explained(name: str, said: list[str]) -> None:
    _, known = make(Wishes(budget=2.0))
    text = "\n".join(explained(_id(name), known))
    for part in said:
        assert part in text


def test_an_id_that_nobody_has() -> None:
    with pytest.raises(SelectionError, match=r"near it: test_it\.py::TestA::test_a"):
        explained("test_it.py::TestB::test_a", make()[1])


def test_removed_and_irrelevant_tests_are_named() -> None:
    gone = suite("def test_q(self): return 1")
    only = suite("@onlyCUDA\ndef test_r(self): return 2")
    base = enumerated({"test/test_it.py": _file(), "test/test_b.py": gone})
    head = enumerated({"test/test_it.py": _file(), "test/test_b.py": only})
    diff = diff_of(base, head, LAYOUT)
    labels = judged(diff, base, head, World(openreg()))
    plan = plan_of(diff, labels, head, openreg(), Policy(), History(), {}, Wishes())
    assert [(o.id[-6:], o.reason[:20]) for o in plan.left_out] == [
        ("test_q", "it is no more in the"), ("test_r", "R03: test/test_b.py:"),
    ]  # fmt: skip
    assert all(out.bucket == "not-selected" for out in plan.left_out)


def test_history_learns() -> None:
    history = with_outcomes(History(), [("a", "failed", 2.0), ("a", "passed", 3.0)])
    assert history.of("a") == Past(1, 1, "passed", 3.0)
    assert history.seconds("b") == 1.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "selection/1"}'])
def test_a_file_that_is_no_plan(text: str) -> None:
    with pytest.raises(SelectionError, match="plan again"):
        plan_from(text)


def test_labels_decide_alone() -> None:
    """The plan asks no rule again for what has a label."""
    _, known = make()
    labels = [replace(one, ops=("add",)) for one in known.labels]
    diff = Diff("", "", known.diff.changes)
    plan = plan_of(diff, labels, known.head, openreg(), Policy(), History(), {}, Wishes())
    assert {one.ops for one in plan.chosen} == {("add",)}
    assert isinstance(labels[0], Judged)
