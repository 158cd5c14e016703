"""The hooks against the plan: a difference between two collections has a reason, or is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from openspyre.ci.native.identity import Identity, identity_of, value_text
from openspyre.ci.reuse.ledger import Bucket
from openspyre.ci.reuse.located import At
from openspyre.ci.reuse.planning import Collected, FilePlan, Planned, planned
from openspyre.ci.reuse.reconciling import reconciled
from openspyre.ci.reuse.running import Choice
from openspyre.ci.reuse.schema import TestFile, Verdict

FILE = TestFile("a.py", At("rules.yaml", 1, 1))


def item(cls: str, method: str, **params: str) -> Collected:
    test = Identity(cls, method, tuple(sorted(params.items())))
    return Collected(f"a.py::{test}", test, True)


def plan_of(*items: Collected) -> FilePlan:
    return planned(FILE, items, None, Verdict.OBSERVE)


def plan_one(collected: Collected) -> Planned:
    return plan_of(collected).tests[0]


A, B, C = item("A", "a"), item("A", "b"), item("C", "c")
HALF, FLOAT = item("A", "d", op="add", dtype="float16"), item("A", "d", op="add", dtype="float32")


def test_nothing_changed() -> None:
    assert reconciled(plan_of(A, B), [A, B], plan_one) == (plan_of(A, B), [])


def test_a_whole_class_is_for_other_devices() -> None:
    plan, problems = reconciled(plan_of(A, C), [A], plan_one)
    assert problems == []
    assert [t.bucket for t in plan.tests] == [None, Bucket.EXCLUDED_GUARD]


def test_a_test_that_vanished_is_told() -> None:
    _, problems = reconciled(plan_of(A, B), [A], plan_one)
    assert problems == ["a.py::A::b: the hooks dropped it, and nothing says why"]


def test_a_test_that_should_be_gone_is_told() -> None:
    plan = plan_of(A, B)
    gone = replace(plan.tests[1], bucket=Bucket.EXCLUDED_OP, reason="r")
    plan = replace(plan, tests=(plan.tests[0], gone))
    assert reconciled(plan, [A], plan_one)[1] == []
    assert reconciled(plan, [A, B], plan_one)[1] == [
        "a.py::A::b: it was generated, but is excluded-op"
    ]


@pytest.mark.parametrize(("bucket", "said"), [(Bucket.EXCLUDED_DTYPE, 0), (None, 1)])
def test_another_dtype_joins_where_the_first_is_left_out(bucket: Bucket | None, said: int) -> None:
    plan = plan_of(A, FLOAT)
    changed = replace(plan.tests[1], bucket=bucket, reason="r" if bucket else "")
    plan = replace(plan, tests=(plan.tests[0], changed))
    on = [A, HALF] if bucket else [A, FLOAT, HALF]
    found, problems = reconciled(plan, on, plan_one)
    assert [t.id for t in found.tests] == sorted([A.id, FLOAT.id, HALF.id])
    assert len(problems) == said


def test_parts_are_apart_and_whole() -> None:
    ids = [f"a.py::A::test_{n}" for n in range(500)]
    parts = [{i for i in ids if not Choice(shard=(k, 7)).why_not(i)} for k in range(1, 8)]
    assert sum(map(len, parts)) == len(ids)
    assert set().union(*parts) == set(ids)
    assert min(map(len, parts)) > 40
    assert Choice(ids=frozenset(ids[:1])).why_not(ids[1]) != ""


class Named:
    full_name = "div.floor_rounding"


def test_identities_are_read_from_what_a_test_was_generated_with() -> None:
    given = {"op": Named(), "dtype": torch.float16, "device": "x:0", "k": 1}

    def generated(self: object, param_kwargs: dict[str, object] = given) -> None: ...

    found = identity_of("A", "a", generated)
    assert str(found) == "A::a[dtype=float16,k=1,op=div.floor_rounding]"
    assert value_text((torch.int64, torch.bool)) == "int64+bool"
    assert value_text("a=b,[c]") == "a%3Db%2C%5Bc%5D"
    assert (value_text({2, 1}), value_text(object())) == ("1+2", "object")
