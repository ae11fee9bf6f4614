"""The in-process engine: streams replies of one model to many readers at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from prometheus_client import CollectorRegistry

from engine.chat_options import ChatOptions
from engine.embeddings import Encoder, UnloadedEncoder
from engine.errors import EngineStoppedError
from engine.interface import Caller, ChatMessage, PreparedPrompt, PromptPiece, Truncation
from engine.outputs import Completion, Delta, Deltas, EngineState, EngineStats, EngineStatus, Health, ModelInfo
from engine.runtime.background import run_in_daemon_thread
from engine.runtime.offline import Job, join_deltas, run_all
from engine.runtime.reader import Listener, Reader
from engine.runtime.rendered_chat import RenderedChat, TokenizedPrompt
from engine.runtime.supervisor import Supervisor
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.text.truncation import prepare_truncated

if TYPE_CHECKING:  # importing these takes seconds; the supervisor does when it loads a model
    from engine.execution.submission import Submission
    from engine.model.progress import Progress
    from engine.runtime.engine_core import EngineCore
    from engine.runtime.request_processor import RequestProcessor
    from engine.runtime.worker import Worker

T = TypeVar("T")

MAX_INLINE_TOKENS = 256
"""Tokens. Up to this many are converted in the event loop, because handing them to a thread would take longer."""


def _no_progress(_stage: str, _fraction: float) -> None:
    """Ignores progress; the default."""


class Engine:
    """Asyncio interface of the engine. Only the ``generate`` methods block; the worker's thread does the computing.

    Use it as ``async with Engine(settings) as engine``, or call :meth:`start` and :meth:`stop`.

    Args:
        settings: default: from ``ENGINE_*`` in the environment.
        progress: called while a model is being loaded, with the stage and its progress, 0 to 1.
    """

    def __init__(self, settings: EngineSettings | None = None, *, progress: Progress = _no_progress) -> None:
        self._supervisor = Supervisor(settings or EngineSettings(), progress)
        self._ids = itertools.count(1)

    # -- lifecycle --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the model, warms it up and starts to accept requests. Cancelling stops the load within seconds.

        Raises:
            ModelLoadError: the model cannot be loaded or cannot run here.
        """
        await run_in_daemon_thread(self._supervisor.start, cancel=self._supervisor.cancel)

    def start_in_background(self) -> asyncio.Task[None]:
        """Runs :meth:`start` in a task and returns it. The engine reports itself as starting from now on.

        Until the task ends, requests are refused, :attr:`status` tells the progress, and :attr:`info` and
        :attr:`default_sampling_params` are what is known before the model is loaded.
        """
        self._supervisor.announce_start()
        return asyncio.get_running_loop().create_task(self.start(), name="engine start")

    async def stop(self) -> None:
        """Closes the worker and releases the model. Requests in flight end with :class:`EngineStoppedError`."""
        await run_in_daemon_thread(self._supervisor.stop)

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits for those in flight; True when all ended within ``timeout`` seconds."""
        return await run_in_daemon_thread(partial(self._supervisor.drain, timeout))

    async def sleep(self, timeout: float = 30.0) -> None:
        """Releases the weights and the cache; the memory goes back to the system.

        Replies in flight get ``timeout`` seconds, then they end with :class:`ReplyInterruptedError`. A sleeping engine
        refuses requests with :class:`EngineStoppedError`: loading a model takes too long to do it unasked. Does
        nothing when already asleep.

        Raises:
            EngineStoppedError: the engine is not started.
            EngineBusyError: a model is being loaded or unloaded.
        """
        await run_in_daemon_thread(partial(self._supervisor.sleep, timeout))

    async def wake(self) -> None:
        """Loads the model again, after :meth:`sleep` or after a failure that the engine could not recover from.

        Raises:
            ModelLoadError: the model cannot be loaded any more.
            EngineStoppedError, EngineBusyError: as :meth:`sleep`.
        """
        await run_in_daemon_thread(self._supervisor.wake)

    async def swap(
        self,
        model: str | EngineSettings,
        *,
        revision: str | None = None,
        max_model_len: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Replaces the served model.

        Replies in flight get ``timeout`` seconds, then they end with :class:`ReplyInterruptedError`; requests are
        refused with :class:`EngineStoppedError` until the new model serves. If the new model cannot be loaded, the
        old one serves again, without reading its weights again where memory holds both.

        Args:
            model: a folder or hub id, which keeps all other settings; or complete settings.
            revision, max_model_len: of a model given by name; default: its newest revision, its own context window.

        Raises:
            ModelLoadError: the new model cannot be loaded or cannot run here; says why.
            EngineStoppedError, EngineBusyError: as :meth:`sleep`.
        """
        if isinstance(model, str):
            chosen = {"model": model, "revision": revision, "max_model_len": max_model_len}
            model = self.settings.model_copy(update=chosen)
        await run_in_daemon_thread(partial(self._supervisor.swap, model, timeout))

    async def load_adapter(self, name: str, folder: str | Path) -> None:
        """Loads a LoRA adapter while the model serves; see :meth:`engine.interface.ModelHost.load_adapter`."""
        await run_in_daemon_thread(partial(self._supervisor.load_adapter, name, Path(folder)))

    async def unload_adapter(self, name: str) -> None:
        """Unloads a LoRA adapter; see :meth:`engine.interface.ModelHost.unload_adapter`."""
        await run_in_daemon_thread(partial(self._supervisor.unload_adapter, name))

    # -- model and state ------------------------------------------------------------------------------------

    @property
    def settings(self) -> EngineSettings:
        """Settings of the loaded model, or of the one to load. Can be set only while the engine is stopped."""
        return self._supervisor.settings

    @settings.setter
    def settings(self, settings: EngineSettings) -> None:
        if self._supervisor.state is not EngineState.STOPPED:
            raise RuntimeError("the engine is started; use swap()")
        self._supervisor.settings = settings

    @property
    def info(self) -> ModelInfo:
        """The loaded model, or the one that was loaded when the engine went to sleep.

        While the first one is loading: its name, its context window if it is known, and placeholders.
        """
        info = self._supervisor.known_info
        if info is None:
            raise EngineStoppedError("The engine is not started.")
        return info

    @property
    def encoder(self) -> Encoder | None:
        """The encoder; None if none is configured. Until it is loaded, it refuses every call."""
        if self._supervisor.encoder is None and self.settings.encoder is not None:
            return UnloadedEncoder(self._supervisor.status.reason)
        return self._supervisor.encoder

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults; every field that has one is set. Neutral while the first model is loading."""
        params = self._supervisor.default_params
        if params is None and self._supervisor.known_info is not None:
            return SamplingParams.neutral()
        if params is None:
            raise EngineStoppedError("The engine is not started.")
        return params

    @property
    def registry(self) -> CollectorRegistry:
        """Prometheus metrics, ``deskmate_*``, kept across restarts, sleeps and swaps."""
        return self._supervisor.metrics.registry

    @property
    def status(self) -> EngineStatus:
        return self._supervisor.status

    def stats(self) -> EngineStats:
        """Returns counters and gauges. Counters grow from the first start, across restarts, sleeps and swaps."""
        if self._supervisor.known_info is None:
            raise EngineStoppedError("The engine is not started.")
        return self._supervisor.stats()

    def health(self) -> Health:
        status = self._supervisor.status
        ready = status.state is EngineState.READY
        return Health(ready=ready, error=None if ready else status.reason)

    # -- requests -------------------------------------------------------------------------------------------

    async def prepare(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        caller: Caller | None = None,
        truncation: Truncation | None = None,
        previous: PreparedPrompt | None = None,
        options: ChatOptions | None = None,
    ) -> PreparedPrompt:
        """Validates, renders and counts a conversation. See :meth:`engine.interface.ChatEngine.prepare`."""
        worker = self._supervisor.running_worker()
        request_processor = worker.core.request_processor
        chat = await prepare_truncated(
            lambda kept: _render(request_processor, kept, params, caller, previous, options),
            messages,
            truncation,
            request_processor.budget(params),
        )
        worker.check_admission(chat.prompt.token_ids)
        return chat

    def stream(self, prepared: PreparedPrompt, *, deadline: float | None = None, priority: int = 0) -> Deltas:
        """Streams a reply to a prepared conversation. Leaving the loop aborts the request.

        If another model was loaded since, the conversation is rendered again for that one.

        Args:
            prepared: result of :meth:`prepare`. Each stream of it is a request of its own.
            deadline: seconds. A reply that takes longer ends with ``FinishReason.DEADLINE`` and keeps its text.
            priority: lower is served first: one less counts as arriving a minute earlier.

        Raises:
            ContextLengthError, InvalidRequestError, EngineOverloadedError, EngineStoppedError: before the first
                delta; :class:`EngineStoppedError` also later, when the engine fails or stops.
            DeadlineError: the deadline passed before the first token.
        """

        async def prepare() -> PreparedPrompt:
            return prepared

        return self._deltas(prepare, deadline, priority)

    def inspect(
        self, prepared: PreparedPrompt, *, position: int | None = None, deadline: float | None = None, priority: int = 0
    ) -> Deltas:
        """Reports how the tokens of a given reply are chosen from. See :meth:`engine.interface.ReplyInspector.inspect`.

        If another model was loaded since ``prepared`` was made, the conversation is rendered again for that one.
        """

        async def submit() -> tuple[Worker, Submission]:
            worker, chat = await self._rendered(prepared)
            request_processor = worker.core.request_processor
            request_id = f"req-{next(self._ids)}"
            return worker, await asyncio.to_thread(
                request_processor.process_inspection, request_id, chat, position, deadline, priority
            )

        return Deltas(_pull_deltas(submit), partial(_push_deltas, submit))

    def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        options: ChatOptions | None = None,
    ) -> Deltas:
        """Streams a reply to a conversation: :meth:`prepare` and :meth:`stream` in one."""
        return self._deltas(partial(self.prepare, messages, params, caller=caller, options=options), deadline, priority)

    async def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        adapter: str | None = None,
    ) -> AsyncGenerator[Delta]:
        """Streams a continuation of a text or of token ids, without a chat template. Otherwise as :meth:`chat`."""
        worker = self._supervisor.running_worker()
        request_processor = worker.core.request_processor
        tokenized = await asyncio.to_thread(request_processor.encode, prompt, params)
        submission = self._submission(request_processor, tokenized, deadline, priority, caller, adapter)
        async with aclosing(_stream(worker, submission)) as deltas:
            async for delta in deltas:
                yield delta

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        add_special_tokens: bool = True,
        options: ChatOptions | None = None,
    ) -> tuple[int, ...]:
        """See :meth:`engine.interface.ChatEngine.tokenize`."""
        tokenize = self._supervisor.running_worker().core.request_processor.tokenize
        return tuple(await asyncio.to_thread(tokenize, prompt, add_special_tokens=add_special_tokens, options=options))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """See :meth:`engine.interface.ChatEngine.detokenize`."""
        return await asyncio.to_thread(self._supervisor.running_worker().core.request_processor.detokenize, token_ids)

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """See :meth:`engine.interface.ChatEngine.token_strings`."""
        return await asyncio.to_thread(
            self._supervisor.running_worker().core.request_processor.token_strings, token_ids
        )

    async def read_prompt(
        self, prepared: PreparedPrompt, *, offset: int = 0, limit: int
    ) -> tuple[int, tuple[PromptPiece, ...]]:
        """Shows a prompt as the model reads it. See :meth:`engine.interface.PromptReader.read_prompt`."""
        worker, chat = await self._rendered(prepared)
        token_ids = chat.prompt.token_ids
        pieces = await asyncio.to_thread(worker.core.request_processor.pieces, token_ids[offset : offset + limit])
        return len(token_ids), tuple(PromptPiece(*piece) for piece in pieces)

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the part of a reply's sampled ``token_ids`` that spells exactly its ``text``; empty if none does."""
        reply_tokens = self._supervisor.running_worker().core.request_processor.reply_tokens
        if len(token_ids) <= MAX_INLINE_TOKENS:
            return reply_tokens(text, token_ids)
        return await asyncio.to_thread(reply_tokens, text, token_ids)

    def generate(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Completes many prompts offline, batched. Blocks, and starts the engine when it is not started.

        Returns:
            The completions in the order of the prompts. The ``n`` replies to one prompt are adjacent.

        Args:
            prompts: texts or token ids, without a chat template.
            params: one for all, or one for each.
            show_progress: draw a progress bar.

        Raises:
            RuntimeError: called from a running event loop; use :meth:`complete` there.
            ValueError: ``params`` is a sequence of another length than ``prompts``.
        """
        prompt_list = list(prompts)
        params_list = _one_each("params", params, SamplingParams, len(prompt_list), "prompts")
        jobs = [partial(self._complete_offline, *pair) for pair in zip(prompt_list, params_list, strict=True)]
        return self._run_offline(jobs, show_progress)

    def generate_chats(
        self,
        conversations: Iterable[Sequence[ChatMessage]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        options: ChatOptions | Sequence[ChatOptions] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Replies to many conversations offline, through the chat template. Otherwise as :meth:`generate`.

        Args:
            params, options: one for all, or one for each.
        """
        chats = list(conversations)
        params_list = _one_each("params", params, SamplingParams, len(chats), "conversations")
        options_list = _one_each("options", options, ChatOptions, len(chats), "conversations")
        each = zip(chats, params_list, options_list, strict=True)
        return self._run_offline([partial(self._reply_offline, *one) for one in each], show_progress)

    def _run_offline(self, jobs: Sequence[Job], show_progress: bool) -> list[Completion]:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "generate() blocks and must not be called in an event loop; use complete() or chat() there"
            )
        if self._supervisor.state is EngineState.STOPPED:
            self._supervisor.start()
        max_at_once = self.settings.max_num_seqs + self.settings.max_waiting
        return asyncio.run(run_all(jobs, max_at_once, show_progress=show_progress))

    async def _complete_offline(self, prompt: str | Sequence[int], params: SamplingParams | None) -> list[Completion]:
        worker = self._supervisor.running_worker()
        request_processor = worker.core.request_processor
        tokenized = request_processor.encode(prompt, params)
        deltas = [delta async for delta in _stream(worker, self._submission(request_processor, tokenized))]
        return [join_deltas(tokenized.token_ids, index, deltas) for index in range(tokenized.params.n)]

    async def _reply_offline(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None, options: ChatOptions | None
    ) -> list[Completion]:
        worker = self._supervisor.running_worker()
        request_processor = worker.core.request_processor
        prompt = request_processor.render_chat(messages, params, None, None, options).prompt
        adapter = None if options is None else options.adapter
        submission = self._submission(request_processor, prompt, adapter=adapter)
        deltas = [delta async for delta in _stream(worker, submission)]
        return [join_deltas(prompt.token_ids, index, deltas) for index in range(prompt.params.n)]

    @property
    def _core(self) -> EngineCore:
        """The current core. Do not keep it: restarts and swaps replace it."""
        return self._supervisor.running_worker().core

    def _deltas(
        self, prepare: Callable[[], Awaitable[PreparedPrompt]], deadline: float | None, priority: int
    ) -> Deltas:
        submit = partial(self._submit, prepare, deadline, priority)
        return Deltas(_pull_deltas(submit), partial(_push_deltas, submit))

    async def _submit(
        self, prepare: Callable[[], Awaitable[PreparedPrompt]], deadline: float | None, priority: int
    ) -> tuple[Worker, Submission]:
        """Makes the submission of a prepared conversation, for the worker that serves now."""
        worker, chat = await self._rendered(await prepare())
        return worker, self._submission(
            worker.core.request_processor, chat.prompt, deadline, priority, chat.caller, chat.options.adapter
        )

    async def _rendered(self, prepared: PreparedPrompt) -> tuple[Worker, RenderedChat]:
        """Returns a prepared conversation as the worker that serves now reads it, and that worker."""
        worker = self._supervisor.running_worker()
        request_processor = worker.core.request_processor
        if not (isinstance(prepared, RenderedChat) and prepared.is_by(request_processor)):
            messages, params, caller = prepared.messages, prepared.requested_params, prepared.caller
            prepared = await _render(request_processor, messages, params, caller, options=prepared.options)
        return worker, prepared

    def _submission(
        self,
        request_processor: RequestProcessor,
        prompt: TokenizedPrompt,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        adapter: str | None = None,
    ) -> Submission:
        return request_processor.process(
            f"req-{next(self._ids)}",
            prompt.token_ids,
            prompt.params,
            deadline,
            priority,
            prompt.partial_reply,
            num_shared=prompt.num_shared,
            caller=caller,
            syntax=prompt.syntax,
            adapter=adapter,
        )


