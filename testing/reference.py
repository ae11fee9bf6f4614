"""Reference replies from transformers: greedy replies of an unmodified model, in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TIE_MARGIN = 1e-4
"""Difference of the two best logits below which rounding decides and either token is right."""


@dataclass(frozen=True)
class ReferenceReply:
    """A greedy reply, and for each token the lead of its logit over the second best."""

    token_ids: tuple[int, ...]
    leads: tuple[float, ...]


@dataclass
class Reference:
    """``transformers.generate`` on a second copy of the model, with its own attention and its own cache."""

    path: Path
    device: str = "cpu"
    _replies: dict[tuple[int, ...], tuple[int, ReferenceReply]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32, attn_implementation="eager")
        self._model.eval().to(self.device)

    def greedy(self, prompt: Sequence[int], max_new_tokens: int) -> ReferenceReply:
        """Returns the reply to one prompt alone. A shorter reply is cut from a longer one that was computed before."""
        key = tuple(prompt)
        length, reply = self._replies.get(key, (0, ReferenceReply((), ())))
        if length < max_new_tokens:
            input_ids = torch.tensor([list(prompt)], device=self.device)
            output = self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
            best = [logits[0].topk(2).values for logits in output.logits]
            reply = ReferenceReply(
                token_ids=tuple(output.sequences[0, len(prompt) :].tolist()),
                leads=tuple(float(first - second) for first, second in best),
            )
            self._replies[key] = max_new_tokens, reply
        return ReferenceReply(reply.token_ids[:max_new_tokens], reply.leads[:max_new_tokens])


@dataclass
class Comparison:
    """Counts compared tokens, and the ties that excused a difference."""

    tokens: int = 0
    ties: int = 0

    def check(self, got: Sequence[int], expected: ReferenceReply, *, finished: bool = True, context: str = "") -> None:
        """Asserts that ``got`` is the expected reply, or a prefix of it if it was not ``finished``.

        After an excused difference the two replies diverge, and the rest is not compared.
        """
        for position, (ours, theirs) in enumerate(zip(got, expected.token_ids, strict=False)):
            self.tokens += 1
            if ours != theirs:
                lead = expected.leads[position]
                assert lead < TIE_MARGIN, (
                    f"{context}: token {position} is {ours}, not {theirs}, which leads by {lead:.4g}"
                )
                self.ties += 1
                return
        assert len(got) == len(expected.token_ids) or (not finished and len(got) < len(expected.token_ids)), (
            f"{context}: {len(got)} tokens instead of {len(expected.token_ids)}"
        )
