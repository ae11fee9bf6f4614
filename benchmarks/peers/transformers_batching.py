"""Runs transformers' continuous batching with SDPA, which needs no extra package."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, installed_versions, serve

PAGE = 256


class ContinuousBatching:
    """A manager whose thread keeps running between workloads, as in a server."""

    def __init__(self, load: PeerConfig, *, device: str = "cpu", max_batch_tokens: int = 512) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(load.threads)
        self.versions = installed_versions("transformers", "torch")
        model = AutoModelForCausalLM.from_pretrained(load.model, dtype=torch.bfloat16, attn_implementation="sdpa")
        config = model.config
        token = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        self._manager = (
            model.eval()
            .to(device)
            .init_continuous_batching(
                generation_config=GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=-1),
                continuous_batching_config=ContinuousBatchingConfig(
                    num_blocks=int(load.kv_gib * 2**30) // (token * PAGE),
                    page_size=PAGE,
                    max_batch_tokens=max_batch_tokens,
                ),
            )
        )
        start = self._manager._run_generation_loop

        def with_threads() -> None:
            torch.set_num_threads(load.threads)  # OpenMP keeps this number per calling thread
            start()

        self._manager._run_generation_loop = with_threads
        self._manager.start()

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        begin = perf_counter()
        asked: dict[str, float] = {}
        names: dict[str, int] = {}
        lock = threading.Lock()

        def ask(index: int, *, stream: bool) -> None:
            with lock:
                at = perf_counter() - begin
                name = self._manager.add_request(
                    list(chats[index].prompt),
                    max_new_tokens=chats[index].new_tokens,
                    record_timestamps=True,
                    streaming=stream,
                )
                names[name], asked[name] = index, at

        late = {index for index, chat in enumerate(chats) if chat.after}
        for index in range(len(chats)):
            if index not in late:
                ask(index, stream=bool(late))
        done: dict[int, TimedReply] = {}
        written: dict[int, int] = {}
        while len(done) < len(chats):
            result = self._manager.get_result(timeout=600)
            if result is None:
                raise RuntimeError("continuous batching returned no result")
            if result.error:
                raise RuntimeError(result.error)
            index = names[result.request_id]
            written[index] = len(result.generated_tokens)
            if result.is_finished():
                times = [time - begin for time in result.timestamps or ()]
                done[index] = TimedReply(asked[result.request_id], times, list(result.generated_tokens))
            for coming in list(late):
                enough = chats[coming].after
                if all(written.get(i, 0) >= enough or i in done for i, chat in enumerate(chats) if not chat.after):
                    late.remove(coming)
                    ask(coming, stream=False)
        return [done[index] for index in range(len(chats))], {}

    def stop(self) -> None:
        self._manager.stop(block=True)


if __name__ == "__main__":
    serve(ContinuousBatching)
