"""``Engine``: one worker thread owns the device; everybody else talks to it through an asyncio face."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType

import torch
from prometheus_client import CollectorRegistry
from tqdm import tqdm

from engine.capacity import suitable_num_threads
from engine.core import EngineCore, StepResult, Submission
from engine.errors import EngineError, EngineOverloadedError, EngineStoppedError
from engine.interface import ChatMessage
from engine.model.loading import Progress, load_model
from engine.outputs import Completion, Delta, EngineStats, Health, ModelInfo
from engine.reader import Reader
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class _Stop:
    """Ends the worker."""


def _no_progress(_stage: str, _fraction: float) -> None:
    """Nobody is watching."""


class Engine:
    """Streams replies of one model to many readers at once.

    Use it as ``async with Engine(settings) as engine``, or call :meth:`start` and :meth:`stop`.

    Args:
        settings: default: from ``ENGINE_*`` in the environment.
        progress: called during start with what is happening and how far it is, 0 to 1.
    """

    def __init__(self, settings: EngineSettings | None = None, *, progress: Progress = _no_progress) -> None:
        self.settings = settings or EngineSettings()
        self._progress = progress
        self._core: EngineCore | None = None
        self._thread: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Submission | _Abort | _Stop] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the four fields below
        self._readers: dict[str, Reader] = {}
        self._idle = threading.Event()
        self._accepting = False
        self._failure: str | None = None
        self._ids = itertools.count(1)
        self._num_threads = 1

    # -- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, warm it up and begin to accept requests.

        Raises:
            ModelLoadError: the model cannot be loaded or cannot run here.
        """
        await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        """End the worker and release the model. Requests in flight end with :class:`EngineStoppedError`."""
        await asyncio.to_thread(self._stop)

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def drain(self, timeout: float) -> bool:
        """Take no new requests and wait for those in flight; True when all ended within ``timeout`` seconds."""
        with self._lock:
            self._accepting = False
        return await asyncio.to_thread(self._idle.wait, timeout)

    def _start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("the engine is already started")
        model = load_model(self.settings, self._progress)
        self._num_threads = self.settings.num_threads or suitable_num_threads(model)
        torch.set_num_threads(self._num_threads)
        core = EngineCore(model, self.settings)
        self._core = core
        self._inbox = queue.SimpleQueue()
        self._idle.set()
        self._warm_up(core)
        self._failure = None
        self._accepting = True
        self._thread = threading.Thread(target=self._work, args=(core,), name="deskmate-engine", daemon=True)
        self._thread.start()
        log.info(
            "model %s: %s on %s, attention %s, %d KV blocks of %d tokens, context %d",
            model.name,
            str(model.dtype).removeprefix("torch."),
            model.device,
            core.kernel.name,
            core.stats().num_kv_blocks,
            core.stats().kv_block_size,
            core.max_model_len,
        )

    def _stop(self) -> None:
        with self._lock:
            self._accepting = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(_Stop())
            thread.join()
        self._core = None
        gc.collect()

    def _warm_up(self, core: EngineCore) -> None:
        """Run a long prompt and a few decodes, so that the first person does not pay for lazy set-up."""
        length = min(self.settings.max_batched_tokens, core.max_model_len - 4)
        params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.0, top_p=0.9)
        prompt = [0] * length
        core.add(core.submission("warm-up", prompt, core.resolve(prompt, params)))
        done = 0
        while core.has_work:
            self._progress("Warming up", done / 4)
            core.step()
            done += 1
        core.forget()
        self._progress("Warming up", 1.0)

    # -- what is loaded, and how it is doing ----------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        core = self._running_core()
        return ModelInfo(
            name=core.model.name,
            max_model_len=core.max_model_len,
            vocab_size=core.model.vocab_size,
            dtype=str(core.model.dtype).removeprefix("torch."),
            device=str(core.model.device),
            attention=core.kernel.name,
            num_parameters=core.model.num_parameters,
            has_chat_template=bool(core.model.tokenizer.chat_template),
        )

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, with every field set that has one."""
        return self._running_core().default_params

    @property
    def registry(self) -> CollectorRegistry:
        """Prometheus metrics, ``deskmate_*``."""
        return self._running_core().metrics.registry

    def stats(self) -> EngineStats:
        return self._running_core().stats()

    def health(self) -> Health:
        with self._lock:
            if self._failure is not None:
                return Health(ready=False, error=self._failure)
            if not self._accepting:
                return Health(ready=False, error="The engine is not accepting requests: it is starting or stopping.")
            return Health(ready=True)

    # -- requests -------------------------------------------------------------------------------------------

    async def chat(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None = None
    ) -> AsyncGenerator[Delta]:
        """Stream a reply to a conversation. Leaving the loop aborts the request.

        Raises:
            ContextLengthError, InvalidRequestError, EngineOverloadedError, EngineStoppedError: before the first
                delta; :class:`EngineStoppedError` also later, when the engine fails or stops.
        """
        core = self._running_core()
        prompt, resolved = await asyncio.to_thread(core.render_chat, messages, params)
        async with aclosing(self._stream(core, prompt, resolved)) as deltas:
            async for delta in deltas:
                yield delta

    async def complete(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> AsyncGenerator[Delta]:
        """Stream a continuation of a text or of token ids, without a chat template. Otherwise as :meth:`chat`."""
        core = self._running_core()
        tokens, resolved = await asyncio.to_thread(core.encode, prompt, params)
        async with aclosing(self._stream(core, tokens, resolved)) as deltas:
            async for delta in deltas:
                yield delta

    async def check_chat(self, messages: Sequence[ChatMessage], params: SamplingParams | None = None) -> int:
        """Would :meth:`chat` accept this now? Returns the prompt's length in tokens, or raises as it would."""
        core = self._running_core()
        prompt, _resolved = await asyncio.to_thread(core.render_chat, messages, params)
        with self._lock:
            self._refuse_when_full()
        return len(prompt)

    def generate(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Complete many prompts offline, batched, in the order given. Starts the engine when it is not started.

        Args:
            prompts: texts or token ids, without a chat template.
            params: one for all, or one for each.
            show_progress: draw a progress bar.

        Raises:
            RuntimeError: called from a running event loop; use :meth:`complete` there.
            ValueError: as many params as prompts are needed.
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("generate() blocks and must not be called in an event loop; use complete() there")
        asked = list(prompts)
        each = [params] * len(asked) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(asked):
            raise ValueError(f"{len(asked)} prompts need as many params (got {len(each)})")
        if self._thread is None:
            self._start()
        return asyncio.run(self._generate(asked, each, show_progress))

    async def _generate(
        self, prompts: Sequence[str | Sequence[int]], params: Sequence[SamplingParams | None], show_progress: bool
    ) -> list[Completion]:
        room = asyncio.Semaphore(self.settings.max_num_seqs + self.settings.max_waiting)
        bar = tqdm(total=len(prompts), desc="Generating", disable=not show_progress)

        async def one(prompt: str | Sequence[int], chosen: SamplingParams | None) -> Completion:
            async with room:
                core = self._running_core()
                tokens, resolved = core.encode(prompt, chosen)
                deltas = [delta async for delta in self._stream(core, tokens, resolved)]
            bar.update()
            return _completion(tokens, deltas)

        with bar:
            return await asyncio.gather(*(one(*pair) for pair in zip(prompts, params, strict=True)))

    async def _stream(self, core: EngineCore, prompt: Sequence[int], params: SamplingParams) -> AsyncGenerator[Delta]:
        reader = self._submit(core, prompt, params)
        try:
            while True:
                delta = await reader.next()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            if not reader.ended:
                self._inbox.put(_Abort(reader.request_id))

    def _submit(self, core: EngineCore, prompt: Sequence[int], params: SamplingParams) -> Reader:
        submission = core.submission(f"req-{next(self._ids)}", prompt, params)
        reader = Reader(submission.request.id, asyncio.get_running_loop())
        with self._lock:
            self._refuse_when_full()
            self._readers[reader.request_id] = reader
            self._idle.clear()
        self._inbox.put(submission)
        return reader

    def _refuse_when_full(self) -> None:
        """Called with the lock held."""
        if self._failure is not None:
            raise EngineStoppedError(self._failure)
        if not self._accepting:
            raise EngineStoppedError("The engine is stopping and takes no new requests.")
        room = self.settings.max_num_seqs + self.settings.max_waiting
        if len(self._readers) >= room:
            raise EngineOverloadedError(
                f"The engine is full: {len(self._readers)} requests are running or waiting, of at most {room}. "
                "Try again in a moment."
            )

    def _running_core(self) -> EngineCore:
        if self._core is None:
            raise EngineStoppedError("The engine is not started.")
        return self._core

    # -- the worker thread ----------------------------------------------------------------------------------

    def _work(self, core: EngineCore) -> None:
        torch.set_num_threads(self._num_threads)  # OpenMP keeps the number for each thread that calls it
        try:
            while self._take_commands(core):
                self._deliver(core, core.step())
                if not core.has_work:
                    core.check()
        except Exception as error:
            log.exception("the engine failed")
            self._fail(f"The engine failed and stopped: {error}")
        else:
            self._fail_readers(EngineStoppedError("The engine was stopped before the reply was finished."))

    def _take_commands(self, core: EngineCore) -> bool:
        """Apply what has been asked; sleeps only when there is nothing to compute. False ends the worker."""
        while True:
            try:
                command = self._inbox.get(block=not core.has_work)
            except queue.Empty:
                return True
            match command:
                case Submission():
                    core.add(command)
                case _Abort(request_id):
                    core.abort(request_id)
                    self._forget(request_id)
                    if not core.has_work:
                        core.check()
                case _Stop():
                    return False

    def _deliver(self, core: EngineCore, result: StepResult) -> None:
        """Hand a step's deltas to their event loops, one crossing for each loop."""
        deltas = result.deltas
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Reader, Delta]]] = {}
        with self._lock:
            for delta in deltas:
                reader = self._readers[delta.request_id]
                by_loop.setdefault(reader.loop, []).append((reader, delta))
        for delta in deltas:
            if delta.finish_reason is not None:
                self._forget(delta.request_id)
        for request_id, error in result.failures:
            self._readers[request_id].fail(error)
            self._forget(request_id)
        for loop, handed in by_loop.items():
            if not Reader.hand_over(loop, handed):
                for reader, _delta in handed:
                    core.abort(reader.request_id)
                    self._forget(reader.request_id)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._readers.pop(request_id, None)
            if not self._readers:
                self._idle.set()

    def _fail(self, sentence: str) -> None:
        with self._lock:
            self._failure = sentence
            self._accepting = False
        self._fail_readers(EngineStoppedError(sentence))

    def _fail_readers(self, error: EngineError) -> None:
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
            self._idle.set()
        for reader in readers:
            reader.fail(error)


def _completion(prompt: Sequence[int], deltas: Sequence[Delta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.timings is not None
    return Completion(
        request_id=last.request_id,
        prompt_token_ids=tuple(prompt),
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(itertools.chain.from_iterable(delta.token_ids for delta in deltas)),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        timings=last.timings,
        logprobs=tuple(itertools.chain.from_iterable(delta.logprobs for delta in deltas)),
    )
