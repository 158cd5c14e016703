"""The long lane `models`: every type of transformers on the CPU, eagerly and compiled on the card.

`./dev test --long models`. Leaves `results/models.json` and `docs/models.md`. Types that this
version of the code has tried before are not tried again: it may be stopped and started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from openspyre.hf.coverage import Plan, code_version, surveyed
from openspyre.hf.outcomes import Outcome, State
from openspyre.hf.shares import shares, weighted_types
from openspyre.hf.tiny_model import model_types
from openspyre.settings import settings
from openspyre.tools.models import report
from openspyre.tools.models_page import page
from tests.results import ROOT, commit, write_result

SECONDS = 900.0  # of a type


@pytest.mark.timeout(86400)
def test_every_type() -> None:
    begun = commit()
    types = list(dict.fromkeys([*weighted_types(), *model_types()]))
    plan = Plan(
        SECONDS, jobs=len(os.sched_getaffinity(0)),
        kept=settings().cache / "coverage" / code_version(), resume=True, commit=begun,
    )  # fmt: skip
    found = []
    for number, outcome in enumerate(surveyed(types, plan), 1):
        found.append(outcome)
        print(f"models: {number} of {len(types)}: {outcome.type}: {outcome.state.value}")
    write_result("models", report(found), begun=begun)
    (ROOT / "docs" / "models.md").write_text(page(found))

    ran = [one for one in found if one.state is not State.SKIPPED]
    assert len(ran) > 400
    assert not _named(ran, State.WRONG)
    assert not [one.type for one in ran if one.eager is None or not _right(one.eager.state)]
    traced = [one for one in ran if one.compiled is None or one.compiled.state is not State.SKIPPED]
    right = [one for one in traced if one.compiled is not None and _right(one.compiled.state)]
    assert len(right) >= 0.97 * len(traced)
    for share in shares(found):
        assert share.alone >= share.need, share


def _right(state: State) -> bool:
    return state in (State.RIGHT, State.FALLBACKS)


def _named(found: Iterable[Outcome], state: State) -> list[str]:
    return [one.type for one in found if one.state is state]
