"""Messages from one rank to another: gloo says what comes, the bytes lie in shared memory.

A send is over when its bytes are out of the tensor: the receiver takes them whenever it comes.
Where ranks share no memory gloo carries the bytes, and a send ends when they are received.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openspyre.device.distributed.buffers import Target, flat_bytes, packed
from openspyre.device.distributed.calls import (
    DTYPES,
    SHOWN_DIMS,
    CollectiveError,
    describe,
    shown_dims,
)
from openspyre.device.distributed.exchange import Control, lost_ranks
from openspyre.device.distributed.shared import Address, OwnSegment, Segment, attach

if TYPE_CHECKING:
    from torch.distributed import Work

_HEAD = 4 + SHOWN_DIMS + 4  # whole numbers that say what comes
_SMALLEST = 4096  # bytes of a segment
_KEPT = 4  # segments that wait for the next message
_POLL = 0.002  # seconds


class Messages:
    """Sending and receiving in a group; `near` says that ranks share memory."""

    def __init__(self, control: Control, *, near: bool) -> None:
        self._control, self._near = control, near
        self._sent: list[_Sent] = []
        self._reached: dict[int, Segment] = {}
        self._lock = threading.Lock()

    def send(self, tensor: Tensor, to: int, tag: int, ready: int, timeout: timedelta) -> int:
        """Sends a tensor, from card time `ready` on; gives its bytes."""
        source = packed(tensor)
        contents = flat_bytes(source)
        size = contents.numel()
        segment = self._filled(contents) if self._near else None
        address = segment.address.numbers() if segment else [0, 0, 0, 0]
        head = [DTYPES.index(source.dtype), size, ready, source.dim()]
        row = torch.tensor(
            [*head, *shown_dims(source.shape), *address], dtype=torch.int64, device="cpu"
        )
        staged = [row] if segment or not size else [row, contents.cpu()]
        with lost_ranks(timeout):
            works = [
                self._control.gloo.send([part], to, _head_tag(tag) + place)
                for place, part in enumerate(staged)
            ]
            if segment is None:
                for work in works:
                    work.wait(timeout)
                return size
        with self._lock:  # gloo's send ends when it is received, ours has ended
            self._sent.append(_Sent(segment, works[0]))
        return size

    def receive(
        self, tensor: Tensor, source: int | None, tag: int, timeout: timedelta
    ) -> tuple[int, int, int]:
        """Receives into a tensor; gives its bytes, the rank, and when that could send.

        Raises:
            CollectiveError: what comes does not fit.
        """
        row, source = self._head(source, tag, timeout)
        dtype, size, ready, dim, *rest = row
        shown = describe(DTYPES[dtype], rest[: min(dim, SHOWN_DIMS)])
        fits = DTYPES[dtype] == tensor.dtype and size == tensor.numel() * tensor.element_size()
        if self._near:
            segment = self._reach(Address(*rest[SHOWN_DIMS:]))
            if fits:
                _fill(tensor, segment.bytes[:size])
            segment.taken = True
        elif size:
            contents = torch.empty(size, dtype=torch.uint8, device="cpu")
            with lost_ranks(timeout):
                self._control.gloo.recv([contents], source, _head_tag(tag) + 1).wait(timeout)
            if fits:
                _fill(tensor, contents)
        if not fits:
            raise CollectiveError(
                f"receive: rank {self._control.world_ranks[source]} has sent {shown}, "
                f"there is room for {describe(tensor.dtype, tensor.shape)}",
                hint="send and receive tensors of one dtype and size",
            )
        return size, source, ready

    def drain(self, seconds: float) -> None:
        """Waits a while for messages that were sent to be taken; then they are gone."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(sent.segment.taken for sent in self._sent):
            time.sleep(_POLL)
        for sent in self._sent:
            sent.segment.close()
        self._sent.clear()

    def _head(self, source: int | None, tag: int, timeout: timedelta) -> tuple[list[int], int]:
        gloo = self._control.gloo
        row = torch.empty(_HEAD, dtype=torch.int64, device="cpu")
        with lost_ranks(timeout):
            if source is not None:
                gloo.recv([row], source, _head_tag(tag)).wait(timeout)
                return row.tolist(), source
            work = gloo.recv_anysource([row], _head_tag(tag))
            work.wait(timeout)
            return row.tolist(), work._source_rank()

    def _filled(self, contents: Tensor) -> OwnSegment:
        """A segment with these bytes: one that was taken before, or a new one."""
        size = contents.numel()
        with self._lock:
            free = [sent for sent in self._sent if sent.segment.taken]
            found = next((one.segment for one in free if one.segment.bytes.numel() >= size), None)
            self._sent = [sent for sent in self._sent if sent not in free]
            kept = [sent for sent in free if sent.segment is not found]
            self._sent += kept[:_KEPT]
        for sent in kept[_KEPT:]:
            sent.segment.close()
        segment = found or OwnSegment(max(_SMALLEST, 1 << (size - 1).bit_length()))
        segment.taken = False
        segment.bytes[:size].copy_(contents)
        return segment

    def _reach(self, address: Address) -> Segment:
        with self._lock:
            found = self._reached.pop(address.token, None) or _attached(address)
            self._reached[address.token] = found
            while len(self._reached) > _KEPT:
                del self._reached[next(iter(self._reached))]
            return found


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A message that is out: its bytes, and gloo's work, which holds what gloo still reads."""

    segment: OwnSegment
    work: Work


def _fill(tensor: Tensor, contents: Tensor) -> None:
    target = Target(tensor)
    target.bytes.copy_(contents)
    target.settle()


def _attached(address: Address) -> Segment:
    try:
        return attach(address)
    except OSError as error:
        raise CollectiveError(
            "receive: the bytes of a message are gone",
            why=f"its sender has ended ({error})",
            hint="end the group on all ranks with destroy_process_group()",
        ) from error


def _head_tag(tag: int) -> int:
    return 1 + 2 * tag
