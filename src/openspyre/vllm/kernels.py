"""What stands for the Triton kernels of vLLM that fill the tables of a step."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import Unsupported
from openspyre.vllm.one_graph import OneGraph, one_graph
from openspyre.vllm.size_boxes import slot_boxes

SLOT_MAPPING = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"


@cache
def slots(block: int) -> OneGraph:
    """Of each token, its slot in a cache of blocks of so many tokens.

    Arguments: slots to write `[tokens]`, positions `[tokens]`, ends `[rows]` (the token behind each
    row's last), table `[requests, blocks]`.
    """

    def graph(out: Tensor, positions: Tensor, ends: Tensor, table: Tensor) -> None:
        token = torch.arange(out.shape[0], device=out.device)
        row = (token[:, None] >= ends).sum(-1)
        number = table[row, positions // block].to(out.dtype)
        out.copy_(number * block + positions % block)

    return one_graph(graph, ("tokens",), ("tokens",), ("rows",), ("requests", None))


def slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: Tensor,
    positions_ptr: Tensor,
    block_table_ptr: Tensor,
    block_table_stride: int,
    slot_mapping_ptr: Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """Writes the slot of each token, PAD_ID behind the last; its parameters are the kernel's."""
    if TOTAL_CP_WORLD_SIZE != 1:
        raise Unsupported("context parallelism", hint="use one card per replica")
    slot_mapping_ptr[num_tokens:max_num_tokens].fill_(PAD_ID)
    if num_tokens:
        written, ends = slot_mapping_ptr[:num_tokens], query_start_loc_ptr[1:]
        slots(KV_CACHE_BLOCK_SIZE)(written, positions_ptr[:num_tokens], ends, block_table_ptr)


def make_slots_ready(runner: Any) -> None:
    """Makes the programs of slot mappings for all steps that a runner may have."""
    ends, positions = runner.query_start_loc.gpu[1:], runner.positions
    for table in runner.input_batch.block_table.block_tables:
        written, blocks = table.slot_mapping.gpu, table.block_table.gpu
        boxes = slot_boxes(written.shape[0], blocks.shape[0])
        slots(table.block_size).make_ready(boxes, written, positions, ends, blocks)
