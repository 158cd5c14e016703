"""What a process group of torch calls for tensors of the card.

Every method gives a work object at once; a lane does the collective after what the caller's
stream has been given so far. The bytes move as `exchange` says; reductions are the card's.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from openspyre import _C
from openspyre.device.distributed.calls import CollectiveError, RankLost
from openspyre.device.distributed.checks import (
    check_count,
    check_outputs,
    check_rank,
    check_tag,
    check_tensors,
)
from openspyre.device.distributed.collectives import Collectives, Run
from openspyre.device.distributed.exchange import Control, Path, meet, path_between
from openspyre.device.distributed.lanes import Done, Job, Lane
from openspyre.device.distributed.messages import Messages
from openspyre.device.distributed.reductions import Reduction, prepare, reduction
from openspyre.device.distributed.splits import dim_splits
from openspyre.errors import SpyreError

_UNSET = timedelta(milliseconds=-1)
_DRAIN = 10.0  # seconds that a group which ends waits for its messages to be taken


def create(options: Any) -> Any:
    """The backend of a new process group, from torch's _DistributedBackendOptions."""
    ranks = options.global_ranks_in_group or range(options.group_size)
    return _joined(options.store, options.group_rank, ranks, options.timeout)


def _joined(store: Any, rank: int, world_ranks: Sequence[int], timeout: timedelta) -> Any:
    """The backend of a group; all its ranks call this."""
    control = meet(store, rank, world_ranks, timeout)
    group = Group(control, path_between(control, timeout), timeout)
    milliseconds = round(timeout / timedelta(milliseconds=1))
    return _C.collective_backend(group, rank, control.ranks, milliseconds)


