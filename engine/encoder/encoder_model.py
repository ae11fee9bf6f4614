"""An encoder in memory: tokenizes texts, and computes the vectors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from engine.embeddings import EncoderInfo, TextRole
from engine.encoder.pooling import pool
from engine.encoder.recipe import Recipe
from engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text as the encoder reads it."""

    ids: Sequence[int]
    num_prompt_tokens: int = 0  #: at the beginning, to be left out of the vector
    is_truncated: bool = False


class EncoderModel:
    """Computes vectors on the CPU. Not safe for several threads at once: the tokenizer is not.

    Args:
        module: of transformers, in float32; returns ``last_hidden_state``.
    """

    def __init__(self, info: EncoderInfo, recipe: Recipe, module: PreTrainedModel, tokenizer: Any) -> None:
        assert info.max_tokens is not None
        self.info = info
        self._max_tokens = info.max_tokens
        self.recipe = recipe
        self._module = module
        self._tokenizer = tokenizer
        self._padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self._vocab_size: int = module.get_input_embeddings().num_embeddings

    @property
    def num_bytes(self) -> int:
        """Memory of the weights."""
        return sum(parameter.nbytes for parameter in self._module.parameters())

    def tokenize(self, texts: Sequence[str | Sequence[int]], role: TextRole | None) -> list[TokenizedText]:
        """Tokenizes texts, each with its role's prompt and cut to the maximum length.

        Raises:
            InvalidRequestError: a text is empty, or a token is not in the vocabulary.
        """
        prompt = self.recipe.prompt_for(role)
        num_prompt_tokens = 0
        if prompt and not self.recipe.pools_prompt:
            ids = self._tokenizer([prompt])["input_ids"][0]
            special = set(self._tokenizer.all_special_ids)
            num_prompt_tokens = len(ids) - (ids[-1] in special)
        return [
            self._tokenize_text(prompt + text, num_prompt_tokens)
            if isinstance(text, str)
            else self._checked(tuple(text))
            for text in texts
        ]

    def _tokenize_text(self, text: str, num_prompt_tokens: int) -> TokenizedText:
        limit = self._max_tokens
        ids = self._tokenizer(text, verbose=False)["input_ids"]
        if len(ids) > limit:  # the tokenizer cuts it, because it keeps the special token at the end
            ids = self._tokenizer(text, truncation=True, max_length=limit, verbose=False)["input_ids"]
            return TokenizedText(ids, min(num_prompt_tokens, limit - 1), is_truncated=True)
        if not ids:
            raise InvalidRequestError("A text is empty. Send at least one word.")
        return TokenizedText(ids, min(num_prompt_tokens, len(ids) - 1))

    def _checked(self, ids: Sequence[int]) -> TokenizedText:
        if not ids:
            raise InvalidRequestError("A text is empty. Send at least one token.")
        unknown = next((id for id in ids if not 0 <= id < self._vocab_size), None)
        if unknown is not None:
            raise InvalidRequestError(f"There is no token {unknown} in the vocabulary of {self.info.name}.")
        limit = self._max_tokens
        return TokenizedText(ids[:limit], is_truncated=len(ids) > limit)

    @torch.inference_mode()
    def encode(self, texts: Sequence[TokenizedText]) -> NDArray[np.float32]:
        """Returns the vectors of a batch, shape (texts, dimensions)."""
        hidden = self.hidden_states([text.ids for text in texts])
        position = torch.arange(hidden.shape[1])
        starts = torch.tensor([text.num_prompt_tokens for text in texts])
        lengths = torch.tensor([len(text.ids) for text in texts])
        counts = (position >= starts[:, None]) & (position < lengths[:, None])
        vectors = pool(hidden, counts.long(), self.recipe.pooling)
        if self.recipe.normalizes:
            vectors = normalize(vectors, dim=-1)
        array: NDArray[np.float32] = vectors.numpy()
        return array

    @torch.inference_mode()
    def hidden_states(self, batch: Sequence[Sequence[int]]) -> torch.Tensor:
        """Returns the last hidden states of token ids, padded on the right, shape (texts, tokens, dimensions)."""
        longest = max(map(len, batch))
        padded = torch.tensor([[*ids, *[self._padding] * (longest - len(ids))] for ids in batch])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in batch])
        output = self._module(input_ids=padded, attention_mask=mask)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden
