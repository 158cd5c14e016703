"""What vLLM's group of cards gives, called in the workers of an engine over two cards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def wrong_collectives(worker: Any) -> list[str]:
    """Names of the collectives that are wrong on this rank, or change what they are given."""
    from vllm.distributed import get_tp_group

    of_cards = get_tp_group().device_communicator
    rank = of_cards.rank_in_group
    # Of odd sizes where a collective allows it, with strides of its own, negative and other values.
    ranks = [(torch.arange(2 * 4 * 6).reshape(6, 4, 2) * (n + 1) - 31).float() for n in (0, 1)]
    ranks = [of_one.transpose(0, 2) for of_one in ranks]
    given = torch.empty_strided((2, 4, 6), ranks[0].stride(), device=of_cards.device)
    given.copy_(ranks[rank])
    total = ranks[0] + ranks[1]
    found: dict[str, tuple[Tensor | None, Tensor | None]] = {
        "all_reduce": (of_cards.all_reduce(given), total),
        "all_reduce of nothing": (of_cards.all_reduce(given[:0]), total[:0]),
        "broadcast": (of_cards.broadcast(given.clone(), src=1), ranks[1]),
    }
    for dim in (0, 1, 2, -1):
        every = torch.cat(ranks, dim)
        found[f"all_gather {dim}"] = (of_cards.all_gather(given, dim), every)
        found[f"gather {dim}"] = (of_cards.gather(given, 1, dim), every if rank == 1 else None)
        found[f"reduce_scatter {dim}"] = (
            of_cards.reduce_scatter(given, dim), total.chunk(2, dim)[rank]
        )  # fmt: skip
    if rank == 0:
        of_cards.send(given.contiguous())
    else:
        found["recv"] = (of_cards.recv(given.shape, given.dtype), ranks[0])
    found["what was given"] = (given, ranks[rank])
    return [name for name, pair in found.items() if not _equal(*pair)]


def _equal(got: Tensor | None, wanted: Tensor | None) -> bool:
    if got is None or wanted is None:
        return got is wanted
    return got.device.type == "spyre" and torch.equal(got.cpu(), wanted)
