"""A model that is ready to run in the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from engine.model.attention_hook import AttentionNeeds
from engine.model.rope import LengthDependentRotary
from engine.scheduling.adapter import Adapter
from engine.scheduling.cache_layout import LayerShape

if TYPE_CHECKING:
    from transformers import GenerationConfig


class CompiledDecoder(Protocol):
    """A model's weights, in the layout of compiled code that runs whole steps."""

    @property
    def number_format(self) -> str:
        """Number format of the weights: ``float32``, ``bfloat16``, ``int8`` or ``int4``."""

    @property
    def tile_rows(self) -> int:
        """Rows that its matrix products compute at once."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run in the engine, with its tokenizer, config and cache layout."""

    name: str
    module: nn.Module | None  #: None if the decoder runs every step
    tokenizer: Any
    generation_config: GenerationConfig
    device: torch.device
    dtype: torch.dtype
    layers: tuple[LayerShape, ...]  #: layers of the cache
    layer_per_call: bool  #: each attention call of a step has its own cache layer; otherwise each ``layer_idx`` has one
    needs: AttentionNeeds
    max_position_embeddings: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    rotary: LengthDependentRotary | None  #: set if the rotary embedding depends on the sequence's length
    num_parameters: int
    weight_bytes: int  #: before any quantization
    quantization: str = "none"  #: of the linear layers: ``none``, ``int8``, ``int4`` or ``fp8``
    quantization_reason: str | None = None  #: why they have it, if the engine chose it
    has_unused_adapter: bool = False  #: the model's folder also holds a LoRA adapter, which is not applied
    file_format: str | None = None  #: the quantization of a GGUF file, such as ``Q4_K_M``
    decoder: CompiledDecoder | None = None  #: the weights in the layout of the C++ decoder, if it runs steps
    adapters: dict[str, Adapter] = field(default_factory=dict)  #: by name; changes while the model runs
    draft: LoadedModel | None = None  #: the draft model for speculation, with the same tokenizer

    def logits(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        rows: Tensor,
        paged: object,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Runs one packed forward pass.

        Args:
            input_ids, position_ids: int64 ``[1, num_tokens]``.
            rows: int64 ``[n]``: only these rows go through the output layer.
            paged: the step's metadata, as the attention function takes it.
            lengths: int64 ``[num_tokens]``, needed with :attr:`rotary`: the length of each token's sequence if the
                whole prompt is computed at once and the reply token by token.

        Returns:
            ``[n, vocab_size]``.

        Raises:
            RuntimeError: there is no module.
        """
        if self.module is None:
            raise RuntimeError(f"every step of {self.name} runs in C++: no module was kept")
        if self.rotary is not None:
            self.rotary.lengths = lengths
        output = self.module(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=False,
            logits_to_keep=rows,
            paged=paged,
        )
        logits: Tensor = output.logits[0]
        return logits
