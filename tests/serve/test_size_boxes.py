"""Sizes of steps, in boxes that a program each serves: all of them, and few."""

from __future__ import annotations

import random

import pytest
import torch

import openspyre
from openspyre.runtime import programs
from openspyre.runtime.programs import compiled_programs
from openspyre.runtime.rehearsal import rehearsing
from openspyre.vllm.one_graph import Box, one_graph
from openspyre.vllm.paged import rectangles
from openspyre.vllm.size_boxes import Limits, attend_boxes, decode_boxes, slot_boxes, spans

openspyre.require()
LIMITS = [
    Limits(5, 256, 256, 16),
    Limits(1, 1, 1, 16),
    Limits(8, 5, 400, 128),
    Limits(256, 2048, 8192, 64),
    Limits(1000, 8192, 131_072, 64),
    Limits(37, 777, 9999, 32),
]


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has kept on disk would not be compiled."""
    monkeypatch.setattr(programs, "program_cache", lambda: None)


def steps(limits: Limits, count: int) -> list[tuple[list[int], list[int]]]:
    """New tokens and tokens in all of requests, as a scheduler may choose them."""
    drawn = random.Random(3)
    found = []
    for _ in range(count):
        left, queries, contexts = limits.tokens, [], []
        for _ in range(drawn.randint(1, limits.requests)):
            most = min(left, limits.context, drawn.choice((1, 1, 5, 40, limits.tokens)))
            if most < 1:
                break
            queries.append(drawn.randint(1, most))
            long = drawn.choice((queries[-1], limits.context))
            contexts.append(drawn.randint(queries[-1], long))
            left -= queries[-1]
        found.append((sorted(queries), contexts))
        found.append(([1] * len(contexts), [min(n, limits.context) for n in contexts]))
    return [(q, [max(a, b) for a, b in zip(q, c, strict=True)]) for q, c in found]


def inside(box: Box, **sizes: int) -> bool:
    return all(box[name][0] <= size <= box[name][1] for name, size in sizes.items())


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_every_step_has_its_boxes(limits: Limits) -> None:
    attend, decode = list(attend_boxes(limits, 999)), list(decode_boxes(limits, 999))
    slots = list(slot_boxes(limits.tokens, limits.requests))
    for queries, contexts in steps(limits, 300):
        whole = sum(queries)
        assert any(inside(b, tokens=whole, rows=len(queries)) for b in slots)
        for first, end in rectangles(queries, contexts, limits.tokens):
            width = max(queries[first:end])
            pages = -(-max(contexts[first:end]) // limits.block)
            tokens = sum(queries[first:end])
            common = {"pages": pages, "written": whole, "tokens": tokens, "blocks": 999}
            if width == 1:
                boxes, more = decode, {}
            else:
                boxes, more = attend, {"rows": end - first, "columns": width}
            assert sum(inside(b, **common, **more) for b in boxes) == 1


def test_boxes_are_few() -> None:
    def programs(limits: Limits) -> int:
        return len([*attend_boxes(limits, 999), *decode_boxes(limits, 999)])

    assert programs(LIMITS[0]) < 50
    assert programs(Limits(256, 2048, 8192, 64)) < 160
    assert programs(LIMITS[4]) < 300


def test_ranges_follow_each_other() -> None:
    for most in (1, 2, 3, 4, 5, 16, 17, 63, 64, 1000):
        found = spans(most)
        assert [n for low, high in found for n in range(low, high + 1)] == [*range(1, most + 1)]


@pytest.mark.usefixtures("nothing_kept")
def test_a_box_is_one_program_for_all_its_sizes() -> None:
    def graph(out: torch.Tensor, x: torch.Tensor, table: torch.Tensor) -> None:
        out.copy_(x[table].sin().sum(1) * 3.5)

    made = one_graph(graph, ("rows", None), ("there", None), ("rows", "few"))

    def arguments(rows: int, there: int, few: int) -> tuple[torch.Tensor, ...]:
        table = torch.arange(rows * 20).view(rows, 20) % there  # wider than what is used of it
        x = torch.arange(there * 6.0).view(there, 6)
        out, x, table = (v.to("spyre") for v in (torch.zeros(rows, 6), x, table))
        return out, x, table[:, :few]

    boxes = [{"rows": (low, high), "there": (1, 50), "few": (1, 20)} for low, high in spans(40)]
    before = compiled_programs()
    made.make_ready(boxes, *arguments(2, 5, 3))
    made.make_ready(boxes, *arguments(1, 1, 1))
    between = compiled_programs()
    assert between - before == len(boxes)
    for rows, there, few in ((1, 1, 1), (2, 50, 7), (5, 3, 20), (17, 17, 17), (40, 49, 1)):
        out, x, table = arguments(rows, there, few)
        made(out, x, table)
        right = x.cpu()[table.cpu()].sin().sum(1) * 3.5
        torch.testing.assert_close(out.cpu(), right, atol=1e-4, rtol=1e-5)
    assert compiled_programs() == between
    assert made.graphs == 1


@pytest.mark.usefixtures("nothing_kept")
def test_what_is_rehearsed_runs_not_and_is_compiled() -> None:
    x, y = (torch.full((9, 31), value, device="spyre") for value in (2.0, 3.0))
    before = compiled_programs()
    with rehearsing():
        torch.hypot(x, y, out=y)
    after = compiled_programs()
    assert after == before + 1
    assert (y.cpu() == 3).all()
    torch.hypot(x, y, out=y)
    assert compiled_programs() == after
    torch.testing.assert_close(y.cpu(), torch.full((9, 31), 13**0.5))
