"""Moves bytes between the cards of a group's ranks.

gloo carries what ranks say of a call, and is what tells that a rank is gone. The bytes go through
shared memory where all ranks of the group reach each other's, over gloo otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, ProcessGroupGloo

from openspyre.device.distributed.calls import (
    Call,
    CollectiveError,
    RankLost,
    check_agreement,
    decode,
    encode,
)
from openspyre.device.distributed.shared import Address, OwnSegment, Segment, attach
from openspyre.errors import SpyreError

WINDOW = 8 << 20  # bytes that a rank shows the others at a time; there are two
_EXCHANGE_TAG = 0  # messages have others
_ALIGN = 128


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a rank gives and takes: flat uint8 tensors of its card, by rank.

    `alike` says that every other rank gets the same bytes.
    """

    given: Sequence[Tensor]
    taken: Sequence[Tensor]
    alike: bool

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes given and taken, by rank."""
        return tuple(t.numel() for t in self.given), tuple(t.numel() for t in self.taken)


class Path(Protocol):
    """A way for bytes between ranks that have agreed on their sizes."""

    def begin(self, moved: Bytes) -> None:
        """Before the ranks agree: shows what can be shown."""

    def end(self, moved: Bytes, calls: Sequence[Call], timeout: timedelta) -> None:
        """After they have agreed: moves the bytes."""


class Control:
    """What the ranks of a group say to each other.

    Args:
        gloo: a ProcessGroupGloo of their own; torch's types leave out what it does.
        world_ranks: how the ranks are called in the world, for errors.
    """

    def __init__(self, gloo: Any, world_ranks: Sequence[int]) -> None:
        self._gloo, self.world_ranks = gloo, world_ranks
        self.rank, self.ranks = gloo.rank(), gloo.size()

    @property
    def gloo(self) -> Any:
        """The group that carries it.

        Raises:
            CollectiveError: this rank has left.
        """
        if self._gloo is None:
            raise CollectiveError(
                "this process group has failed before",
                why="this rank has left it",
                hint="end it with destroy_process_group() and start again",
            )
        return self._gloo

    def leave(self) -> None:
        """Closes this rank's connections, once no call of gloo is under way: others notice."""
        self._gloo = None

    def say(self, numbers: Sequence[int], timeout: timedelta) -> list[list[int]]:
        """Gives whole numbers to every rank; the same count from each comes back, by rank."""
        mine = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        if self.ranks == 1:
            return [mine.tolist()]
        everyone = torch.empty(self.ranks, len(numbers), dtype=torch.int64, device="cpu")
        options = AllgatherOptions()
        options.timeout = timeout
        with lost_ranks(timeout):
            self.gloo.allgather([list(everyone.unbind(0))], [mine], options).wait()
        return everyone.tolist()


def meet(store: Any, rank: int, world_ranks: Sequence[int], timeout: timedelta) -> Control:
    """Joins the ranks of a group, which all call this with one store of torch's.

    They may have met over it before: what they left there is not read again, because each time has
    keys of its own, by how often this rank has come.
    """
    ours = PrefixStore("spyreccl", store)
    times = ours.add(f"times of rank {rank}", 1)
    gloo = ProcessGroupGloo(PrefixStore(f"time {times}", ours), rank, len(world_ranks), timeout)
    return Control(gloo, world_ranks)


@contextmanager
def lost_ranks(timeout: timedelta) -> Iterator[None]:
    """Turns gloo's errors into ones that say what they mean here.

    Raises:
        RankLost: a rank did not answer in time; or, if time was left, its connection was closed.
    """
    began = time.monotonic()
    try:
        yield
    except SpyreError:
        raise  # this rank's own
    except RuntimeError as error:
        seconds = timeout.total_seconds()
        if time.monotonic() - began < seconds:
            what = "another rank has ended, or has left the group because of an error"
            hint = "look for the rank that failed first, and at its error"
        else:
            what = f"another rank has not answered within {seconds:g} s"
            hint = (
                "every rank must make the same calls; for slow ones give a longer timeout to "
                "init_process_group or new_group"
            )
        raise RankLost(what, why=f"gloo says: {error}", hint=hint) from error


