"""Trains one small model on several cards in three ways, and on one card, from the same weights.

    OPENSPYRE_DEVICES=2 torchrun --nproc-per-node 2 examples/several_cards.py

Each process takes one card. Data parallel (DDP), sharded (FSDP2) and tensor parallel training give
the losses that one card gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import openspyre

STEPS, ROWS, WIDTH = 3, 16, 32


def new_model(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(
        device
    )


def sharded(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def split(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def main() -> None:
    openspyre.require()
    card = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    device = torch.device("spyre", card)
    torch.accelerator.set_device_index(card)
    dist.init_process_group("cpu:gloo,spyre:spyreccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("spyre", (ranks,))
    x, y = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    mine = [whole.chunk(ranks)[rank].to(device) for whole in (x, y)]
    whole = [x.to(device), y.to(device)]

    one_card = losses(new_model(device), *whole)
    ways: dict[str, tuple[Callable[[], nn.Module], list[Tensor]]] = {
        "DDP": (lambda: DistributedDataParallel(new_model(device)), mine),
        "FSDP2": (lambda: sharded(new_model(device), mesh), mine),
        "tensor parallel": (lambda: split(new_model(device), mesh), whole),
    }
    for name, (make, data) in ways.items():
        found = losses(make(), *data)
        dist.all_reduce(found, op=dist.ReduceOp.AVG)  # of each rank's share of the data
        torch.testing.assert_close(found, one_card)
        if rank == 0:
            print(f"{name}: losses {found.tolist()}, as on one card")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
