"""Steps that are gone through before the first request, so that none makes a program later.

They are steps as the scheduler asks for them, of requests that are made up, and nothing of them
runs on the card (`openspyre.runtime.rehearsal`). Attention has boxes of sizes instead
(`size_boxes.py`): what else a step does follows the number of its tokens, or that of its requests.
"""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import torch
from vllm import PoolingParams, SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from openspyre.runtime.rehearsal import rehearsing
from openspyre.runtime.sizes import size_class
from openspyre.vllm.kernels import make_slots_ready

_GREEDY: dict[str, Any] = {"temperature": 0.0}
_DRAWN: dict[str, Any] = {"temperature": 0.9}
# What the requests of a step may ask of the sampler, by turns.
_SAMPLING: tuple[tuple[dict[str, Any], ...], ...] = (
    (_DRAWN,),
    ({**_DRAWN, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 1}, _GREEDY),
    ({**_GREEDY, "logprobs": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2}, _DRAWN),
)


def size_examples(most: int, *special: int) -> list[int]:
    """Sizes from 1 to `most`: of each class two where it has two, and what is special.

    Programs are made by class, and ops of equal sizes have programs of their own: of two examples
    of a class, one differs from any other size.
    """
    found = {n for n in (*special, most, most - 1) if 0 < n <= most}
    size = 1
    while size <= most:
        found |= {n for n in (size - 1, size) if n}
        size *= 2
    return sorted(found)


class Rehearsal:
    """Goes through the steps that an engine's limits allow.

    Args:
        worker: ready but for this.
    """

    def __init__(self, worker: Any) -> None:
        self.worker, self.runner = worker, worker.model_runner
        chosen, model = worker.scheduler_config, worker.model_config
        self.budget, samples = chosen.max_num_batched_tokens, not self.runner.is_pooling_model
        # What generates has room for the token that a step samples.
        self.longest = max(model.max_model_len - samples, 1)
        self.hidden = model.get_hidden_size()
        most = min(chosen.max_num_seqs, self.budget)
        special = (self.hidden, model.get_vocab_size(), chosen.max_num_seqs)
        self.tokens = size_examples(min(self.budget, most * self.longest), *special)
        self.requests = size_examples(most, *special)
        self.lengths: list[int] = []  # of the requests there are

    def run(self) -> None:
        """All of it."""
        samples = not self.runner.is_pooling_model
        with rehearsing():
            make_slots_ready(self.runner)
            for tokens in self.tokens:
                self._begin(_parts(tokens, -(-tokens // self.longest)))
            for requests in self.requests:
                self._begin(_parts(min(2 * requests, self.tokens[-1]), requests))
                if samples and self.longest > 2:
                    self._go_on()
            for requests, sampling in product(self.requests if samples else (), _SAMPLING):
                if size_class(requests)[1] in (requests, size_class(self.requests[-1])[1]):
                    self._begin([1] * requests, *sampling)
            self._choose_rows()
            self._finish()

    def _begin(self, lengths: list[int], *sampling: dict[str, Any]) -> None:
        """A step of new requests of these lengths, which ask of the sampler by turns."""
        self._finish()
        step = SchedulerOutput.make_empty()
        by_turns = cycle(sampling or (_GREEDY,))
        numbered = zip(enumerate(lengths), by_turns, strict=False)
        step.scheduled_new_reqs = [self._request(*one, asked) for one, asked in numbered]
        self.lengths = lengths
        self._take(step, lengths)

    def _go_on(self) -> None:
        """A step of the same requests, with one more token each."""
        step, again = SchedulerOutput.make_empty(), CachedRequestData.make_empty()
        again.req_ids = self._names()
        again.num_computed_tokens = list(self.lengths)
        again.num_output_tokens = [1 for _ in self.lengths]
        again.new_block_ids = [None for _ in self.lengths]
        step.scheduled_cached_reqs = again
        self._take(step, [1 for _ in self.lengths])

    def _finish(self) -> None:
        """A step of nothing, which tells that the requests have ended."""
        step = SchedulerOutput.make_empty()
        step.finished_req_ids = set(self._names())
        self.lengths = []
        self.worker.execute_model(step)

    def _take(self, step: SchedulerOutput, scheduled: list[int]) -> None:
        step.num_scheduled_tokens = dict(zip(self._names(), scheduled, strict=True))
        step.total_num_scheduled_tokens = sum(scheduled)
        step.num_common_prefix_blocks = [0 for _ in self.runner.kv_cache_config.kv_cache_groups]
        if self.worker.execute_model(step) is None:
            self.worker.sample_tokens(None)

    def _names(self) -> list[str]:
        return [f"rehearsal {number}" for number in range(len(self.lengths))]

    def _request(self, number: int, length: int, sampling: dict[str, Any]) -> NewRequestData:
        pools, drawn = None, None
        if self.runner.is_pooling_model:
            pools = PoolingParams(task=self.worker.model_config.get_pooling_task(
                self.runner.get_supported_tasks()
            ))  # fmt: skip
            pools.verify(self.worker.model_config)
        else:
            drawn = SamplingParams(**sampling)
        groups = self.runner.kv_cache_config.kv_cache_groups
        # Nothing is written: all may have the same block.
        blocks = tuple([0] * -(-(length + 1) // g.kv_cache_spec.block_size) for g in groups)
        return NewRequestData(
            f"rehearsal {number}", [0] * length, [], drawn, pools, blocks, 0, None
        )

    def _choose_rows(self) -> None:
        """The op that has both sizes: the rows of the last hidden states that are sampled from."""
        states = torch.empty(
            self.tokens[-1], self.hidden, dtype=self.worker.model_config.dtype,
            device=self.runner.device,
        )  # fmt: skip
        last = self.runner.query_start_loc.gpu[1:]
        for tokens, requests in product(self.tokens, self.requests):
            if requests <= tokens:
                states[:tokens][last[:requests]]


def _parts(total: int, parts: int) -> list[int]:
    """A number as a sum of so many, as equal as they can be."""
    return [total // parts + (n < total % parts) for n in range(parts)]
