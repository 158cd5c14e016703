"""A timer that is handed in chooses between whole plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import get_args, get_type_hints

import pytest

from openspyre.compiler import timed
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import STAGES, compile_kernel, plan_kernel, planned
from openspyre.compiler.timed import soonest
from openspyre.compiler.ways import Way
from openspyre.compiler.work import Works
from openspyre.errors import InvalidHint, Unsupported
from openspyre.ir.binary import encode, encoder
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Place, Section, Slot, rounds
from openspyre.ir.text import parse_kernel
from openspyre.runtime import clock
from openspyre.runtime.check import loaded_alone
from openspyre.runtime.clock import card_timer, round_key
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.asked import Asked
from tests.hinted_kernels import mlp

CARD = SPYRE_CARD_V1
ONE = """
kernel one
arguments x y
input x: f32[N]
output y: f32[N]
op y map i0:N
  y[i0] <- x[i0] + 1.0
"""
SLOW = 1e9  # cycles: more than any way may take at best


def test_without_a_timer_the_first_way_is_taken() -> None:
    found = planned(mlp(), CARD)
    assert (found.way, found.tried, found.program) == ("", (), None)
    assert found.kernel == planned(mlp(), CARD, timer=Asked(1.0)).kernel


def test_the_soonest_is_taken() -> None:
    first, second = (planned(mlp(), CARD, timer=Asked(SLOW, n)) for n in (SLOW + 1, SLOW - 1))
    assert first.kernel == plan_kernel(mlp(), CARD) != second.kernel
    assert first.tried[0].way == first.way != second.way == second.tried[1].way
    assert [tried.cycles for tried in second.tried] == [SLOW, SLOW - 1]
    timer = Asked(SLOW, SLOW - 1)
    program = compile_kernel(mlp(), CARD, timer=timer)
    assert program == timer.programs[1] == emit(second.kernel, CARD) != timer.programs[0]


def test_the_first_of_equal_ones_is_taken() -> None:
    found = planned(mlp(), CARD, timer=Asked(SLOW, SLOW))
    assert len(found.tried) == 2
    assert found.way == found.tried[0].way


def test_what_cannot_get_sooner_is_not_tried() -> None:
    assert len(planned(mlp(), CARD, timer=Asked(1.0)).tried) == 1


@pytest.mark.parametrize(("answers", "taken"), [((None, SLOW), 1), ((SLOW, None), 0)])
def test_what_cannot_be_timed_is_passed_over(answers: tuple[float | None, ...], taken: int) -> None:
    found = planned(mlp(), CARD, timer=Asked(*answers))
    assert found.way == found.tried[taken].way
    assert [t.problem for t in found.tried if t.cycles is None] == ["it cannot be timed"]


def test_where_nothing_can_be_timed_estimates_decide() -> None:
    assert planned(mlp(), CARD, timer=Asked(None, None)).kernel == plan_kernel(mlp(), CARD)


def test_observers_see_the_stages_of_the_plan_that_is_taken() -> None:
    seen: list[tuple[str, Kernel]] = []
    found = planned(mlp(), CARD, lambda *one: seen.append(one), timer=Asked(SLOW, SLOW - 1))
    assert [name for name, _ in seen] == [name for name, _, _ in STAGES]
    assert seen[-1][1] == found.kernel


@pytest.mark.parametrize(
    "text", [ONE.replace("N", "4096"), ONE.replace("kernel one", "kernel one\nsymbols N")]
)
def test_one_way_or_unknown_sizes_are_not_timed(text: str) -> None:
    text = text.replace("symbols N", "symbols N\nlimits N:1..4096")
    assert planned(parse_kernel(text), CARD, timer=Asked()).kernel == plan_kernel(
        parse_kernel(text), CARD
    )


def test_every_way_follows_hints() -> None:
    for answers in ((SLOW, SLOW + 1), (SLOW, SLOW - 1)):
        kernel = planned(mlp("division s0.i0: 4"), CARD, timer=Asked(*answers)).kernel
        assert {p.axis: p.parts for p in kernel.divisions["s0"].parts}["i0"] == 4
    with pytest.raises(InvalidHint, match="nowhere"):
        plan_kernel(mlp("division nowhere: 4"), CARD, timer=Asked())


# --- choosing, without the stages -----------------------------------------------------------------


def ways(*free: float) -> list[Way]:
    kernel = planned(mlp(), CARD).kernel
    works = Works(kernel, CARD)
    names = "abcdefgh"
    found = zip(names, free, strict=False)
    return [Way(n, replace(kernel, name=n), ring=True, free=f, works=works) for n, f in found]


def finished(failing: str = "", same: bool = False) -> Callable[[Way], tuple[tuple[str, Kernel]]]:
    def finish(way: Way) -> tuple[tuple[str, Kernel]]:
        if way.name in failing:
            raise Unsupported(f"{way.name} has no room")
        return (("place", replace(way.formed, name="a") if same else way.formed),)

    return finish


def test_a_way_that_fails_is_passed_over() -> None:
    plan, tried = soonest(ways(1, 1, 1), finished("ac"), CARD, Asked(5.0))
    assert plan.way.name == "b"
    assert {t.way: t.problem for t in tried} == {
        "a": "a has no room",
        "b": "",
        "c": "c has no room",
    }
    with pytest.raises(Unsupported, match="a has no room"):
        soonest(ways(1, 1), finished("ab"), CARD, Asked())


def test_equal_plans_are_timed_once() -> None:
    plan, tried = soonest(ways(1, 1, 1), finished(same=True), CARD, Asked(5.0))
    assert (plan.way.name, [t.way for t in tried]) == ("a", ["a"])


def test_few_ways_are_tried() -> None:
    timer = Asked(*(10.0 - n for n in range(8)))
    plan, tried = soonest(ways(*[1] * 8), finished(), CARD, timer)
    assert (plan.way.name, len(tried)) == ("d", 4)


def test_every_way_is_seen_and_one_alone_is_not_timed() -> None:
    plan, tried = soonest(iter(ways(1, 1, 1)), finished(), CARD, Asked(5.0, 4.0, 3.0))
    assert (plan.way.name, [t.way for t in tried]) == ("c", ["a", "b", "c"])
    plan, tried = soonest(iter(ways(1)), finished(), CARD, Asked())
    assert (plan.way.name, tried[0].cycles) == ("a", None)


def test_no_other_way_is_made_up_beside_a_program_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_one() -> Iterator[Way]:
        yield from ways(1)
        pytest.fail("a second way")

    monkeypatch.setattr(timed, "_LARGEST", 0)
    assert soonest(only_one(), finished(), CARD, Asked())[0].way.name == "a"


# --- the card's clock -----------------------------------------------------------------------------


def test_the_clock_chooses_the_same_plan_every_time() -> None:
    first, second = (planned(mlp(), CARD, timer=card_timer(CARD)) for _ in range(2))
    assert first.kernel == second.kernel
    assert first.tried == second.tried
    assert first.tried[0].cycles is not None


def test_sections_add_up() -> None:
    program = compile_kernel(mlp(), CARD)
    with loaded_alone(encode(program), CARD) as (machine, found):
        block = machine.fill(found, [0] * program.arguments[0], [], [])
        whole = machine.time(found, block).cycles
    assert len(program.sections) > 2
    assert card_timer(CARD)(program) == pytest.approx(whole, rel=0.01)


def layers(*hidden: int) -> Kernel:
    """Two products after each other, for every hidden size, each of what the last one made."""
    lines, last = [], "x"
    for n, h in enumerate(hidden):
        end = n == len(hidden) - 1
        out = "y" if end else f"t{n}"
        lines += [f"input w{n}: f16[384, {h}]", f"input v{n}: f16[{h}, 384]"]
        lines += [f"local a{n}: f16[128, {h}]", *([] if end else [f"local t{n}: f16[128, 384]"])]
        lines += [
            f"op a{n} contract i0:128 i1:{h} | r0:384",
            f"  a{n}[i0, i1] <- sum: {last}[i0, r0] * w{n}[r0, i1]",
            f"op {out} contract i0:128 i1:384 | r0:{h}",
            f"  {out}[i0, i1] <- sum: a{n}[i0, r0] * v{n}[r0, i1]",
        ]
        last = out
    tensors = [line for line in lines if line.startswith(("input", "local"))]
    ops = [line for line in lines if not line.startswith(("input", "local"))]
    names = " ".join(f"w{n} v{n}" for n in range(len(hidden)))
    head = ["kernel layers", f"arguments x {names} y", "input x: f16[128, 384]"]
    return parse_kernel("\n".join([*head, "output y: f16[128, 384]", *tensors, *ops]))


def test_equal_sections_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    alone = clock._alone

    def counted(data: bytes, arguments: tuple[int, int, int], card: CardSpec) -> int:
        asked.append(data)
        return alone(data, arguments, card)

    monkeypatch.setattr(clock, "_alone", counted)
    program = compile_kernel(layers(*[1536] * 8), CARD)
    timer = card_timer(CARD)
    took = timer(program)
    assert len(asked) <= 5 < len(program.sections)
    assert timer(program) == took
    assert len(asked) <= 5


def test_sections_that_differ_are_told_apart() -> None:
    program = compile_kernel(layers(1536, 1536, 1536, 1024, 1536), CARD)
    every = rounds(program.sections)
    keys = [round_key(program, together) for together in every]
    encoded = encoder(program)
    times = [clock._alone(encoded(s), program.arguments, CARD) for s in every]
    assert len(set(keys)) < len(keys)
    assert len(set(times)) > 2
    for key, time in zip(keys, times, strict=True):
        assert {t for k, t in zip(keys, times, strict=True) if k == key} == {time}
    moved = replace(program, buffers=tuple(replace(b, slots=1) for b in program.buffers))
    assert [round_key(moved, together) for together in every] != keys


def test_what_would_take_too_long_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_kernel(mlp(), CARD)
    with loaded_alone(encode(program), CARD) as (machine, found):
        block = machine.fill(found, [0] * program.arguments[0], [], [])
        count = machine.time(found, block).instructions
    most = timed.instructions(program)
    assert count <= most <= 4 * count
    monkeypatch.setattr(timed, "_LARGEST", most)
    assert planned(mlp(), CARD, timer=Asked(1.0)).tried[0].cycles == 1.0
    monkeypatch.setattr(timed, "_LARGEST", most - 1)
    (tried,) = planned(mlp(), CARD, timer=Asked()).tried
    assert (tried.cycles, tried.problem) == (None, "it is too large to be timed")


def test_the_clock_takes_apart_all_that_a_section_is_made_of() -> None:
    found: set[type] = set()
    waiting: list[object] = [get_type_hints(Section)[name] for name in ("axes", "body")]
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type) and hint not in found:
            found.add(hint)
            waiting += get_type_hints(hint).values()
    assert found == {*clock.NODES, Place, Slot}
