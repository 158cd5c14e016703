"""Products of gathered operands, as of pages that a block table names: read where they lie.

A gather that one product alone reads would copy all its rows before the product begins, with cores
that share rows where the product's share heads. The product's own loads look the rows up instead,
unless it uses each of them so often that several cores would: what is looked up, each loads alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.rewrite import reads, rewritten, sole_name, writes_whole
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Kernel, Kind, Load, Op, Role, Scalar
from openspyre.spec import CardSpec


def read_where_it_lies(kernel: Kernel, card: CardSpec) -> Kernel:
    """Lets products look up the rows that gathers copy for them."""
    writers: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(kernel.ops):
        writers[op.out.tensor].append(position)
        for tensor in dict.fromkeys(t for t, _ in reads(op)):
            readers[tensor].append(position)
    ops = list(kernel.ops)
    gone: set[int] = set()
    for position, op in enumerate(kernel.ops):
        source = _copied(op, kernel)
        if source is None or len(writers[op.out.tensor]) != 1 or len(readers[op.out.tensor]) != 1:
            continue
        (reader,) = readers[op.out.tensor]
        read = {source.tensor, *(k.tensor for k in op.lookups)}
        if any(position < w < reader for t in read for w in writers[t]):
            continue
        found = _looking_up(ops[reader], op, source)
        if found is not None and _uses(found, op, kernel) < card.pt_fill_rows:
            ops[reader] = found
            gone.add(position)
    left = tuple(op for n, op in enumerate(ops) if n not in gone)
    return replace(kernel, ops=left) if gone else kernel


def _copied(op: Op, kernel: Kernel) -> Load | None:
    """The load in device memory that a whole local tensor is a gathered copy of."""
    match op:
        case Op(kind=Kind.GATHER, body=Load(guarded=False) as load):
            target, source = kernel.tensors[op.out.tensor], kernel.tensors[load.tensor]
            same = target.dtype is source.dtype and source.role in (Role.INPUT, Role.MUTATED)
            if target.role is Role.LOCAL and same and writes_whole(op, target):
                return load
    return None


def _uses(product: Op, gather: Op, kernel: Kernel) -> int:
    """How often a product uses each element that a gather copies."""
    points, own = (
        prod(highest(d.extent, kernel.limits) for d in dims)
        for dims in ((*product.dims, *product.rdims), gather.dims)
    )
    return points // max(1, own)


def _looking_up(product: Op, gather: Op, source: Load) -> Op | None:
    """The product with an operand that looks up what the gather would, or None."""
    if product.kind is not Kind.CONTRACT or not isinstance(product.body, Call):
        return None
    own = [x for x in product.body.args if isinstance(x, Load) and x.tensor == gather.out.tensor]
    if len(own) != 1:
        return None
    at: dict[str, Expr] = {
        name: value
        for e, value in zip(gather.out.index, own[0].index, strict=True)
        if (name := sole_name(e)) is not None
    }
    taken = {d.name for d in (*product.dims, *product.rdims)} | {k.name for k in product.lookups}
    lookups = []
    for lookup in gather.lookups:
        name = next(n for count in range(len(taken) + 1) if (n := f"k{count}") not in taken)
        taken.add(name)
        index = tuple(e.substitute(at) for e in lookup.index)
        lookups.append(replace(lookup, name=name, index=index))
        at[lookup.name] = Expr.var(name)
    operand = replace(source, index=tuple(e.substitute(at) for e in source.index))

    def change(node: Scalar) -> Scalar:
        return operand if node == own[0] else node

    body = rewritten(product.body, change)
    return replace(product, body=body, lookups=(*product.lookups, *lookups))
