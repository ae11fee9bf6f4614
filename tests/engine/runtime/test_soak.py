"""Random load, aborts, deadlines, errors, restarts, sleeps and swaps, for a minute or as long as SOAK_SECONDS says.

Nothing may be left behind: no block, thread, task or open file, and no memory that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.machine import open_files, resident_bytes
from engine import Engine, EngineError, EngineSettings, EngineState, SamplingParams
from engine.device.memory import release_memory
from engine.execution.runner import Runner
from engine.model import safetensors_folder
from testing.models import make_model
from testing.waiting import eventually

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
VISITORS = 10
LONGER = 120.0  #: seconds that it may take on top, on a busy machine, until everything has happened
EVERYTHING = {"stop", "length", "deadline", "early", "cancelled", "EngineFailedError", "LogitsError", "DeadlineError"}
MIB = 1024**2


@dataclass(frozen=True)
class Held:
    """What the process holds while the engine rests."""

    threads: int
    tasks: int
    files: int
    objects: int  #: blocks of Python's own allocator
    heap: int  #: bytes that the C library has handed out; its own fragments are no leak, and are not counted
    resident: int  #: bytes in memory, fragments included, without files that are merely mapped

    @classmethod
    def now(cls) -> Held:
        release_memory()
        return cls(
            # The loop's pool grows to its size when it happens to be busy.
            threads=sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
            tasks=len(asyncio.all_tasks()),
            files=open_files(),
            objects=sys.getallocatedblocks(),
            heap=_heap_in_use(),
            resident=resident_bytes(),
        )


_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]


def _heap_in_use() -> int:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    now = mallinfo()
    return int(now.uordblks + now.hblkhd)


class Faults:
    """What goes wrong in the next steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fatal = False
        self.nan = False
        execute, execute_steps = Runner.execute, Runner.execute_steps

        def faulty(runner: Runner, plan):  # type: ignore[no-untyped-def]
            if plan.chunks[0].request.id == "warm-up":
                return execute(runner, plan)
            if self.fatal:
                self.fatal = False
                raise RuntimeError("the device fell off")
            logits = execute(runner, plan)
            if self.nan and len(logits):
                self.nan = False
                logits = logits.clone()
                logits[0] = torch.nan
            return logits

        def faulty_several(runner: Runner, plan, *others):  # type: ignore[no-untyped-def]
            if plan.chunks[0].request.id == "warm-up":
                return execute_steps(runner, plan, *others)
            if self.fatal:
                self.fatal = False
                raise RuntimeError("the device fell off")
            drawn = execute_steps(runner, plan, *others)
            if self.nan:
                self.nan = False
                logits = drawn.logits.clone()
                logits[0] = torch.nan
                return drawn._replace(tokens=[], seconds=[], logits=logits)
            return drawn

        monkeypatch.setattr(Runner, "execute", faulty)
        monkeypatch.setattr(Runner, "execute_steps", faulty_several)


class _Once:
    """A function of a model's folder and other things, called once for each folder."""

    def __init__(self, load: Callable[..., object]) -> None:
        self._load = load
        self._known: dict[object, object] = {}

    def __call__(self, source: object, *others: object) -> object:
        if source not in self._known:
            self._known[source] = self._load(source, *others)
        return self._known[source]


