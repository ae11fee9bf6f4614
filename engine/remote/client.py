"""The remote engine: replies from OpenAI-compatible servers, through the interface of the in-process engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import TypeVar

import httpx
from prometheus_client import CollectorRegistry

from engine.chat_options import ChatOptions
from engine.embeddings import Encoder
from engine.errors import (
    DeadlineError,
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedParameterError,
)
from engine.interface import Caller, ChatMessage, PreparedPrompt, Truncation
from engine.outputs import (
    Delta,
    Deltas,
    EngineState,
    EngineStats,
    EngineStatus,
    FinishReason,
    Health,
    ModelInfo,
)
from engine.parameter_values import shown
from engine.remote.chat_request import ChatRequest
from engine.remote.chunks import ReplyAssembler
from engine.remote.dispatcher import RequestDispatcher
from engine.remote.encoder import RemoteEncoder
from engine.remote.error_responses import context_error
from engine.remote.metrics import RemoteMetrics
from engine.remote.token_counting import detokenized, tokenized
from engine.remote.upstreams import ServedModel, Upstream, UpstreamPool, base_url
from engine.sampling_params import SamplingParams, check_deadline
from engine.settings import EngineSettings
from engine.text.template_inputs import check_messages
from engine.text.truncation import ContextBudget, prepare_truncated

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 5.0
"""Timeout for connecting to a server, which then counts as unreachable."""
UNKNOWN_LENGTH = 4096
"""Tokens. The assumed context window where neither the server nor ``ENGINE_MAX_MODEL_LEN`` states one."""
REMOTE = "remote"

T = TypeVar("T")


class RemoteEngine:
    """Implements :class:`engine.ChatEngine` over OpenAI-compatible servers.

    Use it as ``async with RemoteEngine(settings) as engine``. Servers that do not answer at the start are probed in the
    background; until one answers, the engine is not ready and reports why.

    Args:
        settings: ``remote_url`` and the other ``remote_*`` settings; default: from ``ENGINE_*`` in the environment.

    Raises:
        ModelLoadError: an address is invalid, or a setting cannot be enforced by a remote server.
    """

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        if self.settings.forbidden_words is not None:
            raise ModelLoadError(
                "ENGINE_FORBIDDEN_WORDS does not work with ENGINE_REMOTE_URL: only the server that runs the model can "
                "filter words. Unset it here. If that server is a Deskmate, set it there."
            )
        self._upstreams = tuple(Upstream(base_url(url)) for url in self.settings.remote_url)
        self._metrics = RemoteMetrics(self.stats, lambda: self._upstreams)
        encoder = self.settings.encoder
        self._encoder = RemoteEncoder(encoder, lambda: self._open()[0]) if encoder is not None else None
        self._pool: UpstreamPool | None = None
        self._dispatcher: RequestDispatcher | None = None
        self._state = EngineState.STOPPED
        self._info = self._info_of(None)
        self._ids = itertools.count(1)
        self._running = 0
        self._idle = asyncio.Event()
        self._totals = EngineStats.nothing()

    # -- lifecycle --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Probes every server once, and accepts requests as soon as one is healthy.

        Raises:
            ModelLoadError: no server can ever be used with this configuration; says why.
        """
        key = self.settings.remote_api_key
        client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {},
            timeout=httpx.Timeout(self.settings.remote_timeout, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
        )
        kind = None if self.settings.remote_kind == "auto" else self.settings.remote_kind
        self._pool = UpstreamPool(self._upstreams, client, self.settings.remote_model, kind, self._changed)
        retries = self.settings.remote_retries
        self._dispatcher = RequestDispatcher(self._pool, retries, lambda: self._info.max_model_len, self._metrics)
        self._state = EngineState.STARTING
        try:
            await self._pool.start()
        except BaseException:
            await self.stop()
            raise
        if self._state is EngineState.STARTING:
            _log.warning("%s Waiting for one.", self._pool.problem())

    async def stop(self) -> None:
        """Closes every connection. Requests in flight end with :class:`ReplyInterruptedError`."""
        pool, self._pool = self._pool, None
        self._state = EngineState.STOPPED
        if pool is not None:
            await pool.close()

    async def __aenter__(self) -> RemoteEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits for those in flight; True when all ended within ``timeout`` seconds."""
        if self._state is not EngineState.STOPPED:
            self._state = EngineState.DRAINING
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._running:
                    self._idle.clear()
                    await self._idle.wait()
        return self._running == 0

    def _changed(self) -> None:
        """Updates state and model info after a server became healthy or unhealthy."""
        served = [one.served for one in self._upstreams if one.is_healthy and one.served is not None]
        if served:
            self._learn(served)
        if self._state in (EngineState.STARTING, EngineState.READY, EngineState.FAILED):
            if served:
                self._state = EngineState.READY
            elif self._state is EngineState.READY:
                self._state = EngineState.FAILED

    def _learn(self, served: Sequence[ServedModel]) -> None:
        info = self._info_of(served)
        if info == self._info:
            return
        self._info = info
        if self.settings.max_model_len is None and all(one.max_model_len is None for one in served):
            _log.warning(
                "the model server does not report its context window; %d tokens are assumed. "
                "Set ENGINE_MAX_MODEL_LEN to the real one.",
                UNKNOWN_LENGTH,
            )

    def _info_of(self, served: Sequence[ServedModel] | None) -> ModelInfo:
        reported = [one.max_model_len for one in served or () if one.max_model_len is not None]
        own = self.settings.max_model_len
        length = min([*reported, *([own] if own is not None else [])], default=UNKNOWN_LENGTH)
        return ModelInfo(
            name=served[0].model if served else self.settings.remote_model or "unknown",
            max_model_len=length,
            vocab_size=0,
            dtype="unknown",
            device=REMOTE,
            attention=served[0].dialect.title if served else "unknown",
            num_parameters=0,
            has_chat_template=True,
            can_continue=all(one.dialect.continuation is not None for one in served or ()),
            can_call_tools=True,  # no server tells; one that cannot refuses with a sentence
            served_names=self.settings.served_model_name,
            adapters=_common_adapters(served or ()),
        )

    # -- model and state -----------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """The servers' model; placeholders until one server has answered. ``attention`` holds the kind of server."""
        return self._info

    @property
    def encoder(self) -> Encoder | None:
        """The embedding model of the servers that ``settings.encoder`` names; None without one."""
        return self._encoder

    @property
    def default_sampling_params(self) -> SamplingParams:
        """Neutral defaults, because servers do not report theirs. Unset parameters of a request are not sent."""
        return SamplingParams.neutral()

    @property
    def registry(self) -> CollectorRegistry:
        return self._metrics.registry

    @property
    def status(self) -> EngineStatus:
        servers = ", ".join(upstream.label for upstream in self._upstreams)
        return EngineStatus(self._state, model=servers, reason=self._reason())

    def stats(self) -> EngineStats:
        """Returns counters and gauges of the requests sent from here, not of the servers' other work."""
        utilisation = self._metrics.meter.read()
        return replace(self._totals, num_requests_running=self._running, state=self._state, utilisation=utilisation)

    def health(self) -> Health:
        reason = self._reason()
        return Health(ready=reason is None, error=reason)

    def _reason(self) -> str | None:
        match self._state:
            case EngineState.READY:
                return None
            case EngineState.STOPPED:
                return "The engine is not started."
            case EngineState.DRAINING:
                return "The server is shutting down."
            case _:
                return self._pool.problem() if self._pool is not None else "The engine is not started."

    # -- requests -------------------------------------------------------------------------------------------

    async def prepare(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        caller: Caller | None = None,
        truncation: Truncation | None = None,
        previous: PreparedPrompt | None = None,  # noqa: ARG002 - the server renders the conversation
        options: ChatOptions | None = None,
    ) -> PreparedPrompt:
        """Validates and counts a conversation that :meth:`stream` would send now.

        Where the server cannot count tokens, the length is an estimate. An estimate never refuses a prompt: the server
        decides.

        Raises:
            ContextLengthError: by the server's count, the prompt does not fit its context window.
            InvalidRequestError: the server does not support a parameter, or cannot continue a partial reply.
            EngineStoppedError: no server is healthy.
        """
        limit = self._info.max_model_len
        resolved = (params or SamplingParams()).with_defaults(self.default_sampling_params)

        async def counted(kept: Sequence[ChatMessage]) -> PreparedPrompt:
            tokens = await self._count(kept, params, options or ChatOptions(), limit)
            return PreparedPrompt(
                messages=tuple(message.copy() for message in kept),
                caller=caller,
                requested_params=params,
                params=resolved,
                num_prompt_tokens=tokens,
                max_model_len=limit,
                options=options or ChatOptions(),
            )

        max_tokens = params.max_tokens if params is not None else None
        return await prepare_truncated(counted, messages, truncation, ContextBudget(limit, max_tokens))

    async def _count(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None, options: ChatOptions, limit: int
    ) -> int:
        """Returns the prompt's length in tokens, counted by the server that would get it now, or estimated."""
        check_messages(messages)
        chat_request = ChatRequest(messages=messages, params=self._checked(params), options=options)
        pool, dispatcher = self._open()
        while True:
            upstream = pool.choose(chat_request.affinity_key, set())
            assert upstream.served is not None
            chat_request.body(upstream.served.dialect, upstream.served.model)
            count = await dispatcher.count(upstream, messages, options)
            if upstream.is_healthy:  # else counting has just found it unreachable: choose again
                break
        if count.is_exact and count.tokens >= limit:
            raise context_error(count.tokens, limit)
        return count.tokens if count.is_exact else min(count.tokens, limit - 1)

    def stream(self, prepared: PreparedPrompt, *, deadline: float | None = None, priority: int = 0) -> Deltas:
        """Sends a prepared conversation and streams the reply. Otherwise as :meth:`chat`."""
        return Deltas(
            self.chat(
                prepared.messages,
                prepared.requested_params,
                deadline=deadline,
                priority=priority,
                caller=prepared.caller,
                options=prepared.options,
            )
        )

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        options: ChatOptions | None = None,
    ) -> AsyncGenerator[Delta]:
        """Streams a reply to a conversation. Leaving the loop closes the connection, which aborts the request there.

        The server renders and counts the conversation, so that nothing is prepared beforehand.

        Raises:
            ContextLengthError, InvalidRequestError, EngineOverloadedError, EngineStoppedError: before the first delta.
            ReplyInterruptedError: the connection broke in the middle of the reply. Before its first token, the request
                is sent again instead, to another server if there is one.
            EngineFailedError: the server aborted the reply.
            DeadlineError: the deadline passed before the first token.
        """
        check_messages(messages)
        self._check_adapter(options.adapter if options is not None else None)
        chat_request = ChatRequest(
            messages=messages,
            params=self._checked(params),
            priority=priority,
            caller=caller,
            options=options or ChatOptions(),
        )
        async with aclosing(self._stream(chat_request, deadline)) as deltas:
            async for delta in deltas:
                yield delta

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
        self._check_adapter(adapter)
        if not prompt:
            raise InvalidRequestError("The prompt is empty: send at least one token.")
        chat_request = ChatRequest(
            prompt=prompt,
            params=self._checked(params),
            priority=priority,
            caller=caller,
            options=ChatOptions(adapter=adapter),
        )
        async with aclosing(self._stream(chat_request, deadline)) as deltas:
            async for delta in deltas:
                yield delta

    def _check_adapter(self, name: str | None) -> None:
        if name is not None and name not in self._info.adapters:
            raise InvalidRequestError(f"No adapter is loaded under the name {shown(name)}.")

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        add_special_tokens: bool = True,
        options: ChatOptions | None = None,
    ) -> tuple[int, ...]:
        """Tokenizes on the server, where it can. See :meth:`engine.interface.ChatEngine.tokenize`."""
        if not isinstance(prompt, str):
            check_messages(prompt)
        return await self._ask_upstream(
            lambda client, upstream: tokenized(
                client, upstream, prompt, add_special_tokens=add_special_tokens, options=options
            )
        )

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Detokenizes on the server, where it can. See :meth:`engine.interface.ChatEngine.detokenize`."""
        return await self._ask_upstream(lambda client, upstream: detokenized(client, upstream, token_ids))

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:  # noqa: ARG002
        """Raises :class:`UnsupportedParameterError`: not supported over a remote server."""
        raise UnsupportedParameterError(
            "return_token_strs is not available from a remote model server. Leave return_token_strs out."
        )

    async def _ask_upstream(self, ask: Callable[[httpx.AsyncClient, Upstream], Awaitable[T | None]]) -> T:
        """Calls a server's tokenizer API.

        Raises:
            UnsupportedParameterError: the server has none, or did not answer.
        """
        pool, _dispatcher = self._open()
        upstream = pool.choose("", set())
        try:
            result = await ask(pool.client, upstream)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            pool.mark_unreachable(upstream, error)
            result = None
        if result is None:
            kind = upstream.served.dialect.title if upstream.served is not None else "unknown"
            raise UnsupportedParameterError(f"The model server ({kind}) cannot tokenize, or is unavailable right now.")
        return result

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002
        """Returns no ids: the conversation is sent as text, and the server's prefix cache matches that by itself."""
        self._open()
        return ()

    def _checked(self, params: SamplingParams | None) -> SamplingParams:
        params = params or SamplingParams()
        params.check_logprobs(self.settings.max_logprobs)
        return params

    def _open(self) -> tuple[UpstreamPool, RequestDispatcher]:
        if self._pool is None or self._dispatcher is None or self._state is EngineState.DRAINING:
            raise EngineStoppedError(self._reason() or "The engine is not started.")
        return self._pool, self._dispatcher

    async def _stream(self, chat_request: ChatRequest, deadline: float | None) -> AsyncGenerator[Delta]:
        """Streams a reply. ``deadline``, in seconds, covers all attempts together."""
        deadline = check_deadline(deadline)
        _pool, dispatcher = self._open()
        ends = None if deadline is None else asyncio.get_running_loop().time() + deadline
        prompt: Sequence[ChatMessage] | str | Sequence[int] = chat_request.messages or chat_request.prompt or ""
        assembler = ReplyAssembler(
            request_id=f"remote-{next(self._ids)}",
            n=chat_request.params.n,
            prompt_tokens=dispatcher.estimator.estimate(prompt, chat_request.options.tools),
            arrival=monotonic(),
            metrics=self._metrics,
        )
        self._running += 1
        finished = FinishReason.ABORT
        try:
            async with aclosing(dispatcher.dispatch(chat_request, assembler)) as deltas:
                while True:
                    try:
                        async with asyncio.timeout_at(ends):
                            delta = await anext(deltas, None)
                    except TimeoutError:
                        if not assembler.has_started:
                            raise DeadlineError(
                                f"The reply had not begun within its deadline of {deadline:g} seconds."
                            ) from None
                        for last in assembler.finish_early(FinishReason.DEADLINE):
                            yield last
                        finished = FinishReason.DEADLINE
                        return
                    if delta is None:
                        break
                    finished = delta.finish_reason or finished
                    yield delta
            if chat_request.messages is not None and assembler.has_usage:
                dispatcher.estimator.learn(chat_request.messages, assembler.prompt_tokens, chat_request.options.tools)
        except EngineError:
            finished = FinishReason.ERROR
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
            self._account(assembler, finished)

    def _account(self, assembler: ReplyAssembler, finished: FinishReason) -> None:
        ended = self._totals.requests_finished
        self._totals = replace(
            self._totals,
            prompt_tokens=self._totals.prompt_tokens + (assembler.prompt_tokens if assembler.has_started else 0),
            cached_prompt_tokens=self._totals.cached_prompt_tokens + (assembler.cached_tokens or 0),
            generation_tokens=self._totals.generation_tokens + assembler.tokens,
            requests_finished={**ended, finished.value: ended[finished.value] + 1},
        )


def _common_adapters(served: Sequence[ServedModel]) -> tuple[str, ...]:
    """Returns the adapters that every server has, so that a request can go to any of them."""
    if not served:
        return ()
    return tuple(name for name in served[0].adapters if all(name in one.adapters for one in served))
