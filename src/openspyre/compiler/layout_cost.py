"""What an op takes by itself, for choosing how its local tensors lie.

Steps and divisions are not known yet, so every op is looked at alone, divided as suits it best. A
local tensor is fetched on the ring, or comes through device memory if it is too large to stay in
LX. What counts is what layouts change: runs, lanes that step through LX, and operands of PT that
SFU turns first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.ring_moves import Move, ring_cycles
from openspyre.compiler.work import Counts, Flow, Matmul, OpWork
from openspyre.ir.kernel import Kernel, Op, Role, Tensor
from openspyre.spec import CardSpec

_STAYS = 0.5  # of all LX: larger tensors go through device memory
_SUM_BYTES = 4  # of a result that PT writes with another stick dim


@dataclass(frozen=True, slots=True)
class _Share:
    """What one core does: points along every dim, and in how many parts the dims are."""

    counts: Counts
    parts: Counts


def small_enough_to_stay(kernel: Kernel, tensor: Tensor, card: CardSpec) -> bool:
    """Whether a local tensor is small enough to stay in LX between steps."""
    size = prod(highest(n, kernel.limits) for n in tensor.shape) * tensor.dtype.bytes
    return size <= card.lx_usable * card.cores * _STAYS


def op_cycles(kernel: Kernel, op: Op, card: CardSpec) -> float:
    """Cycles of an op with its tensors as they lie in `kernel`, divided as suits it best."""
    return _Alone(kernel, op, card).cycles()


class _Alone:
    """An op on all cores."""

    def __init__(self, kernel: Kernel, op: Op, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self.work = OpWork(op, kernel, card)
        self.memory = frozenset(f.tensor for f in self.work.flows if self._in_memory(f))

    def _in_memory(self, flow: Flow) -> bool:
        tensor = self.kernel.tensors[flow.tensor]
        return tensor.role is not Role.LOCAL or not small_enough_to_stay(
            self.kernel, tensor, self.card
        )

    def cycles(self) -> float:
        return min(self._shared(share) for share in self._shares())

    def _shares(self) -> Iterator[_Share]:
        """Splits of the result over as many cores as it has work for, in powers of two."""
        work = self.work
        grains = list(work.sizes[: work.parallel])
        for dim in {*work.sticks, work.panel} - {-1}:
            grains[dim] = ceil(grains[dim] / work.store_granule(dim, work.element))
        splits: list[Counts] = [()]
        for grain in grains:
            parts = [1]
            while parts[-1] < min(grain, self.card.cores):
                parts.append(2 * parts[-1])
            splits = [(*s, p) for s in splits for p in parts if prod(s) * p <= self.card.cores]
        most = max(prod(s) for s in splits)
        for split in splits:
            if prod(split) == most:
                padded = (*split, *[1] * (len(work.sizes) - work.parallel))
                counts = (ceil(n / p) for n, p in zip(work.sizes, padded, strict=True))
                yield _Share(tuple(counts), padded)

    def _shared(self, share: _Share) -> float:
        work = self.work
        memory = sum(self._copied(f, share) for f in work.flows if f.tensor in self.memory)
        if work.matmul is None:
            return max(memory, work.cost(share.counts).busy)
        moved = 0.0
        for flow in work.flows:
            if flow.tensor not in self.memory and not flow.store:
                moved += self._copied(flow, share)
            moved += self._turned(flow, share)
        return max(memory, self._multiplied(work.matmul, share)) + moved

    def _multiplied(self, dims: Matmul, share: _Share) -> float:
        """Cycles of PT, whichever operand is the left one."""
        points = prod(share.counts[d] for d in (*dims.batch, *dims.m, *dims.n[:-1], *dims.k[:-1]))
        stick = self.work.stick
        for dim in (*dims.n[-1:], *dims.k[-1:]):
            points *= ceil(share.counts[dim] / stick) * stick
        return points / self.work.rate

    def _copied(self, flow: Flow, share: _Share) -> float:
        """Cycles in which all cores' parts are fetched, or loaded or stored."""
        card = self.card
        size = prod(share.counts[d] for d in flow.dims) * flow.element
        apart = prod(share.parts[d] for d in flow.dims)
        if self.kernel.tensors[flow.tensor].role is not Role.LOCAL:
            return size * apart / card.dram_oneway * card.clock_ghz
        move = Move(size, _run(flow, share.counts), apart, prod(share.parts))
        if flow.tensor not in self.memory:
            return ring_cycles(move, card)
        run = max(move.run, card.stick_bytes)
        each = max(card.dram_request_ns, run / card.dram_oneway)
        return ceil(move.bytes / move.run) * apart * each * card.clock_ghz

    def _turned(self, flow: Flow, share: _Share) -> float:
        """Cycles in which SFU turns what PT reads or writes, if its stick dim is another."""
        local = self.kernel.tensors[flow.tensor].role is Role.LOCAL
        walked = _walked(flow, share.counts)
        if not local or not walked or walked[-1][0] == min(walked)[0]:
            return 0.0
        points = prod(count for _, count in walked)
        size = _SUM_BYTES if flow.store else flow.element
        return points * size / self.card.transpose_rate * self.card.clock_ghz


def _run(flow: Flow, counts: Counts) -> int:
    """Bytes of a core's part that lie together."""
    run = flow.element
    for pitch, count in sorted(_walked(flow, counts)):
        if pitch != run:
            break
        run *= count
    return run


def _walked(flow: Flow, counts: Counts) -> list[tuple[int, int]]:
    """(pitch, points) of the dims of which a core has more than a point."""
    found = ((p, counts[d]) for d, p in zip(flow.dims, flow.pitches, strict=True))
    return [(pitch, count) for pitch, count in found if count > 1]