class Soak:
    def __init__(self, engine: Engine, models: list[Path], faults: Faults, seed: int) -> None:
        self.engine = engine
        self.models = models
        self.faults = faults
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    def goes_on(self, until: float) -> bool:
        now = time.monotonic()
        return now < until or (now < until + LONGER and not self.outcomes.keys() >= EVERYTHING)

    async def visitor(self, until: float) -> None:
        while self.goes_on(until):
            try:
                async with asyncio.timeout(120):  # nobody may be left waiting
                    self.outcomes[await self.visit()] += 1
            except TimeoutError:  # starved, or forgotten: the stacks tell
                print(self.outcomes, self.engine.status, self.engine.stats())
                assert sys.__stderr__ is not None
                faulthandler.dump_traceback(sys.__stderr__)
                raise
            except EngineError as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(self.rng.random() * 0.2)

    async def visit(self) -> str:
        rng = self.rng
        prompt = [rng.randrange(3, 300) for _ in range(rng.choice([1, 5, 30, 90]))]
        if rng.random() < 0.3:
            prompt = list(range(10, 60)) + prompt[:10]  # a beginning that others share
        params = SamplingParams(
            max_tokens=rng.choice([1, 8, 40]),
            ignore_eos=True,
            temperature=rng.choice([0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            stop=rng.choice([(), ("a",)]),
            n=rng.choice([1, 1, 1, 2]),
        )
        deadline = rng.choice([None, None, None, 0.01, 0.5])
        if rng.random() < 0.3:
            stream: Any = self.engine.chat(
                [{"role": "user", "content": "x" * rng.randint(1, 80)}], params, deadline=deadline
            )
        else:
            stream = self.engine.complete(prompt, params, deadline=deadline)
        leave = rng.choice(["never", "never", "early", "cancelled"])
        if leave == "cancelled":
            task = asyncio.create_task(self.read(stream, 10**9))
            await asyncio.sleep(rng.random() * 0.05)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return leave
        return await self.read(stream, 2 if leave == "early" else 10**9)

    async def read(self, stream, most: int) -> str:  # type: ignore[no-untyped-def]
        async with contextlib.aclosing(stream):
            async for delta in stream:
                most -= 1
                if delta.is_last:
                    return str(delta.finish_reason)
                if most == 0:
                    return "early"
        raise AssertionError("a stream ended without a reason")

    async def trouble(self, until: float) -> None:
        """Every second or so something happens to the engine."""
        while self.goes_on(until):
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))
            match self.rng.choice(["fatal", "nan", "nan", "sleep", "swap", "bad swap"]):
                case "fatal":
                    self.faults.fatal = True
                case "nan":
                    self.faults.nan = True
                case "sleep":
                    await self.engine.sleep(self.rng.choice([0.0, 1.0]))
                    await self.engine.wake()
                case "swap":
                    await self.engine.swap(str(self.rng.choice(self.models)), timeout=self.rng.choice([0.0, 1.0]))
                case "bad swap":
                    with pytest.raises(EngineError):
                        await self.engine.swap("/nowhere")
            if self.engine.status.state is EngineState.FAILED:  # too many failures in a short while
                self.outcomes["woken"] += 1
                await self.engine.wake()

    async def run(self, seconds: float) -> Held:
        until = time.monotonic() + seconds
        await asyncio.gather(self.trouble(until), *(self.visitor(until) for _ in range(VISITORS)))
        self.faults.fatal = self.faults.nan = False
        if self.engine.status.state is EngineState.FAILED:
            await self.engine.wake()
        await self.engine.swap(str(self.models[0]))  # the two are not of one size
        await eventually(lambda: self.engine.status.state is EngineState.READY and not self.engine._core.has_work)
        stats = self.engine.stats()
        assert (stats.num_requests_running, stats.num_requests_waiting, stats.kv_cache_usage) == (0, 0, 0)
        worker = self.engine._supervisor.running_worker()
        assert not worker.readers
        assert not self.engine._core._submissions
        assert not self.engine._core._output_processor._deadlines
        self.engine._core.check()
        # The thread that changed the model has told so, and ends just now.
        await eventually(lambda: all(thread.name != "deskmate-lifecycle" for thread in threading.enumerate()))
        gc.collect()
        return Held.now()


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 300)
async def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # pytest keeps every record
    # The tokenizers library never frees about 0.1 MB of each tokenizer that has encoded something: load them once.
    monkeypatch.setattr(safetensors_folder, "_load_tokenizer", _Once(safetensors_folder._load_tokenizer))
    models = [make_model(tmp_path / arch, arch, seed=seed) for seed, arch in enumerate(("llama", "qwen3"))]
    settings = EngineSettings(
        model=str(models[0]),
        dtype="float32",
        max_model_len=160,
        num_kv_blocks=3 * 40 + 1,  # room for three of the longest: the others put each other out
        kv_block_size=4,
        max_num_seqs=6,
        max_batched_tokens=48,
    )
    async with Engine(settings) as engine:
        soak = Soak(engine, models, Faults(monkeypatch), seed=1)
        early = await soak.run(SECONDS / 3)
        late = await soak.run(SECONDS * 2 / 3)
    print(f"\n{dict(soak.outcomes)}\n{early}\n{late}\n{engine.stats()}")
    assert late.threads <= early.threads
    assert late.tasks <= early.tasks
    assert late.files <= early.files
    assert late.objects - early.objects < 10_000
    grown = (late.heap - early.heap) / MIB
    assert grown < 4, f"{grown:.1f} MiB more than after a third"
    assert late.resident - early.resident < 96 * MIB  # each thread of the pool may break up an arena of its own
    assert soak.outcomes.keys() >= EVERYTHING
    assert engine.stats().num_restarts > 0
