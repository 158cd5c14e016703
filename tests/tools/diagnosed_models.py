"""Models that faults are planted into, and what diagnosis makes of one forward of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from openspyre.frontend.torch_meaning import graphs_kept, meaning_of
from openspyre.ir.text import parse_kernel
from openspyre.runtime import launch
from openspyre.runtime.diagnosis import Finding, Judge, diagnosed
from openspyre.runtime.recording import recorded
from openspyre.runtime.saved import SavedKernel
from openspyre.spec import SPYRE_CARD_V1
from tests.faults import Planted, Planting, planted


@dataclass(frozen=True)
class Diagnosed:
    """What was planted, and what was found.

    Attributes:
        hit: the first op that the fault changed: its name, the tensor that it writes, its source.
    """

    hit: tuple[str, str, str] | None
    worst: Finding | None
    kernel: SavedKernel | None

    @property
    def named(self) -> bool:
        """Whether the op that was hit is the one that is blamed.

        A stage may have given an op another name; what it writes keeps its name. One that a stage
        has made has the source of the op that it was made of.
        """
        if self.hit is None or self.worst is None or self.worst.culprit is None:
            return False
        assert self.kernel is not None
        name, tensor, source = self.hit
        region = parse_kernel(self.kernel.text)
        blamed = region.by_name.get(self.worst.culprit.op)
        if blamed is None:
            return False
        if name in region.by_name or any(op.out.tensor == tensor for op in region.ops):
            return blamed.name == name or blamed.out.tensor == tensor
        return blamed.source == source


def with_fault(
    model: Callable[..., Any], inputs: Mapping[str, torch.Tensor], fault: Planting,
    patch: pytest.MonkeyPatch,
) -> Diagnosed:  # fmt: skip
    """Compiles and runs a model with a fault in the compiler, and diagnoses the run."""
    with patch.context() as fresh:
        fresh.setattr(launch, "_loaded", {})  # nothing that was compiled without the fault
        torch._dynamo.reset()
        with graphs_kept(), planted(fault, fresh) as found:
            with (
                recorded("a test", inputs=1 << 31) as recorder,
                torch.inference_mode(),
                suppress(IndexError, RuntimeError),  # a fault may stop the card
            ):
                torch.compile(model, dynamic=False)(**inputs)
                torch.spyre.synchronize()  # type: ignore[attr-defined]
            hit = _first(found)
            judge = Judge(SPYRE_CARD_V1, meaning_of, lambda _: None)
            _, worst = diagnosed(recorder.run, judge)
        torch._dynamo.reset()
    return Diagnosed(hit, worst and worst[2], worst and worst[0])


def _first(found: Planted) -> tuple[str, str, str] | None:
    return found.ops[0] if found.ops else None
