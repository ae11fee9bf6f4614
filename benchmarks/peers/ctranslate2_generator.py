"""Runs CTranslate2's ``Generator`` with all chats as one batch, which loses each chat that has its full length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import ctranslate2

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, arriving_late, installed_versions, serve


class CTranslate2:
    """Has no prefix cache but one for a fixed system prompt, so each prompt is computed from its first token on."""

    def __init__(self, load: PeerConfig) -> None:
        self.versions = installed_versions("ctranslate2")
        self._generator = ctranslate2.Generator(
            load.model, device="cpu", compute_type=load.format, inter_threads=1, intra_threads=load.threads
        )
        self._names: list[str] = json.loads((Path(load.model) / "vocabulary.json").read_text(encoding="utf-8"))

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        if arriving_late(chats):
            raise NotImplementedError("cannot add a chat to a running batch")
        longest = max(chat.new_tokens for chat in chats)
        begin = perf_counter()
        replies = [TimedReply(0.0, []) for _ in chats]

        def is_complete(step: ctranslate2.GenerationStepResult) -> bool:
            reply = replies[step.batch_id]
            reply.times.append(perf_counter() - begin)
            reply.tokens.append(step.token_id)
            return bool(len(reply.times) == chats[step.batch_id].new_tokens)

        self._generator.generate_batch(
            [[self._names[token] for token in chat.prompt] for chat in chats],
            max_length=longest,
            min_length=longest,
            include_prompt_in_result=False,
            callback=is_complete,
        )
        return replies, {}


if __name__ == "__main__":
    serve(CTranslate2)