async def _render(
    request_processor: RequestProcessor,
    messages: Sequence[ChatMessage],
    params: SamplingParams | None,
    caller: Caller | None,
    previous: PreparedPrompt | None = None,
    options: ChatOptions | None = None,
) -> RenderedChat:
    if request_processor.is_fast_to_render(messages, params, options):
        return request_processor.render_chat(messages, params, caller, previous, options)
    return await asyncio.to_thread(request_processor.render_chat, messages, params, caller, previous, options)


Submit = Callable[[], Awaitable[tuple["Worker", "Submission"]]]


async def _pull_deltas(submit: Submit) -> AsyncGenerator[Delta]:
    async with aclosing(_stream(*await submit())) as deltas:
        async for delta in deltas:
            yield delta


async def _push_deltas(submit: Submit, callback: Callable[[Delta], None]) -> None:
    worker, submission = await submit()
    listener = Listener(submission.stream_id, asyncio.get_running_loop(), callback)
    worker.submit(submission, listener)
    try:
        await listener.done
    finally:
        if not listener.has_ended:
            worker.abort(listener.request_id)


async def _stream(worker: Worker, submission: Submission) -> AsyncGenerator[Delta]:
    """Yields the deltas of a submission until its last one; aborts it when the reader leaves before."""
    reader = Reader(submission.stream_id, asyncio.get_running_loop())
    worker.submit(submission, reader)
    try:
        while True:
            delta = await reader.next()
            yield delta
            if delta.is_last:
                return
    finally:
        if not reader.has_ended:
            worker.abort(reader.request_id)


def _one_each(name: str, given: T | Sequence[T] | None, kind: type[T], count: int, of: str) -> list[T | None]:
    """Returns a list of ``count``: ``given`` for each, or what ``given`` lists."""
    if given is None or isinstance(given, kind):
        return [given] * count
    listed: list[T | None] = list(cast("Sequence[T]", given))
    if len(listed) != count:
        raise ValueError(f"{count} {of} need as many {name} (got {len(listed)})")
    return listed
