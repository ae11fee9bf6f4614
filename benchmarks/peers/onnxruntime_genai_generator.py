"""Runs ONNX Runtime GenAI's ``Generator`` on the CPU: one chat, or several as one padded batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime_genai as og

from benchmarks.peers.protocol import (
    Chat,
    PeerConfig,
    TimedReply,
    common_prefix,
    installed_versions,
    refuse_late_chats,
    serve,
)

GRANULE = 256
"""A batch's length is rounded up to a multiple of this many tokens, so that batches alike share a generator."""


class OnnxRuntimeGenai:
    """Keeps a single chat's KV cache and computes the next prompt only from the first differing token on.

    A batch has no such cache: its prompts are computed whole, padded to the longest.
    """

    def __init__(self, load: PeerConfig) -> None:
        self.versions = installed_versions("onnxruntime-genai", "onnxruntime")
        self._load = load
        self._generator = _new_generator(self._load_model("chat"), 1, load.context)
        self._cached_tokens: list[int] = []
        self._batch_model: og.Model | None = None
        self._batch_generator: og.Generator | None = None
        self._batch_shape = (0, 0)
        settings = json.loads((Path(load.model) / "batch" / "genai_config.json").read_text(encoding="utf-8"))
        self._padding: int = settings["model"]["pad_token_id"]

    def _load_model(self, name: str) -> og.Model:
        config = og.Config(str(Path(self._load.model) / name))
        session = {"intra_op_num_threads": self._load.threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        return og.Model(config)

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        refuse_late_chats(chats)
        return (self._run_batch(chats) if len(chats) > 1 else [self._run_one(*chats)]), {}

    def _run_one(self, chat: Chat) -> TimedReply:
        reply = TimedReply(0.0, [])
        begin = perf_counter()
        common = common_prefix(self._cached_tokens, chat.prompt)
        self._generator.rewind_to(common)
        self._generator.append_tokens(np.array(chat.prompt[common:], dtype=np.int32))
        while len(reply.times) < chat.new_tokens:
            self._generator.generate_next_token()
            (token,) = self._generator.get_next_tokens()
            reply.times.append(perf_counter() - begin)
            reply.tokens.append(int(token))
        self._cached_tokens = [*chat.prompt, *reply.tokens[:-1]]  # the last token is not computed yet
        return reply

    def _run_batch(self, chats: Sequence[Chat]) -> list[TimedReply]:
        width = max(len(chat.prompt) for chat in chats)
        longest = max(chat.new_tokens for chat in chats)
        generator = self._generator_for(len(chats), width + longest)
        # Attention takes the padding to be on the right, whatever the mask says: on the left, replies are nonsense.
        rows = [[*chat.prompt, *[self._padding] * (width - len(chat.prompt))] for chat in chats]
        replies = [TimedReply(0.0, []) for _ in chats]
        begin = perf_counter()
        generator.append_tokens(np.array(rows, dtype=np.int32))
        for _ in range(longest):
            generator.generate_next_token()
            tokens = generator.get_next_tokens()
            now = perf_counter() - begin
            # Only the requested tokens count: the batch runs until its longest reply is done.
            for chat, reply, token in zip(chats, replies, tokens, strict=True):
                if len(reply.times) < chat.new_tokens:
                    reply.times.append(now)
                    reply.tokens.append(int(token))
        return replies

    def _generator_for(self, chats: int, length: int) -> og.Generator:
        """Returns an empty generator for a batch; the one before is used again if it fits."""
        if self._batch_model is None:
            self._batch_model = self._load_model("batch")
        shape = (chats, -(-length // GRANULE) * GRANULE)
        if self._batch_generator is None or shape != self._batch_shape:
            self._batch_generator, self._batch_shape = _new_generator(self._batch_model, *shape), shape
        self._batch_generator.rewind_to(0)
        return self._batch_generator


def _new_generator(model: og.Model, chats: int, length: int) -> og.Generator:
    params = og.GeneratorParams(model)
    # The end token is left out until the smallest length: no reply ends before its full length.
    params.set_search_options(batch_size=chats, min_length=length, max_length=length, do_sample=False)
    return og.Generator(model, params)


if __name__ == "__main__":
    serve(OnnxRuntimeGenai)
