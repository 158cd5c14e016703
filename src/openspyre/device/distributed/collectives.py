"""Collectives as exchanges of bytes and reductions, on the thread of a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from openspyre.device.distributed.buffers import Target, flat_bytes, packed, write
from openspyre.device.distributed.calls import Call
from openspyre.device.distributed.exchange import Bytes, Control, Path, Shared, exchange
from openspyre.device.distributed.link import (
    link_picoseconds,
    message_picoseconds,
    reduction_picoseconds,
)
from openspyre.device.distributed.reductions import Reduction
from openspyre.device.distributed.splits import even_spans

# From here on a reduction for everyone is shared out, each rank reducing a part: half the bytes
# for many ranks, one exchange more.
_SHARED_OUT = 256 << 10
T = TypeVar("T")
P = ParamSpec("P")
Span = tuple[int, int]


class Collectives:
    """The collectives of a group, one after the other."""

    def __init__(self, control: Control, path: Path) -> None:
        self.control, self.path = control, path
        self.near = isinstance(path, Shared)
        self.link_free = 0  # card time in ps when the last exchange ended

    def run(self, device: int, ready: int | None, timeout: timedelta) -> Run:
        """A call that begins on a card, ready at a card time in ps (none: nobody counts it)."""
        return Run(self, device, ready or 0, timeout)


class Run:
    """One call while it is done; `begins` and `ends` are its card time in ps."""

    def __init__(self, of: Collectives, device: int, ready: int, timeout: timedelta) -> None:
        self._of, self._control = of, of.control
        self.device, self.ready, self.timeout = device, ready, timeout
        self.begins = self.ends = 0
        self.source = -1

    def each(
        self, act: Callable[Concatenate[T, P], None], items: Sequence[T],
        *rest: P.args, **more: P.kwargs,
    ) -> None:  # fmt: skip
        """Does a collective for every item."""
        for item in items:
            act(item, *rest, **more)

    def took(self, begins: int, count: int) -> None:
        """A message of so many bytes began then."""
        self.begins = begins
        self.ends = begins + message_picoseconds(count)

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self, mark: Tensor) -> None:
        """Nothing moves; everybody has come."""
        self._exchange("barrier", mark, {}, {})

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The root's values for everyone."""
        if self._control.rank == root:
            given = self._everyone(flat_bytes(packed(tensor)))
            return self._exchange("broadcast", tensor, given, {}, alike=True, root=root)
        target = Target(tensor)
        self._exchange("broadcast", tensor, {}, {root: target.bytes}, alike=True, root=root)
        target.settle()

    def all_reduce(self, tensor: Tensor, op: Reduction) -> None:
        """Reduces over ranks."""
        source = packed(tensor).reshape(-1)
        ranks = self._control.ranks
        if ranks > 2 and source.numel() * source.element_size() > _SHARED_OUT:
            return write(tensor, self._shared_out(tensor, source, op))
        stacked, taken = self._stack(source)
        given = self._everyone(flat_bytes(source))
        self._exchange("all_reduce", tensor, given, taken, alike=True, op=op)
        write(tensor, self._reduced(stacked, op))

    def reduce(self, tensor: Tensor, op: Reduction, root: int) -> None:
        """Reduces over ranks, for the root."""
        source = packed(tensor).reshape(-1)
        if self._control.rank != root:
            given = {root: flat_bytes(source)}
            return self._exchange("reduce", tensor, given, {}, alike=True, op=op, root=root)
        stacked, taken = self._stack(source)
        self._exchange("reduce", tensor, {}, taken, alike=True, op=op, root=root)
        write(tensor, self._reduced(stacked, op))

    def all_gather(self, pair: tuple[Tensor, Sequence[Tensor]]) -> None:
        """A tensor of everyone's, in tensors."""
        tensor, outputs = pair
        self._gathered("all_gather", tensor, [Target(output) for output in outputs])

    def all_gather_into(self, pair: tuple[Tensor, Tensor]) -> None:
        """A tensor of everyone's, in one tensor."""
        tensor, output = pair
        whole = Target(output)
        parts = [Target(part) for part in whole.whole.reshape(-1).chunk(self._control.ranks)]
        if tensor.numel():
            self._gathered("all_gather_into_tensor", tensor, parts)
        else:
            self._exchange("all_gather_into_tensor", tensor, {}, {}, alike=True)
        whole.settle()

    def gather(self, pair: tuple[Tensor, Sequence[Tensor]], root: int) -> None:
        """A tensor of everyone's, for the root."""
        tensor, outputs = pair
        me = self._control.rank
        if me != root:
            given = {root: flat_bytes(packed(tensor))}
            return self._exchange("gather", tensor, given, {}, alike=True, root=root)
        targets = [Target(output) for output in outputs]
        taken = {rank: target.bytes for rank, target in enumerate(targets)}
        self._own(targets[me], tensor)
        self._exchange("gather", tensor, {}, taken, alike=True, root=root)
        for target in targets:
            target.settle()

    def scatter(self, pair: tuple[Sequence[Tensor], Tensor], root: int) -> None:
        """One of the root's tensors for each rank."""
        inputs, output = pair
        target = Target(output)
        if self._control.rank == root:
            given = {rank: flat_bytes(packed(one)) for rank, one in enumerate(inputs)}
            self._exchange("scatter", output, given, {}, root=root)
            self._own(target, inputs[root])
        else:
            self._exchange("scatter", output, {}, {root: target.bytes}, root=root)
        target.settle()

    def reduce_scatter(self, pair: tuple[Sequence[Tensor], Tensor], op: Reduction) -> None:
        """Reduces one of everyone's tensors for each rank."""
        inputs, output = pair
        parts = [packed(one).reshape(-1) for one in inputs]
        write(output, self._scattered("reduce_scatter", output, parts, op))

    def reduce_scatter_from(self, pair: tuple[Tensor, Tensor], op: Reduction) -> None:
        """The same, from one tensor."""
        tensor, output = pair
        source, size = packed(tensor).reshape(-1), output.numel()
        parts = [source[rank * size : (rank + 1) * size] for rank in range(self._control.ranks)]
        write(output, self._scattered("reduce_scatter_tensor", tensor, parts, op))

    def all_to_all_single(
        self, tensor: Tensor, output: Tensor, gives: Sequence[Span], takes: Sequence[Span]
    ) -> None:
        """Parts of a tensor for each rank, parts from each rank."""
        source, target = packed(tensor).reshape(-1), Target(output)
        flat = target.whole.reshape(-1)
        self._all_to_all(
            "all_to_all_single",
            [source[start : start + size] for start, size in gives],
            [Target(flat[start : start + size]) for start, size in takes],
        )
        target.settle()

    def all_to_all(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """A tensor for each rank, one from each rank."""
        self._all_to_all("all_to_all", inputs, [Target(output) for output in outputs])

    # --- their parts ----------------------------------------------------------------------------

    def _exchange(
        self,
        kind: str,
        shown: Tensor,
        given: dict[int, Tensor],
        taken: dict[int, Tensor],
        *,
        alike: bool = False,
        op: Reduction | None = None,
        root: int = -1,
    ) -> None:
        """Moves bytes by rank; a rank's own stay where they are."""
        ranks, me = range(self._control.ranks), self._control.rank
        none = torch.empty(0, dtype=torch.uint8, device=shown.device)
        moved = Bytes(
            [none if rank == me else given.get(rank, none) for rank in ranks],
            [none if rank == me else taken.get(rank, none) for rank in ranks],
            alike,
        )
        sends, takes = moved.sizes()
        call = Call(
            kind, shown.dtype, tuple(shown.shape), sends, takes, op.name if op else "", root,
            max(self.ready, self.ends, self._of.link_free),
        )  # fmt: skip
        calls = exchange(self._control, self._of.path, call, moved, self.timeout)
        starts = max(one.ready for one in calls)
        self.begins = self.begins or starts
        self.ends = self._of.link_free = starts + link_picoseconds(calls, shared=alike)

    def _everyone(self, contents: Tensor) -> dict[int, Tensor]:
        return dict.fromkeys(range(self._control.ranks), contents)

    def _stack(self, own: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Room for an operand of every rank, with this rank's in it."""
        ranks, me = self._control.ranks, self._control.rank
        stacked = torch.empty(ranks, own.numel(), dtype=own.dtype, device=own.device)
        stacked[me].copy_(own)
        return stacked, {rank: flat_bytes(stacked[rank]) for rank in range(ranks)}

    def _reduced(self, stacked: Tensor, op: Reduction) -> Tensor:
        if not stacked.numel():
            return stacked[0]
        self.ends += reduction_picoseconds(
            stacked.shape[0], stacked[0].numel() * stacked.element_size()
        )
        return op(stacked)

    def _shared_out(self, tensor: Tensor, source: Tensor, op: Reduction) -> Tensor:
        """Each rank reduces its part and gives it to all."""
        spans = even_spans(source.numel(), self._control.ranks)
        parts = [source[start : start + size] for start, size in spans]
        mine = self._scattered("all_reduce", tensor, parts, op)
        whole = torch.empty_like(source)
        targets = [Target(whole[start : start + size]) for start, size in spans]
        self._gathered("all_reduce", mine, targets, op, shown=tensor)
        return whole

    def _scattered(
        self, kind: str, shown: Tensor, parts: Sequence[Tensor], op: Reduction
    ) -> Tensor:
        stacked, taken = self._stack(parts[self._control.rank])
        given = {rank: flat_bytes(part) for rank, part in enumerate(parts)}
        self._exchange(kind, shown, given, taken, op=op)
        return self._reduced(stacked, op)

    def _gathered(
        self,
        kind: str,
        tensor: Tensor,
        targets: Sequence[Target],
        op: Reduction | None = None,
        *,
        shown: Tensor | None = None,
    ) -> None:
        source = packed(tensor)
        taken = {rank: target.bytes for rank, target in enumerate(targets)}
        given = self._everyone(flat_bytes(source))
        self._exchange(kind, tensor if shown is None else shown, given, taken, alike=True, op=op)
        self._own(targets[self._control.rank], source)
        for target in targets:
            target.settle()

    def _all_to_all(self, kind: str, inputs: Sequence[Tensor], targets: Sequence[Target]) -> None:
        me = self._control.rank
        given = {rank: flat_bytes(packed(one)) for rank, one in enumerate(inputs)}
        taken = {rank: target.bytes for rank, target in enumerate(targets)}
        self._exchange(kind, inputs[me], given, taken)
        self._own(targets[me], inputs[me])
        for target in targets:
            target.settle()

    @staticmethod
    def _own(target: Target, tensor: Tensor) -> None:
        """What a rank gives itself."""
        write(target.whole, packed(tensor))
