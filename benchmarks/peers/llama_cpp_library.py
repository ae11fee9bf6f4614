"""Runs llama.cpp through the low-level API of ``llama-cpp-python``, one chat at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import perf_counter

import llama_cpp
import numpy as np

from benchmarks.peers.protocol import (
    Chat,
    PeerConfig,
    TimedReply,
    common_prefix,
    installed_versions,
    refuse_several_chats,
    serve,
)


class LlamaCpp:
    """Keeps the KV cache between chats and computes a prompt only from the first differing token on, as users do."""

    def __init__(self, load: PeerConfig) -> None:
        # Without mmap: mapped pages may be evicted while the process is frozen.
        self._llama = llama_cpp.Llama(
            load.model,
            n_ctx=load.context,
            n_threads=load.threads,
            n_threads_batch=load.threads,
            use_mmap=False,
            verbose=False,
        )
        self.versions = installed_versions("llama-cpp-python")
        self._context = self._llama.ctx
        self._vocabulary = self._llama.n_vocab()
        self._cached_tokens: list[int] = []

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        refuse_several_chats(chats)
        (chat,) = chats
        begin = perf_counter()
        token = self._read(chat.prompt)
        times, tokens = [perf_counter() - begin], [token]
        while len(times) < chat.new_tokens:
            token = self._decode([token])
            times.append(perf_counter() - begin)
            tokens.append(token)
        return [TimedReply(0.0, times, tokens)], {}

    def _read(self, prompt: Sequence[int]) -> int:
        common = common_prefix(self._cached_tokens, prompt)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, common, -1)
        del self._cached_tokens[common:]
        return self._decode(prompt[common:])

    def _decode(self, tokens: Sequence[int]) -> int:
        """Computes these tokens and returns the likeliest next one."""
        for start in range(0, len(tokens), self._llama.n_batch):
            part = tokens[start : start + self._llama.n_batch]
            array = (llama_cpp.llama_token * len(part))(*part)
            status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(array, len(part)))
            if status:
                raise RuntimeError(f"llama_decode: {status}")
        self._cached_tokens.extend(tokens)
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        scores = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocabulary)).contents
        return int(np.frombuffer(scores, dtype=np.float32).argmax())


if __name__ == "__main__":
    serve(LlamaCpp)
