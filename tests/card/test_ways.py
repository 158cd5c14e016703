"""Whichever way to plan a timer prefers, the program is right and gives the same."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import planned
from openspyre.ir.kernel import Role
from openspyre.ir.reference import evaluate
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1
from tests.asked import Asked
from tests.card_runner import run_program
from tests.hinted_kernels import mlp
from tests.random_kernels import NO_SIZES, differing


@pytest.mark.parametrize("preferred", [0, 1])
def test_a_plan_that_fetches(preferred: int) -> None:
    found = planned(mlp(), SPYRE_CARD_V1, timer=Asked(1e9, 1e9 + 1 - 2 * preferred))
    assert found.way == found.tried[preferred].way
    program = proved(emit(found.kernel, SPYRE_CARD_V1), mlp(), SPYRE_CARD_V1)
    drawn = np.random.default_rng(0)
    inputs = {  # whose sums are exact in every order
        t.name: drawn.integers(-1, 2, [e.evaluate({}) for e in t.shape]).astype(np.float16)
        for t in mlp().tensors.values()
        if t.role is Role.INPUT
    }
    got, _ = run_program(program, found.kernel, inputs, NO_SIZES, SPYRE_CARD_V1)
    assert differing(got, evaluate(mlp(), inputs, NO_SIZES), mlp()) == ""
