"""Scripted engine for tests of the app: its replies, waits and failures follow a script."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry

from engine import (
    Alternative,
    Caller,
    ChatMessage,
    ChatOptions,
    ContextLengthError,
    Delta,
    Deltas,
    Encoder,
    EngineError,
    EngineSettings,
    EngineState,
    EngineStats,
    EngineStatus,
    EngineStoppedError,
    FinishReason,
    Health,
    InspectedRow,
    Inspection,
    InvalidRequestError,
    Logprob,
    ModelInfo,
    PrefillProgress,
    PreparedPrompt,
    PromptPiece,
    SamplingParams,
    Timings,
    TokenLogprobs,
    ToolCallDelta,
    Truncation,
)
from engine.text.truncation import ContextBudget, prepare_truncated
from testing.fake_encoder import FakeEncoder

CACHED_PROMPT_TOKENS = 3
QUEUE_SECONDS = 0.001


@dataclass(frozen=True)
class Thought:
    """A piece of thinking."""

    text: str


Piece = str | Thought | ToolCallDelta


def call_pieces(name: str, *arguments: str, index: int = 0, id: str = "") -> tuple[ToolCallDelta, ...]:
    """Returns the pieces of a tool call, as an engine streams it."""
    opening = ToolCallDelta(index, id=id or f"call_{name}_{index}", name=name)
    return opening, *(ToolCallDelta(index, part) for part in arguments)


@dataclass
class Script:
    """One reply: text, thinking and parts of tool calls.

    ``gates`` maps the index of a piece to the event that must be set before the piece is sent; the index
    ``len(pieces)`` holds back the end.
    """

    pieces: Sequence[Piece] = ("Hello", ", ", "world", ".")
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)
    fail_at: int | None = None  #: index of the piece before which ``error`` is raised
    error: Exception = field(default_factory=lambda: EngineError("The engine ran out of memory. Try a shorter chat."))
    finish_reason: FinishReason = FinishReason.STOP
    progress: Sequence[PrefillProgress] = ()
    delay: float = 0.0  #: seconds before each piece


@cache
def _read_settings(source: str, models_dir: Path | None, _variables: frozenset[tuple[str, str]]) -> EngineSettings:
    """Those of the environment, which are read for each request and take a test's time to read anew."""
    return EngineSettings(model=source, models_dir=models_dir, _env_file=None)


def _logprob(token_id: int) -> Logprob:
    text = chr(token_id)
    return Logprob(token_id, -0.7, text, text.encode())


