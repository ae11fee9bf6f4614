"""Turns the streamed chunks of an OpenAI-compatible server into deltas, and measures them as they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from engine.errors import EngineFailedError
from engine.outputs import Delta, FinishReason, Logprob, Timings, TokenLogprobs
from engine.remote.sse import BrokenStreamError
from engine.remote.tool_calls import ToolCallAssembler, ToolCallPart, as_list
from engine.runtime.metrics import EngineMetrics
from engine.runtime.utilisation import StepLoad

UNKNOWN_TOKEN = -1
"""Token id where a server reports only the token's text."""

_REASONS = {"length": FinishReason.LENGTH, "max_tokens": FinishReason.LENGTH}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _ChatToken(_Lenient):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    id: int = UNKNOWN_TOKEN  # llama.cpp
    top_logprobs: list[_ChatToken] | None = None

    def named(self, token_id: int | None = None) -> Logprob:
        data = bytes(self.bytes) if self.bytes is not None else self.token.encode(errors="replace")
        return Logprob(self.id if token_id is None else token_id, self.logprob, self.token, data)


class _Logprobs(_Lenient):
    """Log-probabilities of a chat (``content``) or of a completion (the other fields)."""

    content: list[_ChatToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None

    def scores(self, token_ids: list[int]) -> tuple[TokenLogprobs, ...]:
        if self.content is not None:
            ids: Iterable[int | None] = token_ids if len(token_ids) == len(self.content) else [None] * len(self.content)
            return tuple(
                TokenLogprobs(one.named(token_id), None, tuple(top.named() for top in one.top_logprobs or ()))
                for one, token_id in zip(self.content, ids, strict=True)
            )
        tokens, values = self.tokens or [], self.token_logprobs or []
        tops = self.top_logprobs or [None] * len(tokens)
        if not len(tokens) == len(values) == len(tops):
            raise BrokenStreamError("it sent log-probabilities whose lists differ in length")
        ids = token_ids if len(token_ids) == len(tokens) else [None] * len(tokens)
        return tuple(
            TokenLogprobs(
                _by_text(token, value, token_id),
                None,
                tuple(sorted((_by_text(*each) for each in (top or {}).items()), key=_likelihood, reverse=True)),
            )
            for token, value, top, token_id in zip(tokens, values, tops, ids, strict=True)
        )


class _Message(_Lenient):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same, under another name; some servers send both
    tool_calls: Annotated[list[ToolCallPart] | None, BeforeValidator(as_list)] = None

    @property
    def thought(self) -> str:
        return self.reasoning or self.reasoning_content or ""


class _Choice(_Lenient):
    index: int = 0
    delta: _Message | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class _Details(_Lenient):
    cached_tokens: int | None = None


class _Usage(_Lenient):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(_Lenient):
    choices: list[_Choice] = Field(default_factory=list)
    usage: _Usage | None = None


@dataclass(slots=True)
class _Progress:
    """Progress of one of the ``n`` replies."""

    tokens: int = 0
    first: float = 0.0  # time.monotonic of the first token, and of the last
    last: float = 0.0
    reason: FinishReason | None = None
    stop_reason: str | int | None = None
    closed: bool = False
    calls: ToolCallAssembler = field(default_factory=ToolCallAssembler)


@dataclass(slots=True)
class ReplyAssembler:
    """Assembles the ``n`` replies to one request from the chunks of its stream.

    Args:
        prompt_tokens: counted or estimated in advance; replaced by the server's own number.
        arrival: when the request arrived, on :func:`time.monotonic`.
    """

    request_id: str
    n: int
    prompt_tokens: int
    arrival: float
    metrics: EngineMetrics
    cached_tokens: int | None = None  #: None until the server reports it
    has_started: bool = False  #: a first token has arrived
    has_usage: bool = False  #: the server has reported the prompt's tokens
    _completion_tokens: int | None = None
    _replies: dict[int, _Progress] = field(default_factory=dict)

    def start_attempt(self) -> None:
        """Starts over for a new attempt, and drops the state of the one before."""
        assert not self.has_started
        self._replies = {index: _Progress() for index in range(self.n)}
        self._completion_tokens = None

    @property
    def has_ended(self) -> bool:
        """Whether every reply has a finish reason."""
        return all(reply.reason is not None for reply in self._replies.values())

    def feed(self, data: str) -> list[Delta]:
        """Returns the deltas of one event.

        Raises:
            BrokenStreamError: the event is no valid chunk.
        """
        try:
            chunk = _Chunk.model_validate_json(data)
        except ValidationError as error:
            raise BrokenStreamError("it sent an event that is not a valid chunk") from error
        if chunk.usage is not None:
            self._record_usage(chunk.usage)
        return [delta for choice in chunk.choices for delta in self._feed_choice(choice)]

    def _record_usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.has_usage = True
        if usage.completion_tokens is not None:
            self._completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _feed_choice(self, choice: _Choice) -> Iterable[Delta]:
        reply = self._replies.get(choice.index)
        if reply is None or reply.closed:
            raise BrokenStreamError(f"it sent a choice with the unexpected index {choice.index}")
        text = choice.text if choice.delta is None else choice.delta.content
        thought = choice.delta.thought if choice.delta is not None else ""
        parts = (choice.delta.tool_calls if choice.delta is not None else None) or []
        calls = reply.calls.feed(parts)
        token_ids = choice.token_ids or []
        scores = choice.logprobs.scores(token_ids) if choice.logprobs is not None else ()
        if choice.finish_reason is not None:
            reply.reason, reply.stop_reason = _reason(choice)
        # Most servers that do not report token ids send one token per chunk.
        count = len(token_ids) or len(scores) or int(bool(text or thought or parts))
        if count:
            self._measure(reply, count)
        if count:
            yield Delta(
                self.request_id,
                text=text or "",
                token_ids=tuple(token_ids),
                token_count=count,
                logprobs=scores,
                prompt_tokens=self.prompt_tokens,
                index=choice.index,
                num_unfinished=self._unfinished,
                reasoning=thought,
                tool_calls=calls,
            )

    def finish(self) -> list[Delta]:
        """Returns the last delta of each reply, once the stream is over and :attr:`has_ended` is true."""
        return [self._close(index, reply) for index, reply in self._replies.items()]

    def finish_early(self, reason: FinishReason) -> list[Delta]:
        """Returns the last delta of each reply; replies that have not ended finish with ``reason``."""
        for reply in self._replies.values():
            reply.reason = reply.reason or reason
        return self.finish()

    @property
    def tokens(self) -> int:
        """Generated tokens of all replies together."""
        seen = sum(reply.tokens for reply in self._replies.values())
        return seen if self._completion_tokens is None else self._completion_tokens

    @property
    def _unfinished(self) -> int:
        return sum(not reply.closed for reply in self._replies.values())

    def _measure(self, reply: _Progress, count: int) -> None:
        now = monotonic()
        if not self.has_started:
            self.has_started = True
            self.metrics.observe_first_token(now - self.arrival)
        if reply.tokens:
            self.metrics.observe_token_gaps([(now - reply.last) / count] * count)
        else:
            reply.first = now
        reply.last = now
        reply.tokens += count
        self.metrics.observe_step(StepLoad(seconds=0, sequences=0, tokens=0, prompt_tokens=0, generated_tokens=count))

    def _close(self, index: int, reply: _Progress) -> Delta:
        assert reply.reason is not None
        reply.closed = True
        now = monotonic()
        first, last = (reply.first, reply.last) if reply.tokens else (now, now)
        own = self._completion_tokens if self.n == 1 else None
        timings = Timings(
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_tokens,
            completion_tokens=reply.tokens if own is None else own,
            queue_seconds=0.0,
            time_to_first_token_seconds=first - self.arrival,
            inter_token_latency_seconds=(last - first) / (reply.tokens - 1) if reply.tokens > 1 else 0.0,
            total_seconds=last - self.arrival,
        )
        self.metrics.observe_finished(reply.reason, timings)
        return Delta(
            self.request_id,
            finish_reason=reply.reason,
            stop_reason=reply.stop_reason,
            timings=timings,
            index=index,
            num_unfinished=self._unfinished,
        )


def _reason(choice: _Choice) -> tuple[FinishReason, str | int | None]:
    reason = choice.finish_reason
    if reason in ("abort", "error"):
        raise EngineFailedError("The model server aborted this reply. Please send your message again.")
    if reason == "length" and choice.stop_reason == FinishReason.DEADLINE:  # as a Deskmate server reports it
        return FinishReason.DEADLINE, None
    if reason in _REASONS:
        return _REASONS[reason], choice.stop_reason
    known = reason in ("stop", "eos_token", "stop_sequence", "tool_calls", "function_call")
    return FinishReason.STOP, choice.stop_reason if known else reason


def _by_text(token: str, logprob: float | None, token_id: int | None = None) -> Logprob:
    data = token.encode(errors="replace")
    return Logprob(UNKNOWN_TOKEN if token_id is None else token_id, logprob, token, data)


def _likelihood(token: Logprob) -> float:
    return token.logprob if token.logprob is not None else 0.0
