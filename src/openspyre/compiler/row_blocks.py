"""Attention in blocks of rows that compute only the keys that one of their rows sees.

Causal masks and windows hide most keys from most rows; which keys a block needs is deduced from
what its ops compute (`softmax_rows.py`). A block's ops are those of the whole on fewer points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from openspyre.compiler.addressing import STICK_POINTS
from openspyre.compiler.rewrite import Fresh, reads, rewritten
from openspyre.compiler.softmax_rows import Masked, Readers, SoftmaxRows, Span, softmax_rows
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Dim, Index, Kernel, Load, Op, Scalar
from openspyre.spec import CardSpec

_MOST_BLOCKS = 8  # of rows: 0.56 of the work of all keys under a causal mask
_LEAST_ROWS = 128  # of a block: with fewer PT turns more weights than it uses
_WORTH = 0.9  # of all scores: with more, blocks cost more than they save


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, and the keys that one of them may see."""

    rows: Span
    keys: Span


def cut_masked_rows(kernel: Kernel, card: CardSpec) -> Kernel:
    """Cuts the attentions that a mask makes cheaper."""
    readers = Readers(kernel)
    cuts = _Cuts(kernel, card)
    for scores in kernel.ops:
        found = softmax_rows(scores, readers)
        if found is None or not _stay_together(found, readers):
            continue  # the ops of one are not those of another: their scores are not the same
        blocks = _blocks(Masked.of_rows(found, readers))
        computed = sum(block.rows[1] * block.keys[1] for block in blocks)
        if computed <= found.rows * found.keys * _WORTH:
            cuts.cut(found, blocks)
    return cuts.kernel()


def _stay_together(found: SoftmaxRows, readers: Readers) -> bool:
    """Whether the ops can all run where the last one does."""
    own = {op.name for op in found.ops}
    written: set[str] = set()
    needed: set[str] = set()
    first, last = (readers.at[op.name] for op in (found.ops[0], found.ops[-1]))
    for op in readers.kernel.ops[first:last]:
        if op.name in own:
            written.add(op.out.tensor)
            needed |= {t for t, _ in reads(op)}
        elif op.out.tensor in needed | written or any(t in written for t, _ in reads(op)):
            return False
    return True


