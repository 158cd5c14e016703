"""What stands for the Triton kernels of vLLM that accept and reject drafts.

Drafts of all requests lie behind each other; `ends` has, for each request, the place behind its
last. A request's output is the drafts up to the first that is rejected, then one token in its
place, or the bonus token behind the last draft.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import Unsupported
from openspyre.vllm.one_graph import OneGraph, one_graph

_TOKENS, _ROWS = ("tokens",), ("rows",)
_OUT = (("cells",), ("columns",))


def _written(
    out: Tensor, columns: Tensor, ends: Tensor, accepted: Tensor, tokens: Tensor, bonus: Tensor,
    rows: Tensor,
) -> Tensor:  # fmt: skip
    """The output of some rows; others keep what they have.

    Args:
        out: of all rows behind each other: as `[row, column]` its strides would be a size.
        columns: 0, 1, ...
        accepted: whether each draft is.
        tokens: what stands at each draft's place when no earlier draft was rejected.
        rows: whether each row is written.
    """
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    drafts = ends - starts
    at = (starts[:, None] + columns).clamp(max=tokens.shape[0] - 1)
    rejected = (columns < drafts[:, None]) & ~accepted[at]
    kept = torch.where(rejected, columns, drafts[:, None]).amin(1)
    cell = torch.arange(out.shape[0], device=out.device)
    row = (cell // columns.shape[0]).clamp(max=ends.shape[0] - 1)
    column = cell % columns.shape[0]
    draft = tokens[(starts[row] + column).clamp(max=tokens.shape[0] - 1)].to(out.dtype)
    token = torch.where(column < drafts[row], draft, bonus[:, 0].to(out.dtype)[row])
    return torch.where((column <= kept[row]) & rows[row], token, out)


@cache
def greedy() -> OneGraph:
    """Arguments: output, columns, ends, drafts, the tokens that the model prefers, bonus, rows."""

    def graph(
        out: Tensor, columns: Tensor, ends: Tensor, drafts: Tensor, best: Tensor, bonus: Tensor,
        rows: Tensor,
    ) -> None:  # fmt: skip
        out.copy_(_written(out, columns, ends, drafts == best, best, bonus, rows))

    return one_graph(graph, *_OUT, _ROWS, _TOKENS, _TOKENS, ("rows", None), _ROWS)


@cache
def random() -> OneGraph:
    """A draft of probability p is accepted where a uniform number is at most p.

    Arguments: output, columns, ends, drafts, probabilities `[draft, token]`, bonus, what is drawn
    where a draft is rejected, uniform numbers, rows not to write.
    """

    def graph(
        out: Tensor, columns: Tensor, ends: Tensor, drafts: Tensor, probabilities: Tensor,
        bonus: Tensor, drawn: Tensor, uniform: Tensor, others: Tensor,
    ) -> None:  # fmt: skip
        p = probabilities.gather(1, drafts.clamp(min=0).long()[:, None])[:, 0]
        # In float32 a uniform number may be 0: what is impossible is not accepted for it.
        accepted = (drafts >= 0) & (p > 0) & (p >= uniform)
        tokens = torch.where(accepted, drafts, drawn)
        out.copy_(_written(out, columns, ends, accepted, tokens, bonus, ~others))

    return one_graph(
        graph, *_OUT, _ROWS, _TOKENS, ("tokens", None), ("rows", None), _TOKENS, _TOKENS, _ROWS
    )


@cache
def recovered() -> OneGraph:
    """Draws what stands for a rejected draft, from the probabilities without that draft.

    Arguments: drawn (written), ends, drafts, probabilities `[draft, token]`, and per row the
    inverses of exponential draws `[row, token]`.
    """

    def graph(
        drawn: Tensor, ends: Tensor, drafts: Tensor, probabilities: Tensor, inverses: Tensor
    ) -> None:
        token = torch.arange(probabilities.shape[1], device=drafts.device)
        kept = (probabilities > 0) & (token != drafts[:, None])
        scores = torch.where(kept, probabilities * inverses[_row(ends, drafts)], 0)
        drawn.copy_(scores.argmax(-1))

    return one_graph(graph, _TOKENS, _ROWS, _TOKENS, ("tokens", None), ("rows", None))


@cache
def expanded(old: float, new: float) -> OneGraph:
    """Of each draft, its row's value, `new` where that is `old`; arguments: out, values, ends."""

    def graph(out: Tensor, values: Tensor, ends: Tensor) -> None:
        replaced = torch.where(values == old, new, values).to(out.dtype)
        out.copy_(replaced[_row(ends, out)])

    return one_graph(graph, _TOKENS, _ROWS, _ROWS)


def _row(ends: Tensor, drafts: Tensor) -> Tensor:
    place = torch.arange(drafts.shape[0], device=drafts.device)
    # The tensors that a graph is traced with are zeros: drafts would lie behind the last row.
    return (place[:, None] >= ends).sum(-1).clamp(max=ends.shape[0] - 1)


