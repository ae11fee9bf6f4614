"""The engine's output types: deltas of a growing reply, finished completions, model info, stats and status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any

from engine.chat_options import ToolCall

WINDOW_SECONDS = 60
"""Seconds over which utilisation is measured."""


class EngineState(StrEnum):
    """State of the engine."""

    STOPPED = "stopped"
    STARTING = "starting"  #: also when it wakes up
    READY = "ready"
    DRAINING = "draining"  #: finishes the requests in flight and refuses new ones
    ASLEEP = "asleep"  #: weights and cache are released; ``wake`` loads them again
    SWAPPING = "swapping"  #: another model is being loaded
    RESTARTING = "restarting"  #: a step failed; new requests wait
    FAILED = "failed"  #: restarting did not help; ``wake`` tries once more


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"  #: the model ended its turn, or a stop string / stop token was met
    LENGTH = "length"  #: ``max_tokens`` or the end of the context window was reached
    DEADLINE = "deadline"  #: the request's deadline passed; its text so far is kept
    ABORT = "abort"  #: the reader disconnected or the user stopped it
    ERROR = "error"  #: the request failed: its stream ends by raising, not with a delta


@dataclass(frozen=True, slots=True)
class Timings:
    """Token counts and times of one request. Times are seconds on the engine's monotonic clock."""

    prompt_tokens: int
    cached_prompt_tokens: (
        int | None
    )  #: prompt tokens whose KV came from the prefix cache; None where a server does not report it
    completion_tokens: int
    queue_seconds: float  #: from arrival until first scheduled
    time_to_first_token_seconds: float  #: from arrival until the first token was sampled
    inter_token_latency_seconds: float  #: mean gap between later tokens; 0 with fewer than two
    total_seconds: float  #: from arrival until the last token
    num_preemptions: int = 0
    draft_tokens: int = 0  #: draft tokens verified for this reply, see :mod:`engine.execution.speculation`
    accepted_draft_tokens: int = 0  #: draft tokens accepted

    @property
    def tokens_per_second(self) -> float:
        """Decode speed of this reply: 1 / inter-token latency (0 when unknown)."""
        return 1.0 / self.inter_token_latency_seconds if self.inter_token_latency_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens processed so far. ``processed`` includes tokens found in the prefix cache."""

    processed: int
    total: int


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token and the natural logarithm of the probability the model gives it."""

    token_id: int  #: -1 where a remote server does not report it
    logprob: float | None  #: None for the first token of a prompt, which nothing predicts
    text: str  #: the text the token adds, U+FFFD for bytes that are no character; a special token's name
    data: bytes  #: the bytes it adds, which may be part of a character; empty for a special token


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have stood at a position, before and after the sampling parameters."""

    token: Logprob  #: under the model's own distribution
    kept_logprob: float | None  #: in the distribution that is sampled from; None: removed
    #: the parameter that removed it: temperature (of 0), top_n_sigma, top_k, top_p, min_p, typical_p, penalties,
    #: logit_bias, min_tokens, structured or forbidden_words (with bad_words); None: kept
    removed_by: str | None


@dataclass(frozen=True, slots=True)
class InspectedRow:
    """The whole row of scores at one position, and all that the sampler applies to it before the temperature."""

    logits: bytes  #: the model's logits less ``highest``, float16, little-endian: ``[vocab_size]``
    highest: float  #: the highest logit; the repetition penalty depends on the logits' signs
    counts: tuple[tuple[int, int], ...]  #: distinct tokens so far with their number in the reply; empty: no penalties
    bias: tuple[tuple[int, float], ...]  #: ``logit_bias``
    banned: bytes  #: a bit for each token id, lowest first, set if it may not follow; empty: all may
    alternatives: tuple[Alternative, ...]  #: the likeliest tokens under the model's own distribution, likeliest first


@dataclass(frozen=True, slots=True)
class Inspection:
    """How a token of a reply was chosen from, under given sampling parameters."""

    entropy: float  #: of the model's own distribution, in nats
    kept_logprob: float | None  #: of the token, in the distribution that is sampled from; None: it would be removed
    num_kept: int  #: tokens that are left to sample from
    row: InspectedRow | None = None  #: of the position that was asked for


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one token of a prompt or a reply, under the model's own distribution.

    They are ``log_softmax`` of the logits in fp32, before temperature, penalties, bans and filters.
    """

    token: Logprob
    rank: int | None  #: 1 is the likeliest; equally likely tokens share the better rank
    top: tuple[Logprob, ...]  #: the likeliest tokens, as many as requested, likeliest first
    inspection: Inspection | None = None  #: of the tokens that :meth:`Engine.inspect` reports


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a tool call.

    Joining ``arguments`` over all deltas of an ``index`` gives JSON text, an object. Where the model wrote none, or the
    reply ended within it, it gives what the model wrote.
    """

    index: int  #: which of the reply's calls
    arguments: str = ""
    id: str | None = None  #: on the first delta of a call only
    name: str | None = None  #: on the first delta of a call only


def join_tool_calls(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """Returns the calls that the deltas of a reply make, in the order of their index."""
    parts: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        parts.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(opening.id or "", opening.name or "", "".join(part.arguments for part in call))
        for call in (parts[index] for index in sorted(parts))
        for opening in call[:1]
    )


@dataclass(slots=True)  # created for each token; frozen=True would take three times as long
class Delta:
    """One increment of a reply; not changed after it is delivered.

    Joining ``text`` over all deltas gives the reply. A delta may carry no text (prefill progress, an incomplete
    character, or text held back because it may become a stop string).
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None  #: set on the last delta only
    stop_reason: str | int | None = None  #: the caller's stop string or stop token id that ended it
    logprobs: tuple[TokenLogprobs, ...] = ()  #: one for each of ``token_ids`` when requested, else empty
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  #: one for each prompt token, on the first token's delta
    prompt_tokens: int | None = None  #: set on the first token's delta; from a remote server it may be an estimate
    cached_prompt_tokens: int | None = None  #: set on the first token's delta
    queue_seconds: float | None = None  #: from arrival until first scheduled; set on the first token's delta
    progress: PrefillProgress | None = None  #: set while the prompt is being prefilled
    timings: Timings | None = None  #: set on the last delta only
    index: int = 0  #: which of the ``n`` replies to the prompt
    num_unfinished: int = 1  #: how many of the ``n`` replies are still being generated
    token_count: int | None = None  #: tokens in this delta, where a remote server does not report their ids
    reasoning: str = ""  #: what the model thinks before it answers; not part of ``text``
    tool_calls: tuple[ToolCallDelta, ...] = ()
    beam_score: float | None = None  #: of a reply found by beam search, on its last delta
    sampled_at: float | None = None  #: ``time.monotonic`` when its first token was sampled; None from a remote server

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens in this delta."""
        return len(self.token_ids) if self.token_count is None else self.token_count

    @property
    def is_last(self) -> bool:
        """Whether all ``n`` replies of the request have ended."""
        return self.num_unfinished == 0


class Deltas(AsyncGenerator[Delta, None]):
    """Deltas of one reply. Iterate over them, or call :meth:`forward_to`: one of the two, and once.

    Args:
        generator: yields the deltas.
        push: calls its argument with each delta, more cheaply than iterating does; None if the engine has no such way.
    """

    def __init__(
        self,
        generator: AsyncGenerator[Delta],
        push: Callable[[Callable[[Delta], None]], Awaitable[None]] | None = None,
    ) -> None:
        self._generator = generator
        self._push = push

    async def forward_to(self, callback: Callable[[Delta], None]) -> None:
        """Calls ``callback`` in the event loop with each delta as soon as it arrives; returns after the last one.

        The in-process engine wakes no task for a delta, which with many replies in flight is most of a delta's cost.
        Raises what iterating raises and what ``callback`` raises. Cancelling it aborts the request.
        """
        if self._push is not None:
            await self._push(callback)
            return
        async with aclosing(self._generator):
            async for delta in self._generator:
                callback(delta)

    def __anext__(self) -> Coroutine[Any, Any, Delta]:  # not async: returns the generator's own coroutine
        return self._generator.__anext__()

    async def asend(self, value: None) -> Delta:
        return await self._generator.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Delta:
        return await self._generator.athrow(typ, val, tb)  # type: ignore[arg-type]

    async def aclose(self) -> None:
        await self._generator.aclose()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply, as returned by ``Engine.generate`` and :class:`engine.LLM`."""

    request_id: str
    index: int  #: which of the ``n`` replies to the prompt
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    timings: Timings
    logprobs: tuple[TokenLogprobs, ...] = ()  #: one for each of ``token_ids`` when requested, else empty
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  #: one for each of ``prompt_token_ids`` when requested
    reasoning: str = ""  #: what the model thought before it answered; not part of ``text``
    tool_calls: tuple[ToolCall, ...] = ()
    beam_score: float | None = None  #: of a reply found by beam search, see :class:`engine.BeamSearchParams`


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. ``name`` is what ``/v1/models`` lists."""

    name: str
    max_model_len: int
    vocab_size: int
    dtype: str
    device: str
    attention: str  #: the attention kernel in use
    num_parameters: int  #: 0 if unknown, as of a remote server
    has_chat_template: bool
    has_unused_adapter: bool = False  #: the model's folder also holds a LoRA adapter, which is not applied
    can_continue: bool = True  #: a partial reply can be continued
    can_inspect: bool = False  #: the distributions behind a reply's tokens can be reported, see :class:`ReplyInspector`
    quantization_reason: str | None = None  #: why the weights have their format, if the engine chose it
    can_think: bool = False  #: the chat template thinks before the answer, or not, as a request asks
    can_call_tools: bool = False  #: tools can be offered in a conversation
    served_names: tuple[str, ...] = ()  #: listed by ``/v1/models`` instead of ``name``, if there are any
    adapters: tuple[str, ...] = ()  #: names of the loaded LoRA adapters, which requests can choose
    quantization: str = "none"  #: of the weights by the engine: none, int8, int4 or fp8
    cache_bytes_per_token: int = 0  #: of the KV cache of all layers; 0 if unknown


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Utilisation over the last :data:`WINDOW_SECONDS` seconds, or since the start if that is less."""

    device_busy: float = 0.0  #: share of the time in which a step was computed, 0..1
    batch_occupancy: float = 0.0  #: sequences per step / ``max_num_seqs``, mean over the steps, 0..1
    token_occupancy: float = 0.0  #: tokens per step / ``max_batched_tokens``, mean over the steps, 0..1
    prompt_tokens_per_second: float = 0.0  #: prompt tokens computed; cached ones take no time
    generation_tokens_per_second: float = 0.0  #: of all replies together
    time_to_first_token_seconds: float | None = None  #: mean over the first tokens in the window; None without any
    inter_token_latency_seconds: float | None = None  #: mean gap between the tokens of a reply; None without any


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's counters, which grow from the start, and gauges, which are current."""

    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage: float  #: share of KV blocks held by requests, 0..1
    num_kv_blocks: int
    kv_block_size: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    num_preemptions: int
    num_steps: int
    requests_finished: dict[str, int]  #: by finish reason
    state: EngineState = EngineState.STOPPED
    num_restarts: int = 0  #: restarts after failed steps
    utilisation: Utilisation = field(default_factory=Utilisation)
    draft_tokens: int = 0  #: draft tokens verified, see :mod:`engine.execution.speculation`
    accepted_draft_tokens: int = 0  #: draft tokens accepted

    @staticmethod
    def nothing() -> EngineStats:
        """Returns the stats of an engine that has done nothing."""
        finished = {reason.value: 0 for reason in FinishReason}
        return EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, finished)

    def with_totals_of(self, earlier: EngineStats) -> EngineStats:
        """Returns these gauges with the counters of both added up."""
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in _TOTALS}
        finished = {
            reason: self.requests_finished.get(reason, 0) + earlier.requests_finished.get(reason, 0)
            for reason in self.requests_finished | earlier.requests_finished
        }
        return replace(self, **sums, requests_finished=finished)

    def without_gauges(self) -> EngineStats:
        """Returns these counters with every gauge at zero."""
        return EngineStats.nothing().with_totals_of(self)


_TOTALS = (
    *("prompt_tokens", "cached_prompt_tokens", "generation_tokens", "num_preemptions", "num_steps"),
    *("draft_tokens", "accepted_draft_tokens"),
)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """State of the engine, for users and probes."""

    state: EngineState
    model: str  #: as configured: a folder or a hub id
    reason: str | None = None  #: why it is not ready, as a sentence
    stage: str | None = None  #: current stage while a model is being loaded
    progress: float | None = None  #: progress of ``stage``, 0 to 1
    num_restarts: int = 0  #: restarts after failed steps, since the engine was created


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine accepts new requests (``ready``), and why not (``error``)."""

    ready: bool
    error: str | None = None
