"""The checker on hand-written and on emitted programs, and small changes to programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from openspyre.card.native import SoftwareCard, Span
from openspyre.errors import BrokenInvariant
from openspyre.ir.program import Buffer, Instr, Node, Program, Section, TileLoop

__all__ = ["Instr"]
_SPACING = 1 << 44
_POOL = 1 << 43


@cache
def _card() -> SoftwareCard:
    return SoftwareCard(memory=1 << 26, threads=1)


def problem(
    program: Program, spans: Sequence[Span | tuple[int, int]], sizes: Sequence[int] = ()
) -> str:
    """What the checker says is wrong, "" if nothing is.

    Args:
        spans: of every argument, or only its bytes relative to its address.
    """
    card = _card()
    card._next = card.memory_base  # the last program is gone
    loaded = card.load_program(program)
    try:
        addresses = [_SPACING * (number + 1) for number in range(len(spans))]
        block = card.fill(loaded, addresses, sizes, [1.0] * program.arguments[2], _POOL)
        card.check(loaded, block, [s if isinstance(s, Span) else Span(*s) for s in spans])
    except BrokenInvariant as wrong:
        return wrong.what
    finally:
        card.unload(loaded)
    return ""


def instructions(program: Program) -> Iterator[Instr]:
    """In body order, section by section."""

    def inside(nodes: Sequence[Node]) -> Iterator[Instr]:
        for node in nodes:
            if isinstance(node, TileLoop):
                yield from inside(node.body)
            else:
                yield node

    for section in program.sections:
        yield from inside(section.body)


def edited(program: Program, change: Callable[[int, Instr], Instr | None]) -> Program:
    """The program with change(number, instruction) for every instruction; None drops it."""
    numbers = iter(range(1 << 20))

    def nodes(body: Sequence[Node]) -> tuple[Node, ...]:
        found: list[Node] = []
        for node in body:
            if isinstance(node, TileLoop):
                found.append(replace(node, body=nodes(node.body)))
            elif (changed := change(next(numbers), node)) is not None:
                found.append(changed)
        return tuple(found)

    sections = tuple(replace(s, body=nodes(s.body)) for s in program.sections)
    return replace(program, sections=sections)


def without(program: Program, number: int) -> Program:
    """The program without an instruction."""
    return edited(program, lambda n, instr: None if n == number else instr)


def with_buffer(program: Program, number: int, change: Callable[[Buffer], Buffer]) -> Program:
    buffers = list(program.buffers)
    buffers[number] = change(buffers[number])
    return replace(program, buffers=tuple(buffers))


def with_section(program: Program, number: int, change: Callable[[Section], Section]) -> Program:
    sections = list(program.sections)
    sections[number] = change(sections[number])
    return replace(program, sections=tuple(sections))
