"""Runs Deskmate's engine in the bench's peer protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Any, get_args

from benchmarks.model_files import FILE
from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, installed_versions, serve
from benchmarks.peers.readers import read_all
from engine import Engine, EngineSettings, SamplingParams
from engine.execution.native.decoder import Decoder
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore

GREEDY = SamplingParams.neutral(temperature=0.0, ignore_eos=True)


class StepClock:
    """Measures the time from the first to the last step of a workload, and the model's forward time within it.

    On a CPU the forward is complete when it returns, so its wall-clock time is its compute time.
    """

    def __init__(self) -> None:
        self._forward = 0.0
        self._began: float | None = None
        self._ended = 0.0

    def __enter__(self) -> StepClock:
        forwards: list[Any]
        self._originals = step, *forwards = EngineCore.step, LoadedModel.logits, Decoder.logits

        def timed_step(*args: Any) -> Any:
            if self._began is None:
                self._began = perf_counter()
            result = step(*args)
            self._ended = perf_counter()
            return result

        def timed(forward: Callable[..., Any]) -> Callable[..., Any]:
            def timed_forward(*args: Any, **kwargs: Any) -> Any:
                begin = perf_counter()
                result = forward(*args, **kwargs)
                self._forward += perf_counter() - begin
                return result

            return timed_forward

        EngineCore.step = timed_step  # type: ignore[method-assign, assignment]
        LoadedModel.logits, Decoder.logits = (timed(forward) for forward in forwards)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        EngineCore.step, LoadedModel.logits, Decoder.logits = self._originals  # type: ignore[method-assign]

    @property
    def outside_forward(self) -> float:
        """Share of the time from the first step's start to the last step's end spent outside the model's forward."""
        assert self._began is not None
        return 1 - self._forward / (self._ended - self._began)


async def answer(engine: Engine, chats: Sequence[Chat]) -> list[TimedReply]:
    """Answers all chats concurrently, each read by its own stream."""

    async def stream(chat: Chat) -> AsyncGenerator[Sequence[int]]:
        params = replace(GREEDY, max_tokens=chat.new_tokens)
        async with aclosing(engine.complete(chat.prompt, params)) as deltas:
            async for delta in deltas:
                yield delta.token_ids

    return await read_all(chats, stream)


class Deskmate:
    """The started engine; its event loop is kept between workloads."""

    def __init__(self, load: PeerConfig) -> None:
        as_it_is = load.format in ("bf16", FILE)
        if not as_it_is and load.format not in get_args(EngineSettings.model_fields["quantization"].annotation):
            raise NotImplementedError("not built")
        wanted: dict[str, Any] = {} if as_it_is else {"quantization": load.format}
        settings = EngineSettings(
            _env_file=None,
            model=load.model,
            device="cpu",
            dtype="auto" if load.format == FILE else "bfloat16",
            num_threads=load.threads,
            kv_cache_memory=load.kv_gib,
            **wanted,
        )
        self.versions = installed_versions("torch", "transformers")
        self._loop = asyncio.new_event_loop()
        self._engine = Engine(settings)
        self._loop.run_until_complete(self._engine.start())

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        with StepClock() as clock:
            replies = self._loop.run_until_complete(answer(self._engine, chats))
        return replies, {"outside_forward": 100 * clock.outside_forward}


if __name__ == "__main__":
    serve(Deskmate)
