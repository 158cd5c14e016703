"""Card time of how tensors lie: local ones chosen together, and weights either way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from openspyre.card.native import SoftwareCard
from openspyre.compiler.emit import emit
from openspyre.compiler.layout import laid_out_alone
from openspyre.compiler.pipeline import STAGES, Stage, plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.unit.test_layouts import HEADS, PRODUCTS, TURNED

ALONE = tuple(
    (name, (lambda kernel, _: laid_out_alone(kernel)) if name == "choose_layouts" else run, check)
    for name, run, check in STAGES
)
WEIGHT = """
kernel linear
arguments x w y
input x: f16[{m}, {k}]
input w: f16[{shape}]
output y: f16[{m}, {n}]
op y contract i0:{m} i1:{n} | r0:{k}
  y[i0, i1] <- sum: x[i0, r0] * w[{index}]
"""


Cycles = Callable[..., int]


@pytest.fixture(scope="module")
def cycles() -> Iterator[Cycles]:
    """Card time of a kernel planned by some stages."""
    with SoftwareCard(memory=1 << 30, threads=1) as card:

        def timed(kernel: Kernel, stages: tuple[Stage, ...] = STAGES) -> int:
            program = emit(plan_kernel(kernel, SPYRE_CARD_V1, stages=stages), SPYRE_CARD_V1)
            loaded = card.load_program(program)
            try:
                return card.time(loaded, card.fill(loaded, [0] * program.arguments[0])).cycles
            finally:
                card.unload(loaded)

        yield timed


@pytest.mark.parametrize(
    ("text", "sizes", "share"),
    [
        (TURNED, {"k": 4096, "m": 4096, "n": 64}, 0.5),
        (PRODUCTS, {"k": 512, "j": 512, "m": 512, "n": 512}, 0.85),
        (PRODUCTS, {"k": 1000, "j": 300, "m": 700, "n": 500}, 0.8),
        (HEADS, {"h": 32, "n": 128, "k": 1024, "d": 64}, 0.995),
    ],
    ids=["turned", "products", "odd products", "heads"],
)
def test_chosen_together_they_take_less(
    text: str, sizes: dict[str, int], share: float, cycles: Cycles
) -> None:
    kernel = parse_kernel(text.format(**sizes))
    assert cycles(kernel) < share * cycles(kernel, ALONE)


@pytest.mark.parametrize("m", [512, 64, 1])
@pytest.mark.parametrize(("k", "n"), [(4096, 1024), (4096, 4096), (12800, 4096), (4096, 12800)])
def test_a_transposed_weight_costs_no_more_than_a_plain_one(
    m: int, k: int, n: int, cycles: Cycles
) -> None:
    sizes = {"m": m, "k": k, "n": n}
    plain = parse_kernel(WEIGHT.format(**sizes, shape=f"{k}, {n}", index="r0, i1"))
    transposed = parse_kernel(WEIGHT.format(**sizes, shape=f"{n}, {k}", index="i1, r0"))
    assert cycles(transposed) < 1.03 * cycles(plain)