def _blocks(masked: Masked) -> tuple[Block, ...]:
    """Equal blocks of rows; all rows in one where there are few."""
    rows = masked.of.rows
    count = max(1, min(_MOST_BLOCKS, rows // _LEAST_ROWS))
    each = ceil(rows / count)
    each = ceil(each / STICK_POINTS) * STICK_POINTS if count > 1 else each
    spans = ((first, min(each, rows - first)) for first in range(0, rows, each))
    return tuple(Block(span, _seen(masked, span)) for span in spans)


def _seen(masked: Masked, rows: Span) -> Span:
    """The keys, in whole sticks, outside of which all are hidden from all of some rows."""
    keys = masked.of.keys
    units = ceil(keys / STICK_POINTS)

    def before(count: int) -> bool:
        return count == 0 or masked.hides(rows, (0, count * STICK_POINTS))

    def behind(count: int) -> bool:
        first = (units - count) * STICK_POINTS
        return count == 0 or masked.hides(rows, (first, keys - first))

    first = _most(before, units - 1)
    last = units - _most(behind, units - 1 - first)
    return first * STICK_POINTS, min(keys, last * STICK_POINTS) - first * STICK_POINTS


def _most(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which something holds that holds for all below."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if holds(middle):
            least = middle
        else:
            most = middle - 1
    return least


class _Cuts:
    """A kernel while its attentions are replaced by their blocks."""

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.whole, self.card = kernel, card
        self.fresh, self.tensors = Fresh(kernel), dict(kernel.tensors)
        self.instead: dict[str, tuple[Op, ...]] = {}

    def kernel(self) -> Kernel:
        """The kernel with the blocks."""
        if not self.instead:
            return self.whole
        ops = (new for op in self.whole.ops for new in self.instead.get(op.name, (op,)))
        return replace(self.whole, tensors=self.tensors, ops=tuple(ops))

    def cut(self, found: SoftmaxRows, blocks: Sequence[Block]) -> None:
        """Puts the blocks where the last op of the whole is."""
        cut = [self._ops_of(found, block) for block in blocks]
        for op in found.ops:
            self.instead[op.name] = ()
        most = 2 if self._fit_together(found, blocks[-2:]) else 1
        self.instead[found.ops[-1].name] = tuple(_in_order(found, cut[::-1], most))

    def _ops_of(self, found: SoftmaxRows, block: Block) -> tuple[Op, ...]:
        names = {tensor: self.fresh.name(tensor) for tensor in found.tensors}
        for tensor, new in names.items():
            shape, walks = list(self.tensors[tensor].shape), found.tensors[tensor]
            for place, (_, count) in ((walks.row, block.rows), (walks.key, block.keys)):
                if place is not None:
                    shape[int(place)] = Expr.of(count)
            self.tensors[new] = replace(self.tensors[tensor], name=new, shape=tuple(shape))
        return tuple(self._op_of(op, found, block, names) for op in found.ops)

    def _op_of(self, op: Op, found: SoftmaxRows, block: Block, names: Mapping[str, str]) -> Op:
        walks = found.walks[op.name]
        spans = {walks.row: block.rows, walks.key: block.keys}
        spans.pop(None, None)
        at = {str(name): Expr.var(str(name)) + first for name, (first, _) in spans.items()}

        def moved(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(e.substitute(at) for e in index)

        def node(value: Scalar) -> Scalar:
            match value:
                case Load(tensor=tensor, index=index):
                    own = names.get(tensor)
                    if own is None:
                        return replace(value, index=moved(index))
                    return replace(value, tensor=own)
                case Index(value=expr):
                    return replace(value, value=expr.substitute(at))
            return value

        counts = {name: Expr.of(count) for name, (_, count) in spans.items()}

        def fewer(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(Dim(d.name, counts.get(d.name, d.extent)) for d in dims)

        out = op.out.tensor
        own = Access(names[out], op.out.index) if out in names else None
        return replace(
            op,
            name=self.fresh.name(op.name),
            dims=fewer(op.dims),
            rdims=fewer(op.rdims),
            body=rewritten(op.body, node),
            out=own or Access(out, moved(op.out.index)),
            lookups=tuple(replace(k, index=moved(k.index)) for k in op.lookups),
        )

    def _fit_together(self, found: SoftmaxRows, blocks: Sequence[Block]) -> bool:
        """Whether the scores of two blocks fit LX for half the rows that fill PT.

        The exponentials of one of them lie beside them. Scores made ahead that do not fit would
        wait in device memory. PT has time to spare: SFU takes more than twice as long.
        """
        first, *_, last = (self.tensors[op.out.tensor].dtype.bytes for op in _over_keys(found))
        keys = [block.keys[1] for block in blocks]
        row = first * sum(keys) + last * max(keys)
        return self.card.pt_fill_rows // 2 * row <= self.card.lx_usable


def _over_keys(found: SoftmaxRows) -> Iterator[Op]:
    """The ops whose results have keys: scores first."""
    for op in found.ops:
        walks = found.tensors.get(op.out.tensor)
        if walks is not None and walks.key is not None:
            yield op


def _in_order(found: SoftmaxRows, blocks: Sequence[tuple[Op, ...]], most: int) -> Iterator[Op]:
    """The ops of blocks so that PT makes the scores of `most` blocks while SFU is busy with one.

    What comes after the product of a block comes after the exponentials of the next one, which
    would otherwise wait for that product.
    """
    made = max(n for n, op in enumerate(found.ops) if op.name in found.products) + 1
    ahead: list[tuple[Op, ...]] = []
    raised: list[tuple[Op, ...]] = []

    def raise_next() -> Iterator[Op]:
        block = ahead.pop(0)
        yield from block[1:made]
        raised.append(block[made:])

    for block in blocks:
        yield block[0]
        ahead.append(block)
        if len(ahead) == most:
            yield from raise_next()
        if len(raised) == most:
            yield from raised.pop(0)
    while ahead:
        yield from raise_next()
        yield from raised.pop(0)
    for rest in raised:
        yield from rest
