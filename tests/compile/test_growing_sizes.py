"""A sequence grows from 1 to 512: what is compiled on the way, by Dynamo and by us.

Dynamo may compile no graph that it would not compile for the CPU; of every kernel there is one
program for a class of sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from openspyre.ir.text import print_kernel
from openspyre.runtime import launch
from openspyre.runtime.sizes import size_class

SIZES = (*range(1, 10), 16, 17, 32, 33, 63, 64, 65, 100, 128, 129, 256, 257, 300, 511, 512)
CLASSES = len({size_class(n) for n in SIZES})
WIDTH = 24  # no size of SIZES: equal sizes would be one symbol

Make = Callable[[int], tuple[torch.Tensor, ...]]
Mark = Callable[[torch.Tensor], None]


@dataclass
class Programs:
    """The programs that were asked for: of which kernel, and for which ranges of its sizes."""

    asked: list[tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=list)

    def by_kernel(self) -> list[int]:
        return list(Counter(text for text, _ in self.asked).values())


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    """Counts from here on, with no kernel loaded."""
    found = Programs()
    compiled = launch.program_bytes

    def counted(region: Any, card: Any, sizes: Any) -> bytes:
        text = print_kernel(replace(region, limits={}))
        found.asked.append((text, tuple(region.limits.values())))
        return compiled(region, card, sizes)

    monkeypatch.setattr(launch, "program_bytes", counted)
    monkeypatch.setattr(launch, "_loaded", {})
    torch.spyre.reset_fallbacks()
    yield found
    assert torch.spyre.fallback_reasons() == {}


def tensor(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(float(torch.Size(shape).numel())) * 0.7).reshape(shape)


def graphs(
    function: Callable[..., torch.Tensor],
    make: Make,
    sizes: Sequence[int],
    *,
    device: str,
    dynamic: bool | None,
    mark: Mark | None = None,
) -> int:
    """How many graphs Dynamo compiles while the size walks through `sizes`, twice."""
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("inductor" if device == "spyre" else "eager")
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)
    for size in (*sizes, *sizes):
        given = make(size)
        moved = [x.to(device) for x in given]
        if mark is not None:
            mark(moved[0])
        torch.testing.assert_close(
            compiled(*moved).cpu(), function(*given), rtol=1e-4, atol=1e-5, equal_nan=True
        )
    return int(backend.frame_count)


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1) + x.sum(0)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def longer(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.cat([cache, row], 1).cumsum(1)


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Make]] = {
    "rows": (rows, lambda n: (tensor(n, WIDTH), tensor(WIDTH, WIDTH))),
    "prefill": (attention, lambda n: (tensor(1, 3, n, WIDTH),) * 3),
    "decode": (
        attention,
        lambda n: (tensor(1, 3, 1, WIDTH), *(tensor(1, 3, n, WIDTH),) * 2),
    ),
    "cache": (longer, lambda n: (tensor(2, n, WIDTH), tensor(2, 1, WIDTH))),
    "view": (lambda x: x.view(-1, 4).amax(1), lambda n: (tensor(n, WIDTH),)),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, True) for name in FUNCTIONS), ("rows", None), ("cache", None)]
)
def test_a_compiled_function(name: str, dynamic: bool | None, programs: Programs) -> None:
    function, make = FUNCTIONS[name]
    ours = graphs(function, make, SIZES, device="spyre", dynamic=dynamic)
    assert ours <= graphs(function, make, SIZES, device="cpu", dynamic=dynamic)
    assert len(programs.asked) == CLASSES


def test_a_dim_marked_as_dynamic(programs: Programs) -> None:
    function, make = FUNCTIONS["rows"]
    ours = graphs(
        function,
        make,
        SIZES[1:],
        device="spyre",
        dynamic=None,
        mark=lambda x: torch._dynamo.mark_dynamic(x, 0),
    )
    assert ours == 1
    assert programs.by_kernel() == [CLASSES - 1]


def test_a_dim_without_a_known_size_may_be_anything(programs: Programs) -> None:
    function, make = FUNCTIONS["rows"]
    ours = graphs(
        function,
        make,
        (7, 0, *SIZES),
        device="spyre",
        dynamic=None,
        mark=lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
    )
    assert ours == 1
    assert programs.by_kernel() == [CLASSES + 1]


def test_sizes_0_and_1_are_graphs_of_their_own_and_no_more(programs: Programs) -> None:
    function, make = FUNCTIONS["rows"]
    sizes = (5, 0, 1, 6, 0, 1, 7)
    ours = graphs(function, make, sizes, device="spyre", dynamic=True)
    assert ours == graphs(function, make, sizes, device="cpu", dynamic=True) == 3
    assert len(programs.asked) == 2  # nothing runs for no rows


def test_two_sizes_make_a_class_together(programs: Programs) -> None:
    def grown(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(1)

    sides = (2, 3, 4, 7, 8)
    pairs = [(a, b) for a in sides for b in sides if a != b]
    compiled = torch.compile(grown, dynamic=True, fullgraph=True)
    for a, b in pairs:
        x = tensor(a, b)
        torch.testing.assert_close(compiled(x.to("spyre")).cpu(), grown(x))
    assert len(programs.asked) == len({(size_class(a), size_class(b)) for a, b in pairs})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_ops(name: str, programs: Programs) -> None:
    function, make = FUNCTIONS[name]
    for size in (*SIZES, *SIZES):
        given = make(size)
        torch.testing.assert_close(
            function(*(x.to("spyre") for x in given)).cpu(), function(*given), rtol=1e-4, atol=1e-5
        )
    assert programs.asked
    assert len(programs.asked) == len(set(programs.asked))
    # an elementwise kernel sees products of sizes, which have twice as many classes
    assert max(programs.by_kernel()) <= CLASSES * 2


def test_a_size_that_meets_another_one_makes_one_program_more(programs: Programs) -> None:
    """Equal sizes are one symbol, for Dynamo as for eager ops."""
    for size in SIZES:
        x = tensor(size, 32).half()
        torch.testing.assert_close(x.to("spyre").amin(0).cpu(), x.amin(0))
    assert len(programs.asked) == CLASSES + 1
