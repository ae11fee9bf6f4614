"""Runs transformers' ``generate`` with all chats as one padded batch, its fastest way without extra packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, installed_versions, refuse_late_chats, serve


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Records when each step is done; never stops the reply."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:  # noqa: ARG002
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def load_reference(path: Path | str, dtype: torch.dtype, device: str = "cpu") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval().to(device)
    # generate() takes its defaults from here: no end of sequence, no penalties.
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


@torch.inference_mode()
def answer(model: PreTrainedModel, chats: Sequence[Chat]) -> list[TimedReply]:
    refuse_late_chats(chats)
    width = max(len(chat.prompt) for chat in chats)
    longest = max(chat.new_tokens for chat in chats)
    ids = torch.tensor([[0] * (width - len(chat.prompt)) + list(chat.prompt) for chat in chats])
    mask = torch.tensor([[0] * (width - len(chat.prompt)) + [1] * len(chat.prompt) for chat in chats])
    clock = _Clock()
    begin = perf_counter()
    output = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=longest,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    # Only the requested tokens count: the batch runs until its longest reply is done.
    rows = output[:, width:].tolist()
    times = [time - begin for time in clock.times]
    return [
        TimedReply(0.0, times[: chat.new_tokens], row[: chat.new_tokens]) for chat, row in zip(chats, rows, strict=True)
    ]


class Generate:
    def __init__(self, load: PeerConfig) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(load.threads)
        self.versions = installed_versions("transformers", "torch")
        self._model = load_reference(load.model, torch.bfloat16)

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        return answer(self._model, chats), {}


if __name__ == "__main__":
    serve(Generate)