class FakeEngine:
    """Implements :class:`engine.ChatEngine`.

    ``say()`` scripts the next reply; without a script every reply is ``default``. Prompts are counted
    in words, so that a context limit is easy to reach.
    """

    def __init__(self, default: Script | None = None, *, max_model_len: int = 4096) -> None:
        self.default = default or Script()
        self.scripts: deque[Script] = deque()
        self.refuse: Exception | None = None  #: raised by ``prepare`` and at the start of a reply
        self.ready = True
        self.deadlines: list[float | None] = []  #: of the replies that started
        self.calls: list[tuple[list[ChatMessage], SamplingParams | None]] = []
        self.options: list[ChatOptions] = []  #: of the replies that started
        self.tokenize_options: list[ChatOptions | None] = []  #: of the conversations that were tokenized
        self.adapters: list[str | None] = []  #: that the replies were asked of
        self.inspected: list[tuple[int | None, int]] = []  #: position and priority of the calls of ``inspect``
        self.previous: list[PreparedPrompt | None] = []  #: ``previous`` of the calls of ``prepare``
        self.fake_encoder: FakeEncoder | None = None
        self.running = 0
        self.aborted = 0  #: replies abandoned before their end
        self.started = asyncio.Event()  #: set when a reply starts
        self.state = EngineState.READY
        self.source = "models/fake"
        self.models_dir: Path | None = None  #: None: models in the data folder
        self.lifecycle_calls: list[tuple[object, ...]] = []  #: calls of ``sleep``, ``wake`` and ``swap``
        self.lifecycle_error: EngineError | None = None  #: raised by ``sleep``, ``wake`` and ``swap``
        self._ids = count(1)
        self._registry = CollectorRegistry()
        self._info = ModelInfo(
            name="fake",
            max_model_len=max_model_len,
            vocab_size=1000,
            dtype="float32",
            device="cpu",
            attention="none",
            num_parameters=0,
            has_chat_template=True,
            can_inspect=True,
        )

    def say(self, *pieces: Piece, **options: object) -> Script:
        """Scripts the next reply; ``options`` are fields of :class:`Script`."""
        script = Script(pieces or self.default.pieces, **options)  # type: ignore[arg-type]
        self.scripts.append(script)
        return script

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def default_sampling_params(self) -> SamplingParams:
        return SamplingParams.neutral(temperature=0.7, top_p=0.95, top_k=50, max_tokens=512)

    @property
    def settings(self) -> EngineSettings:
        variables = [one for one in os.environ.items() if one[0].upper().startswith("ENGINE_")]
        return _read_settings(self.source, self.models_dir, frozenset(variables))

    @property
    def registry(self) -> CollectorRegistry:
        return self._registry

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
        self.previous.append(previous)
        resolved = (params or SamplingParams()).with_defaults(self.default_sampling_params)

        async def counted(kept: Sequence[ChatMessage]) -> PreparedPrompt:
            tokens = self._count(kept)
            self._admit(tokens)
            return PreparedPrompt(
                messages=tuple(kept),
                caller=caller,
                requested_params=params,
                params=resolved,
                num_prompt_tokens=tokens,
                max_model_len=self._info.max_model_len,
                options=options or ChatOptions(),
            )

        budget = ContextBudget(self._info.max_model_len, resolved.max_tokens)
        return await prepare_truncated(counted, messages, truncation, budget)

    def stream(self, prepared: PreparedPrompt, *, deadline: float | None = None, priority: int = 0) -> Deltas:
        return Deltas(self._stream(prepared, deadline))

    async def _stream(self, prepared: PreparedPrompt, deadline: float | None) -> AsyncGenerator[Delta]:
        self._admit(prepared.num_prompt_tokens)
        prepared.params.check_logprobs(20)
        self.calls.append((list(prepared.messages), prepared.requested_params))
        self.options.append(prepared.options)
        self.adapters.append(prepared.options.adapter)
        self.deadlines.append(deadline)
        async for delta in self._reply(prepared.num_prompt_tokens):
            yield delta

    async def read_prompt(
        self, prepared: PreparedPrompt, *, offset: int = 0, limit: int
    ) -> tuple[int, tuple[PromptPiece, ...]]:
        """A special token with the role before each message; a message's tokens are its words."""
        tokens = [
            (text, special)
            for message in prepared.messages
            for text, special in ((f"<{message['role']}>", True), *((w, False) for w in message["content"].split()))
        ]
        shown = tokens[offset : offset + limit]
        return len(tokens), tuple(PromptPiece(text, 1, special) for text, special in shown)

    def inspect(
        self, prepared: PreparedPrompt, *, position: int | None = None, deadline: float | None = None, priority: int = 0
    ) -> Deltas:
        """Inspects a reply with one token per character, each as likely as its successor, which top-k would remove."""
        self.inspected.append((position, priority))
        return Deltas(self._inspect(prepared, position))

    async def _inspect(self, prepared: PreparedPrompt, position: int | None) -> AsyncGenerator[Delta]:
        self._admit(prepared.num_prompt_tokens)
        *_, reply = prepared.messages
        assert reply.get("unfinished")
        ids = list(reply.get("token_ids", ())) or list(map(ord, reply["content"]))
        if position is not None and position >= len(ids):
            raise InvalidRequestError(f"The reply has {len(ids)} tokens, so there is none at {position}.")
        tokens = ids if position is None else [ids[position]]
        row = InspectedRow(
            logits=b"\0\0" * self._info.vocab_size,
            highest=1.0,
            counts=((tokens[0], 1),),
            bias=(),
            banned=b"",
            alternatives=(
                Alternative(_logprob(tokens[0]), -0.1, None),
                Alternative(_logprob(tokens[0] + 1), None, "top_k"),
            ),
        )
        scores = tuple(
            TokenLogprobs(_logprob(id), 1, (), Inspection(0.7, -0.1, 1, None if position is None else row))
            for id in tokens
        )
        yield Delta(
            f"fake-{next(self._ids)}",
            token_ids=(0,),
            prompt_logprobs=scores,
            prompt_tokens=prepared.num_prompt_tokens,
            finish_reason=FinishReason.LENGTH,
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
    ) -> AsyncIterator[Delta]:
        prepared = await self.prepare(messages, params, caller=caller, options=options)
        async for delta in self.stream(prepared, deadline=deadline, priority=priority):
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
    ) -> AsyncIterator[Delta]:
        self.adapters.append(adapter)
        tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        self._admit(tokens)
        async for delta in self._reply(tokens):
            yield delta

    @property
    def encoder(self) -> Encoder | None:
        """None, unless a test sets ``fake_encoder``."""
        return self.fake_encoder

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        add_special_tokens: bool = True,
        options: ChatOptions | None = None,
    ) -> tuple[int, ...]:
        """Returns one token per character of a text, with 0 as the special token before it."""
        if isinstance(prompt, str):
            return (*([0] if add_special_tokens else []), *map(ord, prompt))
        self.tokenize_options.append(options)
        return tuple(range(self._count(prompt)))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        if unknown := [id for id in token_ids if not 0 <= id <= sys.maxunicode]:
            raise InvalidRequestError(f"There is no token {unknown[0]}.")
        return "".join(map(chr, token_ids))

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return list(map(chr, token_ids))

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        if not self.ready:
            raise EngineStoppedError("The engine has stopped.")
        return tuple(token_ids)

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(self.state, model=self.source, reason=self.health().error)

    def name(self, name: str) -> None:
        """Renames the model."""
        self._info = replace(self._info, name=name)

    def serve_as(self, *names: str) -> None:
        """Gives the model aliases."""
        self._info = replace(self._info, served_names=names)

    def list_adapters(self, *names: str) -> None:
        """Gives the model LoRA adapters."""
        self._info = replace(self._info, adapters=names)

    def resize(self, max_model_len: int) -> None:
        """Changes the model's context length."""
        self._info = replace(self._info, max_model_len=max_model_len)

    async def sleep(self, timeout: float = 30.0) -> None:
        await self._change_state("sleep", timeout)
        self.state = EngineState.ASLEEP

    async def wake(self) -> None:
        await self._change_state("wake")
        self.state = EngineState.READY

    async def swap(
        self, model: str, *, revision: str | None = None, max_model_len: int | None = None, timeout: float = 30.0
    ) -> None:
        await self._change_state("swap", model, revision, max_model_len, timeout)
        self.source = model
        self.name(model.rsplit("/", 1)[-1])
        self.state = EngineState.READY

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._change_state("load_adapter", name, str(folder))
        self.list_adapters(*self._info.adapters, name)

    async def unload_adapter(self, name: str) -> None:
        await self._change_state("unload_adapter", name)
        self.list_adapters(*(one for one in self._info.adapters if one != name))

    async def _change_state(self, *call: object) -> None:
        self.lifecycle_calls.append(call)
        if self.lifecycle_error is not None:
            raise self.lifecycle_error

    def stats(self) -> EngineStats:
        return replace(EngineStats.nothing(), num_requests_running=self.running)

    def health(self) -> Health:
        ready = self.ready and self.state is EngineState.READY
        return Health(ready=ready, error=None if ready else "The engine has stopped.")

    async def drain(self, timeout: float) -> bool:
        self.ready = False
        return self.running == 0

    async def aclose(self) -> None:
        self.ready = False

    def _count(self, messages: Sequence[ChatMessage]) -> int:
        return sum(len(message["content"].split()) + 1 for message in messages)

    def _admit(self, tokens: int) -> None:
        if not self.ready:
            raise EngineStoppedError("The engine has stopped.")
        if self.refuse is not None:
            raise self.refuse
        limit = self._info.max_model_len
        if tokens >= limit:
            raise ContextLengthError(
                f"The prompt is {tokens} tokens long; the model reads at most {limit}.",
                prompt_tokens=tokens,
                max_model_len=limit,
            )

    async def _reply(self, prompt_tokens: int) -> AsyncIterator[Delta]:
        script = self.scripts.popleft() if self.scripts else self.default
        request_id = f"fake-{next(self._ids)}"
        self.running += 1
        self.started.set()
        ended = False
        try:
            for progress in script.progress:
                yield Delta(request_id, progress=progress)
            for index, piece in enumerate(script.pieces):
                await self._hold(script, index)
                cached = CACHED_PROMPT_TOKENS if index == 0 else None
                total = prompt_tokens if index == 0 else None
                yield Delta(
                    request_id,
                    text=piece if isinstance(piece, str) else "",
                    reasoning=piece.text if isinstance(piece, Thought) else "",
                    tool_calls=(piece,) if isinstance(piece, ToolCallDelta) else (),
                    token_ids=(index,),
                    prompt_tokens=total,
                    cached_prompt_tokens=cached,
                    queue_seconds=QUEUE_SECONDS if index == 0 else None,
                )
            await self._hold(script, len(script.pieces))
            ended = True
            yield Delta(
                request_id,
                finish_reason=script.finish_reason,
                timings=Timings(
                    prompt_tokens=prompt_tokens,
                    cached_prompt_tokens=CACHED_PROMPT_TOKENS,
                    completion_tokens=len(script.pieces),
                    queue_seconds=QUEUE_SECONDS,
                    time_to_first_token_seconds=0.05,
                    inter_token_latency_seconds=0.01,
                    total_seconds=0.1,
                ),
            )
        finally:
            self.running -= 1
            self.aborted += not ended

    async def _hold(self, script: Script, index: int) -> None:
        gate = script.gates.get(index)
        if gate is not None:
            await gate.wait()
        # One event loop iteration per piece, as a real engine's deltas arrive.
        await asyncio.sleep(script.delay)
        if script.fail_at == index:
            raise script.error