class Shared:
    """Through windows in shared memory. A rank writes into one while others read the other one.

    Args:
        own: this rank's two windows.
        others: the windows of every rank, this one's too.
    """

    def __init__(self, control: Control, own: Segment, others: Sequence[Segment]) -> None:
        self._control, self._own, self._others = control, own, others
        self._half = 0

    def begin(self, moved: Bytes) -> None:
        """Shows the first piece for every rank."""
        self._half ^= 1
        self._write(moved, 0)

    def end(self, moved: Bytes, calls: Sequence[Call], timeout: timedelta) -> None:
        """Reads the pieces of the others, and shows and reads what is left."""
        rounds = max(self._rounds(call.sends, alike=moved.alike) for call in calls)
        for trip in range(rounds):
            if trip:
                self._half ^= 1
                self._write(moved, trip)
                self._control.say([trip], timeout)
            self._read(moved, calls, trip)

    def _rounds(self, sends: Sequence[int], *, alike: bool) -> int:
        return -(-max(sends) // _piece(sends, alike=alike))

    def _window(self, segment: Segment) -> Tensor:
        return segment.bytes[self._half * WINDOW : (self._half + 1) * WINDOW]

    def _write(self, moved: Bytes, trip: int) -> None:
        sends = [t.numel() for t in moved.given]
        piece, window = _piece(sends, alike=moved.alike), self._window(self._own)
        for to, at in _offsets(sends, self._control.rank, alike=moved.alike).items():
            part = moved.given[to][trip * piece : (trip + 1) * piece]
            window[at : at + part.numel()].copy_(part)

    def _read(self, moved: Bytes, calls: Sequence[Call], trip: int) -> None:
        me = self._control.rank
        for giver, call in enumerate(calls):
            if giver == me or not call.sends[me]:
                continue
            piece = _piece(call.sends, alike=moved.alike)
            window = self._window(self._others[giver])
            at = 0 if moved.alike else _offsets(call.sends, giver, alike=False)[me]
            part = moved.taken[giver][trip * piece : (trip + 1) * piece]
            part.copy_(window[at : at + part.numel()])


def _offsets(sends: Sequence[int], giver: int, *, alike: bool) -> dict[int, int]:
    """Where in its window a rank shows what it gives, by rank that takes it."""
    takers = [rank for rank, size in enumerate(sends) if size and rank != giver]
    if alike:
        return dict.fromkeys(takers[:1], 0)
    return {rank: place * _piece(sends, alike=False) for place, rank in enumerate(takers)}


def _piece(sends: Sequence[int], *, alike: bool) -> int:
    """Bytes that a window shows each taker at a time."""
    takers = 1 if alike else max(1, sum(1 for size in sends if size))
    return WINDOW // takers // _ALIGN * _ALIGN


class Hosts:
    """Over gloo, staged in host memory: for ranks on several machines."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def begin(self, moved: Bytes) -> None:
        """Nothing: there is no place that others see."""

    def end(self, moved: Bytes, calls: Sequence[Call], timeout: timedelta) -> None:
        """Sends every rank its bytes and receives theirs."""
        me, gloo = self._control.rank, self._control.gloo
        found = {
            rank: torch.empty(call.sends[me], dtype=torch.uint8, device="cpu")
            for rank, call in enumerate(calls)
            if rank != me and call.sends[me]
        }
        staged = {rank: given for rank, given in enumerate(moved.given) if given.numel()}
        if moved.alike:
            staged = dict.fromkeys(staged, next(iter(staged.values())).cpu()) if staged else {}
        else:
            staged = {rank: given.cpu() for rank, given in staged.items()}
        with lost_ranks(timeout):
            works = [gloo.recv([room], rank, _EXCHANGE_TAG) for rank, room in found.items()]
            works += [gloo.send([given], rank, _EXCHANGE_TAG) for rank, given in staged.items()]
            for work in works:
                work.wait(timeout)
        for rank, contents in found.items():
            moved.taken[rank].copy_(contents)


def path_between(control: Control, timeout: timedelta) -> Path:
    """Shared memory if every rank reaches every other one's, else gloo. All ranks call it."""
    own = OwnSegment(2 * WINDOW)
    rows = control.say(own.address.numbers(), timeout)
    others: list[Segment] = []
    with suppress(OSError):  # another machine
        others = [attach(Address(*row)) for row in rows]
    reached = control.say([int(bool(others))], timeout)
    own.close()
    if all(all(row) for row in reached):
        return Shared(control, own, others)
    return Hosts(control)


def exchange(
    control: Control, path: Path, call: Call, moved: Bytes, timeout: timedelta
) -> list[Call]:
    """Moves bytes between all ranks; the calls of all of them come back.

    Raises:
        CollectiveError: the ranks make different calls; all of them raise it.
        RankLost: one is gone or does not answer.
    """
    path.begin(moved)
    rows = control.say(encode(call), timeout)
    calls = [decode(row, control.ranks) for row in rows]
    check_agreement(calls, control.world_ranks)
    path.end(moved, calls, timeout)
    return calls
