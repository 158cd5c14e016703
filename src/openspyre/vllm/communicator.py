"""What vLLM asks of a group of cards; spyreccl does it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class SpyreCommunicator(DeviceCommunicatorBase):
    """Collectives of tensor parallelism, on tensors of the card.

    vLLM's own gather, broadcast, send and receive do; the others must not write to their input,
    as a graph takes them for functions, and take any dim.
    """

    def all_reduce(self, input_: Tensor) -> Tensor:
        """The sum over all ranks, as a new tensor."""
        total = input_.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.device_group)
        return total

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """What all ranks have, one behind the other along a dim."""
        first = input_.movedim(dim, 0).contiguous()
        whole = first.new_empty((self.world_size * first.shape[0], *first.shape[1:]))
        dist.all_gather_single(whole, first, group=self.device_group)
        return whole.movedim(0, dim).contiguous()

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        """This rank's part, along a dim, of the sum over all ranks."""
        first = input_.movedim(dim, 0).contiguous()
        part = first.new_empty((first.shape[0] // self.world_size, *first.shape[1:]))
        dist.reduce_scatter_single(part, first, group=self.device_group)
        return part.movedim(0, dim).contiguous()