def _cells(output: Tensor) -> tuple[Tensor, Tensor]:
    return output.view(-1), torch.arange(output.shape[1], device=output.device)


def greedy_kernel(
    output_token_ids_ptr: Tensor,
    cu_num_draft_tokens_ptr: Tensor,
    draft_token_ids_ptr: Tensor,
    target_argmax_ptr: Tensor,
    bonus_token_ids_ptr: Tensor,
    is_greedy_ptr: Tensor | None,
    max_spec_len: int,
    uniform_probs_ptr: Tensor | None,
    synthetic_conditional_rates_ptr: Tensor | None,
    SYNTHETIC_MODE: bool,
) -> None:
    """Writes rows that are sampled greedily; its parameters are the kernel's."""
    ends = cu_num_draft_tokens_ptr
    rows = torch.ones_like(ends, dtype=torch.bool) if is_greedy_ptr is None else is_greedy_ptr
    if not draft_token_ids_ptr.numel():
        _write_bonus(output_token_ids_ptr, bonus_token_ids_ptr, rows)
        return
    greedy()(
        *_cells(output_token_ids_ptr), ends, draft_token_ids_ptr, target_argmax_ptr,
        bonus_token_ids_ptr, rows,
    )  # fmt: skip


def random_kernel(
    output_token_ids_ptr: Tensor,
    cu_num_draft_tokens_ptr: Tensor,
    draft_token_ids_ptr: Tensor,
    draft_probs_ptr: Tensor | None,
    target_probs_ptr: Tensor,
    bonus_token_ids_ptr: Tensor,
    recovered_token_ids_ptr: Tensor,
    uniform_probs_ptr: Tensor,
    is_greedy_ptr: Tensor,
    max_spec_len: int,
    vocab_size: int,
    synthetic_conditional_rates_ptr: Tensor | None,
    NO_DRAFT_PROBS: bool,
    SYNTHETIC_MODE: bool,
) -> None:
    """Writes rows that are drawn; its parameters are the kernel's."""
    _certain_drafts(draft_probs_ptr)
    if not draft_token_ids_ptr.numel():
        _write_bonus(output_token_ids_ptr, bonus_token_ids_ptr, ~is_greedy_ptr)
        return
    random()(
        *_cells(output_token_ids_ptr), cu_num_draft_tokens_ptr, draft_token_ids_ptr,
        target_probs_ptr, bonus_token_ids_ptr, recovered_token_ids_ptr,
        uniform_probs_ptr.float(), is_greedy_ptr,
    )  # fmt: skip


def recovered_kernel(
    output_token_ids_ptr: Tensor,
    cu_num_draft_tokens_ptr: Tensor,
    draft_token_ids_ptr: Tensor,
    draft_probs_ptr: Tensor | None,
    target_probs_ptr: Tensor,
    inv_q_ptr: Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    NO_DRAFT_PROBS: bool,
    USE_FP64_GUMBEL: bool,
) -> None:
    """Draws a token for the place of each draft; its parameters are the kernel's."""
    _certain_drafts(draft_probs_ptr)
    if not draft_token_ids_ptr.numel():
        return
    recovered()(
        output_token_ids_ptr, cu_num_draft_tokens_ptr, draft_token_ids_ptr, target_probs_ptr,
        inv_q_ptr.float(),
    )  # fmt: skip


def expand_kernel(
    output_ptr: Tensor,
    input_ptr: Tensor,
    cu_num_tokens_ptr: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int,
) -> None:
    """Repeats a row's value for each of its drafts; its parameters are the kernel's."""
    if not output_ptr.numel():
        return
    values, out = input_ptr, output_ptr
    if values.dtype is torch.int64:  # the top-k of a warm-up; those of requests are int32
        values, out = values.int(), out.int()
    expanded(replace_from, replace_to)(out, values, cu_num_tokens_ptr)
    if out is not output_ptr:
        output_ptr.copy_(out)


def _write_bonus(output: Tensor, bonus: Tensor, rows: Tensor) -> None:
    output.copy_(torch.where(rows[:, None], bonus.to(output.dtype), output))


def _certain_drafts(probabilities: Tensor | None) -> None:
    if probabilities is not None:
        raise Unsupported("drafts of a model", why="only n-gram drafts are served")


KERNELS: dict[str, Callable[..., Any]] = {
    f"vllm.v1.sample.rejection_sampler.{name}": kernel
    for name, kernel in (
        ("rejection_greedy_sample_kernel", greedy_kernel),
        ("rejection_random_sample_kernel", random_kernel),
        ("expand_kernel", expand_kernel),
        ("sample_recovered_tokens_kernel", recovered_kernel),
    )
}
