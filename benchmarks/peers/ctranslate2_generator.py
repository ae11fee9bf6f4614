"""Runs CTranslate2's ``Generator``, one chat at a time.

It is not compared with several chats at once. A batch whose prompts are left out of the result reads its prompts
together only up to the length of the shortest, less one token, and the rest of each token by token (``forward_length``
in CTranslate2's ``language_model.cc``), which would make it look slower than it has to be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import ctranslate2

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, installed_versions, refuse_several_chats, serve


class CTranslate2:
    """Has no prefix cache but one for a fixed system prompt, so each prompt is computed from its first token on."""

    def __init__(self, load: PeerConfig) -> None:
        self.versions = installed_versions("ctranslate2")
        self._generator = ctranslate2.Generator(
            load.model, device="cpu", compute_type=load.format, inter_threads=1, intra_threads=load.threads
        )
        self._names: list[str] = json.loads((Path(load.model) / "vocabulary.json").read_text(encoding="utf-8"))

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        refuse_several_chats(chats)
        (chat,) = chats
        reply = TimedReply(0.0, [])
        begin = perf_counter()

        def note(step: ctranslate2.GenerationStepResult) -> bool:
            reply.times.append(perf_counter() - begin)
            reply.tokens.append(step.token_id)
            return False  # goes on

        self._generator.generate_batch(
            [[self._names[token] for token in chat.prompt]],
            max_length=chat.new_tokens,
            min_length=chat.new_tokens,
            include_prompt_in_result=False,
            callback=note,
        )
        return [reply], {}


if __name__ == "__main__":
    serve(CTranslate2)
