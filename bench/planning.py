"""How long planning takes: MiniLM's shapes, and what more layers of a decoder cost.

Seconds are CPU time of the process: planning is one thread, and other work on the machine does not
count. Tracing the model is not planning.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from kernels import GRANITE, MINILM
from measurement import Measurement, options, report

import openspyre
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.runtime.clock import card_timer
from openspyre.spec import SPYRE_CARD_V1

DEPTHS = (8, 40)
LAYERS = "num_hidden_layers"


def kernels(kind: str, config: Mapping[str, int], tokens: int) -> tuple[Kernel, ...]:
    """The kernels of one forward."""
    from openspyre.tools.forward import forward_traced  # loads Inductor
    from openspyre.tools.layered import configured, layered

    model = layered(configured(kind, config))
    found = forward_traced(
        model, range(config[LAYERS]), tokens=tokens, context=tokens, batch=1, dtype="float16"
    )
    return found.traced.kernels


def planning_seconds(traced: tuple[Kernel, ...]) -> float:
    """CPU time of planning some kernels, checks and the timer included."""
    start = time.process_time()
    for kernel in traced:
        plan_kernel(kernel, SPYRE_CARD_V1, timer=card_timer(SPYRE_CARD_V1))
    return time.process_time() - start


def main() -> None:
    chosen = options(__doc__).parse_args()
    openspyre.require()
    minilm = planning_seconds(kernels("bert", MINILM, 128))
    rows = [Measurement("planning", "minilm b1 s128", minilm, "s", 5)]
    times = {}
    for depth in DEPTHS:
        print(f"{depth} layers ...", file=sys.stderr, flush=True)
        traced = kernels("granite", {**GRANITE, LAYERS: depth}, 1024)
        times[depth] = planning_seconds(traced)
        name = f"granite-3.3-8b, {depth} layers, prefill 1024"
        detail = f"{sum(len(kernel.ops) for kernel in traced):,} ops"
        target = 60 if depth == max(DEPTHS) else None
        rows.append(Measurement("planning", name, times[depth], "s", target, detail))
    few, many = (times[depth] for depth in DEPTHS)
    rows.append(Measurement("planning", "40 layers beside 8", many / few, "x", 1.5))
    report(rows, chosen)


if __name__ == "__main__":
    main()
