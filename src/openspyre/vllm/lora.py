"""What vLLM's layers with adapters (LoRA) call: whose rows are whose, and what is added to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from openspyre.vllm.low_rank import expanded, head, shrunk

if TYPE_CHECKING:
    from vllm.lora.layers import LoRAMapping


class SpyreLora(PunicaWrapperBase):
    """What vLLM's layers with adapters call; all of it runs on the card."""

    def __init__(
        self, max_num_batched_tokens: int, max_batches: int, device: torch.device, **others: Any
    ) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device)
        most = max(max_num_batched_tokens, max_batches)
        for buffer in ("_token_lora_indices", "_sampler_indices"):
            setattr(self, buffer, torch.full((most,), -1, device=device))
        self._embeddings_indices = torch.zeros(most, dtype=torch.long, device=device)

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **others: Any,
    ) -> None:
        """Copies the slot of each token and request to the card; nothing is waited for."""
        slots = {number: at for at, number in enumerate(lora_index_to_id) if number is not None}
        of_tokens = [slots[number] if number > 0 else -1 for number in mapping.index_mapping]
        of_rows = [slots[number] if number > 0 else -1 for number in mapping.prompt_mapping]
        first = [max(slot, 0) * vocab_size for slot in of_tokens]
        for buffer, values in (
            (self._token_lora_indices, of_tokens),
            (self._sampler_indices, of_rows),
            (self._embeddings_indices, first),
        ):
            buffer[: len(values)].copy_(torch.tensor(values))
        self.indices_len[:] = [len(of_tokens), len(of_rows), len(of_rows), len(of_tokens)]

    def add_shrink(
        self,
        y: tuple[Tensor, ...] | Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        scale: float,
        **others: Any,
    ) -> Tensor:
        return torch.stack([shrunk(x, a) * scale for a in lora_a_stacked])

    def add_expand(
        self,
        y: Tensor,
        x: tuple[Tensor, ...] | Tensor,
        lora_b_stacked: tuple[Tensor, ...],
        output_slices: tuple[int, ...],
        offset_start: int = 0,
        add_inputs: bool = True,
        **others: Any,
    ) -> Tensor:
        """The output with what the adapters add, as a new tensor."""
        # By the rows that there are: a number kept with the slots would be one of the traced step.
        slots = self._token_lora_indices[: y.shape[0]]
        parts = [expanded(low, b, slots) for low, b in zip(x, lora_b_stacked, strict=True)]
        added = torch.cat(parts, -1).to(y.dtype)
        if offset_start or added.shape[-1] != y.shape[-1]:
            behind = y.shape[-1] - offset_start - added.shape[-1]
            added = torch.nn.functional.pad(added, (offset_start, behind))
        return y + added

    def add_lora_embedding(
        self, y: Tensor, x: Tensor, lora_b_stacked: Tensor, add_inputs: bool = True, **others: Any
    ) -> Tensor:
        slots = self._token_lora_indices[: y.shape[0]]
        low = x.to(y.dtype).expand(lora_b_stacked.shape[0], -1, -1)
        return y + expanded(low, lora_b_stacked, slots)

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[Tensor, ...] | None = None,
        **others: Any,
    ) -> Tensor:
        low = tuple(shrunk(x, a) * scale for a in lora_a_stacked)
        return self.add_expand(y, low, lora_b_stacked, output_slices)

    def add_lora_logits(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: Tensor,
        lora_b_stacked: Tensor,
        scale: float,
        *,
        buffer: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        rows = self._sampler_indices[: y.shape[0]]
        head()(y, x, lora_a_stacked, lora_b_stacked, rows)
        return y

    def apply_lora_full_linear(
        self,
        y: Tensor,
        x: Tensor,
        weight_stacked: Tensor,
        bias_stacked: Tensor,
        module_enabled: Tensor,
    ) -> None:
        """Writes the rows whose adapter has a classification head of its own."""
        every = x.expand(weight_stacked.shape[0], -1, -1)
        own = expanded(every, weight_stacked, self.sampler_indices)
        y.copy_(self._select_full_linear_output(y, own, bias_stacked, module_enabled))