class Group:
    """The ranks of a process group and this process as one of them."""

    def __init__(self, control: Control, path: Path, timeout: timedelta) -> None:
        self._control, self._timeout = control, timeout
        self._collectives = Collectives(control, path)
        self._messages = Messages(control, near=self._collectives.near)
        self._lanes: dict[str, Lane] = {}
        self._health = Health()
        self._end = weakref.finalize(self, _end, self._lanes, self._messages, self._health)
        self._together: list[tuple[Work, Run]] | None = None

    # --- what c10d calls; names and arguments are the extension's (csrc/device/distributed.cpp) ---

    def broadcast(self, tensors: list[Tensor], options: Any) -> Work:
        """The root's tensor for every rank."""
        first = check_tensors("broadcast", tensors)
        root = self._root("broadcast", options)
        return self._start(
            "broadcast", first, options, tensors,
            lambda run: run.each(run.broadcast, tensors, root),
            written=[] if root == self._control.rank else tensors,
        )  # fmt: skip

    def all_reduce(self, tensors: list[Tensor], options: Any) -> Work:
        """A reduction over ranks, for every rank; of several tensors one by one."""
        first = check_tensors("all_reduce", tensors)
        op = reduction(options.reduceOp, first, "all_reduce")
        self._prepare(op, tensors)
        return self._start(
            "all_reduce", first, options, tensors, lambda run: run.each(run.all_reduce, tensors, op)
        )

    def reduce(self, tensors: list[Tensor], options: Any) -> Work:
        """A reduction over ranks, for the root."""
        first = check_tensors("reduce", tensors)
        root = self._root("reduce", options)
        op = reduction(options.reduceOp, first, "reduce")
        self._prepare(op, tensors)
        return self._start(
            "reduce", first, options, tensors,
            lambda run: run.each(run.reduce, tensors, op, root),
            written=tensors if root == self._control.rank else [],
        )  # fmt: skip

    def all_gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> Work:
        """Every rank's tensor for every rank; sizes may differ between ranks."""
        first = check_tensors("all_gather", [*inputs, *(t for row in outputs for t in row)])
        check_count("all_gather", len(outputs), len(inputs), "lists of outputs")
        for row, given in zip(outputs, inputs, strict=True):
            check_count("all_gather", len(row), self._control.ranks, "outputs")
            self._check_own("all_gather", given, row)
        return self._start(
            "all_gather", first, options, [t for row in outputs for t in row],
            lambda run: run.each(run.all_gather, list(zip(inputs, outputs, strict=True))),
        )  # fmt: skip

    def all_gather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any
    ) -> Work:
        """The same for several tensors; outputs by rank, then by tensor."""
        check_count("all_gather", len(outputs), self._control.ranks, "lists of outputs")
        for row in outputs:
            check_count("all_gather", len(row), len(inputs), "outputs")
        return self.all_gather([list(row) for row in zip(*outputs, strict=True)], inputs, options)

    def all_gather_into_tensors(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any
    ) -> Work:
        """Every rank's tensor for every rank, one after the other in one tensor."""
        what = "all_gather_into_tensor"
        first = check_tensors(what, [*inputs, *outputs])
        check_count(what, len(outputs), len(inputs), "outputs")
        for output, given in zip(outputs, inputs, strict=True):
            needed = self._control.ranks * given.numel()
            check_count(what, output.numel(), needed, "elements of the output")
        return self._start(
            what, first, options, outputs,
            lambda run: run.each(run.all_gather_into, list(zip(inputs, outputs, strict=True))),
        )  # fmt: skip

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> Work:
        """Every rank's tensor for the root."""
        root = self._root("gather", options)
        taken = self._of_root("gather", outputs, root, "outputs")
        first = check_tensors("gather", [*inputs, *taken])
        if taken:
            self._check_own("gather", inputs[0], taken)
        return self._start(
            "gather", first, options, taken,
            lambda run: run.each(run.gather, [(inputs[0], taken)], root),
        )  # fmt: skip

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any) -> Work:
        """A tensor of the root's for each rank."""
        root = self._root("scatter", options)
        given = self._of_root("scatter", inputs, root, "inputs")
        first = check_tensors("scatter", [*outputs, *given])
        if given:
            self._check_own("scatter", outputs[0], given)
        return self._start(
            "scatter", first, options, outputs,
            lambda run: run.each(run.scatter, [(given, outputs[0])], root),
        )  # fmt: skip

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any
    ) -> Work:
        """A reduction over ranks of one input for each rank; sizes may differ between ranks."""
        what = "reduce_scatter"
        first = check_tensors(what, [*outputs, *(t for row in inputs for t in row)])
        check_count(what, len(outputs), len(inputs), "outputs")
        for output, row in zip(outputs, inputs, strict=True):
            check_count(what, len(row), self._control.ranks, "inputs")
            self._check_own(what, output, row)
        op = reduction(options.reduceOp, first, what)
        self._prepare(op, outputs)
        return self._start(
            what, first, options, outputs,
            lambda run: run.each(run.reduce_scatter, list(zip(inputs, outputs, strict=True)), op),
        )  # fmt: skip

    def reduce_scatter_tensors(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any
    ) -> Work:
        """The same with the inputs one after the other in one tensor."""
        what = "reduce_scatter_tensor"
        first = check_tensors(what, [*outputs, *inputs])
        check_count(what, len(outputs), len(inputs), "outputs")
        for output, given in zip(outputs, inputs, strict=True):
            needed = self._control.ranks * output.numel()
            check_count(what, given.numel(), needed, "elements of the input")
        op = reduction(options.reduceOp, first, what)
        self._prepare(op, outputs)
        return self._start(
            what, first, options, outputs,
            lambda run: run.each(
                run.reduce_scatter_from, list(zip(inputs, outputs, strict=True)), op
            ),
        )  # fmt: skip

    def all_to_all_single(
        self, output: Tensor, given: Tensor, taken_sizes: list[int], given_sizes: list[int],
        options: Any,
    ) -> Work:  # fmt: skip
        """Rows of a tensor for each rank, rows from each rank."""
        what = "all_to_all_single"
        first = check_tensors(what, [given, output])
        ranks = self._control.ranks
        gives = dim_splits(what, given, given_sizes, ranks, "input")
        takes = dim_splits(what, output, taken_sizes, ranks, "output")
        me = self._control.rank
        check_count(what, takes[me][1], gives[me][1], "elements from this rank itself")
        return self._start(
            what, first, options, [output],
            lambda run: run.all_to_all_single(given, output, gives, takes),
        )  # fmt: skip

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor], options: Any) -> Work:
        """A tensor for each rank, one from each rank."""
        first = check_tensors("all_to_all", [*inputs, *outputs])
        for tensors, of in ((inputs, "inputs"), (outputs, "outputs")):
            check_count("all_to_all", len(tensors), self._control.ranks, of)
        self._check_own("all_to_all", inputs[self._control.rank], outputs)
        return self._start(
            "all_to_all", first, options, outputs, lambda run: run.all_to_all(inputs, outputs)
        )

    def barrier(self, options: Any) -> Work:
        """Waits until every rank has come here."""
        index = options.device.index if options.device is not None else None
        index = torch.accelerator.current_device_index() if index is None else index
        mark = _mark(index)
        return self._start("barrier", mark, options, [], lambda run: run.barrier(mark))

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Work:
        """Sends a tensor to a rank."""
        tensor = self._one("send", tensors)
        check_rank("send", to, self._control.ranks, "receiver")
        check_tag("send", tag)

        def act(run: Run) -> None:
            run.took(run.ready, self._messages.send(tensor, to, tag, run.ready, run.timeout))

        return self._start("send", tensor, None, [], act, lane=f"send {to} {tag}")

    def receive(self, tensors: list[Tensor], source: int | None, tag: int) -> Work:
        """Receives a tensor from a rank, or from any one."""
        tensor = self._one("receive", tensors)
        if source is not None:
            check_rank("receive", source, self._control.ranks, "sender")
        check_tag("receive", tag)

        def act(run: Run) -> None:
            size, run.source, ready = self._messages.receive(tensor, source, tag, run.timeout)
            run.took(max(run.ready, ready), size)

        lane = f"receive {source} {tag}"  # a message may be waited for while others come
        return self._start("receive", tensor, None, tensors, act, lane=lane)

    def start_coalescing(self) -> None:
        """What is called from now on has one work object."""
        self._together = []

    def end_coalescing(self) -> Work:
        """The work object of all that was called since."""
        works, self._together = self._together or [], None
        if not works:
            raise SpyreError(
                "coalescing: there was no call between its start and its end",
                hint="call collectives of this group there",
            )

        def act(run: Run) -> None:
            for work, part in works:
                work.wait()
                run.ends = max(run.ends, part.ends)

        mark = _mark(works[0][1].device)
        return self._start("coalesced calls", mark, None, [], act, lane="together")

    def split(self, store: Any, ranks: list[int], timeout: timedelta) -> Any:
        """The backend of a group of some of the ranks, this one among them."""
        world_ranks = [self._control.world_ranks[rank] for rank in ranks]
        return _joined(store, ranks.index(self._control.rank), world_ranks, timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long calls wait for other ranks that name no time themselves."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Ends after what was called, and waits a while for messages that nobody has taken."""
        until = time.monotonic() + _DRAIN
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.end()
        if not all(lane.ended(max(0.0, until - time.monotonic())) for lane in lanes):
            self._leave(CollectiveError("the process group was ended"))
        self._end()

    def abort(self) -> None:
        """Ends at once: whoever waits for this rank gets an error."""
        self._leave(CollectiveError("the process group was aborted"))

    # --- how they start -------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        first: Tensor,
        options: Any,
        outputs: Sequence[Tensor],
        act: Callable[[Run], None],
        *,
        lane: str = "collectives",
        written: Sequence[Tensor] | None = None,
    ) -> Work:
        """Gives a lane what to do; `written` are the outputs that this rank writes, if not all."""
        self._check_usable(name)
        check_outputs(name, outputs if written is None else written)
        device = first.device.index
        ready = _C.card_time(device) if _C.is_timing() else None
        run = self._collectives.run(device, ready, self._time_for(options))
        work = _C.new_collective(name, device)
        after = torch.accelerator.current_stream(first.device).record_event()

        def do() -> Done:
            with self._watched(name):
                act(run)
            times = (0, 0) if ready is None else (run.begins, run.ends)
            return Done(list(outputs), *times, run.source)

        if lane not in self._lanes:
            self._lanes[lane] = Lane(f"spyreccl {lane}")
        self._lanes[lane].submit(Job(work, device, after, do))
        if self._together is not None:
            self._together.append((work, run))
        return work

    def _prepare(self, op: Reduction, reduced: Sequence[Tensor]) -> None:
        for tensor in reduced:
            prepare(op, self._control.ranks, tensor, [tensor.numel()])

    def _check_usable(self, name: str) -> None:
        if self._health.failure is not None:
            raise CollectiveError(
                f"{name}: this process group has failed before",
                why=str(self._health.failure),
                hint="end it with destroy_process_group() and start again",
            )
        if not self._end.alive:
            raise CollectiveError(
                f"{name}: this process group was ended", hint="start another one with new_group()"
            )

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Names what fails. A rank that does not go on leaves the group, so that others know."""
        self._check_usable(name)
        try:
            yield
        except RankLost as error:
            named = RankLost(f"{name}: {error.what}", why=error.why, hint=error.hint)
            self._leave(named)
            raise named from error
        except CollectiveError:
            raise  # all ranks have it, and are in step
        except Exception as error:
            self._leave(error)
            raise

    def _leave(self, error: Exception) -> None:
        if self._health.failure is None:
            self._health.failure = error
            self._control.leave()
            self._messages.drain(0)

    def _time_for(self, options: Any) -> timedelta:
        given = options.timeout if options is not None else _UNSET
        return given if given > timedelta(0) else self._timeout

    def _one(self, what: str, tensors: Sequence[Tensor]) -> Tensor:
        check_count(what, len(tensors), 1, "tensors")
        return check_tensors(what, tensors)

    def _root(self, what: str, options: Any) -> int:
        root: int = options.rootRank
        check_rank(what, root, self._control.ranks, "root")
        return root

    def _check_own(self, what: str, tensor: Tensor, others: Sequence[Tensor]) -> None:
        """Whether a rank's tensor is as large as the one of a list that it gives itself."""
        mine = others[self._control.rank].numel()
        check_count(what, tensor.numel(), mine, "elements for this rank's own part")

    def _of_root(
        self, what: str, lists: Sequence[Sequence[Tensor]], root: int, of: str
    ) -> Sequence[Tensor]:
        """What only the root gives a list of."""
        if self._control.rank != root:
            check_count(what, len(lists), 0, f"lists of {of} on a rank that is not the root")
            return []
        check_count(what, len(lists), 1, f"lists of {of}")
        check_count(what, len(lists[0]), self._control.ranks, of)
        return lists[0]


def _mark(device: int) -> Tensor:
    """What a call without tensors shows: every rank the same."""
    return torch.empty(0, dtype=torch.uint8, device=torch.device("spyre", device))


class Health:
    """What has made a group of no use, if something has."""

    def __init__(self) -> None:
        self.failure: Exception | None = None


def _end(lanes: dict[str, Lane], messages: Messages, health: Health) -> None:
    """What is left to do when a group ends, or the process."""
    for lane in lanes.values():
        lane.end()
    messages.drain(_DRAIN if health.failure is None else 0)
