"""The instructions of a program, and the places that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openspyre.ir.kernel import Space
from openspyre.ir.program import Copy, Instr, Node, Place, Pt, Ring, TileLoop, Vec


def instructions_in(nodes: Sequence[Node]) -> Iterator[Instr]:
    for node in nodes:
        if isinstance(node, TileLoop):
            yield from instructions_in(node.body)
        else:
            yield node


def buffers_in(nodes: Sequence[Node]) -> set[int]:
    """The LX buffers that instructions name."""
    return {
        place.buffer
        for instr in instructions_in(nodes)
        for place in operands(instr)
        if place.space is Space.LX
    }


def operands(instr: Instr) -> list[Place]:
    """All places of an instruction."""
    match instr:
        case Copy():
            return [instr.source, instr.target, *(i.place for i in instr.indirect)]
        case Pt():
            return [instr.a, instr.b, instr.c]
        case Vec():
            return [*instr.inputs, *(out.place for out in instr.outputs)]
        case Ring():
            return [instr.source, instr.target]
