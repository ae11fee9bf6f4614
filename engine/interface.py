"""The interface that ``app/`` uses of any engine, in-process or remote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, Protocol, TypedDict, runtime_checkable

from engine.chat_options import ChatOptions, ToolCall
from engine.embeddings import Encoder
from engine.outputs import Delta, Deltas, EngineStats, EngineStatus, Health, ModelInfo
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import asyncio

    from prometheus_client import CollectorRegistry

    from engine.settings import EngineSettings


class ChatMessage(TypedDict):
    """One message of a conversation, as chat templates take it.

    ``token_ids`` (replies only): the tokens that the model sampled for it, see :meth:`ChatEngine.reply_tokens`. Where
    the template renders the reply unchanged, the prompt reuses them and so hits the prefix cache. Ids that do not
    spell the content are ignored, so another model or an edited text does no harm.

    ``name``: tells apart participants of the same role, where the model's template renders it.

    ``unfinished`` (last message only, a reply): the model continues it, and the deltas bring only what is new.

    ``shared`` (first messages only): the text belongs to no caller (a support desk's system prompt, say), so its
    prefix cache serves every caller.

    ``reasoning`` (replies only): what the model thought before it answered; most templates leave it out.

    ``tool_calls`` (replies only): the calls that the reply made. Each is answered by a message of the role ``tool``,
    whose ``tool_call_id`` is the call's id.
    """

    role: str
    content: str
    name: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    unfinished: NotRequired[bool]
    shared: NotRequired[bool]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[Sequence[ToolCall]]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Caller:
    """The user that a request is made for.

    The prefix cache serves a caller's own text to equal callers only, and the queue lets users take turns.

    Args:
        user: id of the user; empty without accounts, where all requests belong to one user.
        cache_salt: also separates one user's requests in the prefix cache, as vLLM's field of this name.
    """

    user: str
    cache_salt: str = ""

    @property
    def salt(self) -> bytes:
        """16 bytes that separate the block hashes of different callers."""
        return blake2b(
            f"{len(self.user)} {self.user}{self.cache_salt}".encode(errors="surrogatepass"), digest_size=16
        ).digest()


@dataclass(frozen=True, slots=True)
class Truncation:
    """Leaves a conversation's oldest turns out of its prompt where they exceed the context window.

    A turn is a user message with the messages up to the next one, and is left out as a whole; system messages at the
    start and the last user message stay. Room for the reply is reserved: its maximum length, but at most a quarter of
    the context window. When turns must go, those that stay take three quarters of the room for them, and a turn that
    was left out stays out until the prompt has that much room again. So later prompts share a prefix, which the engine
    finds in its cache, until the room is used up.

    Args:
        num_omitted: messages that the conversation's previous prompt left out, under the same context window.
        may_restore: fewer may be left out, where there is room for them again.
    """

    num_omitted: int = 0
    may_restore: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPrompt:
    """A conversation that an engine has validated, rendered and counted, to be streamed any number of times.

    :meth:`ChatEngine.prepare` makes it and :meth:`ChatEngine.stream` takes it. It occupies nothing in the engine, so it
    can be dropped at any time, and it keeps what is needed to render it again after another model was loaded.
    """

    messages: tuple[ChatMessage, ...]  #: those in the prompt
    caller: Caller | None
    requested_params: SamplingParams | None  #: as passed to :meth:`ChatEngine.prepare`
    params: SamplingParams  #: the same, completed with the model's defaults
    num_prompt_tokens: int
    max_model_len: int  #: tokens of the context window it was prepared for, prompt and reply together
    num_omitted_messages: int = 0  #: oldest messages that :class:`Truncation` left out
    options: ChatOptions = field(default_factory=ChatOptions)


class ChatEngine(Protocol):
    """Streams replies. Leaving the ``async for`` (or cancelling its task) aborts the request."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def encoder(self) -> Encoder | None:
        """Turns texts into vectors; None if no encoder is configured."""
        ...

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (its generation_config), with every field set."""
        ...

    @property
    def registry(self) -> CollectorRegistry:
        """Prometheus metrics of the engine, ``deskmate_*``."""
        ...

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
        """Validates, renders and counts a conversation that :meth:`stream` would accept now.

        Args:
            messages: the conversation, oldest first; copied.
            params: default: the model's own.
            caller: requests without one share one prefix cache and one turn in the queue.
            truncation: leaves out the oldest turns of a conversation that is too long; None refuses it.
            previous: the prompt of the conversation's previous turn. Where this one continues it, only the rest is
                tokenized; anything else does no harm.
            options: tools, thinking and the adapter.

        Raises:
            ContextLengthError: the rendered prompt leaves no room for a reply.
            InvalidRequestError: the request can never be served for another reason.
            EngineOverloadedError: the waiting queue is full.
            EngineStoppedError: the engine takes no requests.
        """
        ...

    def stream(self, prepared: PreparedPrompt, *, deadline: float | None = None, priority: int = 0) -> Deltas:
        """Streams a reply to a prepared conversation, for the caller that it was prepared for.

        If another model was loaded since, the conversation is rendered again for that one. The first ``anext``, or
        :meth:`~engine.outputs.Deltas.forward_to`, raises what :meth:`prepare` raises.

        Args:
            deadline: seconds. A reply that takes longer ends with ``FinishReason.DEADLINE`` and keeps its text; one
                without a first token by then raises ``DeadlineError``.
            priority: lower is served first; ``BACKGROUND_PRIORITY`` runs only on what all other requests leave.
        """
        ...

    def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        options: ChatOptions | None = None,
    ) -> AsyncIterator[Delta]:
        """Streams a reply to a conversation: :meth:`prepare` and :meth:`stream` in one."""
        ...

    def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
        adapter: str | None = None,
    ) -> AsyncIterator[Delta]:
        """Streams a continuation of ``prompt``, without a chat template; ``adapter`` as in :class:`ChatOptions`."""
        ...

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        add_special_tokens: bool = True,
        options: ChatOptions | None = None,
    ) -> tuple[int, ...]:
        """Returns the token ids of a text, or of a conversation up to where its reply begins, of any length.

        Args:
            add_special_tokens: texts only: adds the special tokens that the model expects around them (such as BOS).
            options: conversations only: tools and thinking, as far as the template renders them.

        Raises:
            UnsupportedParameterError: the server that runs the model does not report token ids.
            InvalidRequestError: the tokenizer or the template refuses the prompt.
            EngineStoppedError: the engine takes no requests.
        """
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included. Raises as :meth:`tokenize`."""
        ...

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Returns each token as the vocabulary spells it. Raises as :meth:`tokenize`."""
        ...

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the part of a reply's sampled ``token_ids`` that spells exactly its ``text``, for the next turn.

        Leaves out the token that ended the reply, a stop string, and text held back when the reply was stopped. Empty
        where no such ids exist or none are available.

        Raises:
            EngineStoppedError: the engine takes no requests.
        """
        ...

    @property
    def status(self) -> EngineStatus:
        """The engine's state, for users and probes."""
        ...

    def stats(self) -> EngineStats: ...

    def health(self) -> Health: ...

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits for those in flight; True when all ended within ``timeout`` seconds."""
        ...


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A part of a prompt: one special token, or the text of the tokens between two of them."""

    text: str
    num_tokens: int
    is_special: bool  #: a token of the template's or the tokenizer's own, which no message's text can hold


@runtime_checkable
class PromptReader(Protocol):
    """An engine that shows prompts as the model reads them."""

    async def read_prompt(
        self, prepared: PreparedPrompt, *, offset: int = 0, limit: int
    ) -> tuple[int, tuple[PromptPiece, ...]]:
        """Returns the tokens of a prompt, counted, and ``limit`` of them from ``offset`` on as text.

        Raises:
            EngineStoppedError: the engine takes no requests.
        """
        ...


@runtime_checkable
class ReplyInspector(Protocol):
    """An engine that reports the distributions from which the tokens of a reply are chosen."""

    def inspect(
        self, prepared: PreparedPrompt, *, position: int | None = None, deadline: float | None = None, priority: int = 0
    ) -> Deltas:
        """Computes the log-probabilities of a given reply's tokens, with an ``inspection`` of each.

        A request with ``prompt_logprobs`` over the conversation and the reply; the prefix cache serves what comes
        before the first token that is reported. The first token's delta has them in ``prompt_logprobs``, and the
        stream ends with it.

        Args:
            prepared: a conversation that ends with the reply, ``unfinished``. Its parameters are those whose effect is
                reported, as if the reply were sampled from its first token on.
            position: report only this token of the reply, counted from 0, with its whole row. None: all, without rows.

        Raises (on the first ``anext``):
            InvalidRequestError: the conversation ends with no reply, or it has no token at the position.
            EngineStoppedError, EngineOverloadedError: as :meth:`ChatEngine.stream`.
        """
        ...


@runtime_checkable
class ModelHost(Protocol):
    """An engine that holds its model itself, and so can release it and load another."""

    @property
    def settings(self) -> EngineSettings:
        """Settings of the loaded model, or of the one to load."""
        ...

    async def sleep(self, timeout: float = 30.0) -> None:
        """Releases the weights and the cache. Replies in flight get ``timeout`` seconds, then they are interrupted.

        Raises:
            EngineBusyError: a model is being loaded or unloaded.
            EngineStoppedError: the engine is not started.
        """
        ...

    async def wake(self) -> None:
        """Loads the model again, after a sleep or a failure.

        Raises:
            ModelLoadError: the model cannot be loaded any more.
            EngineBusyError, EngineStoppedError: as :meth:`sleep`.
        """
        ...

    async def swap(
        self, model: str, *, revision: str | None = None, max_model_len: int | None = None, timeout: float = 30.0
    ) -> None:
        """Replaces the served model by ``model``, a folder or a hub id. If that cannot be loaded, the old one stays.

        Raises:
            ModelLoadError: the new model cannot be loaded or cannot run here; says why.
            EngineBusyError, EngineStoppedError: as :meth:`sleep`.
        """
        ...

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Loads a LoRA adapter from a folder in PEFT's format, while the model serves.

        The settings have it from now on, so that it is loaded again whenever the model is.

        Raises:
            ModelLoadError: the name is taken or cannot be one, or the adapter cannot be loaded; says why.
            EngineBusyError, EngineStoppedError: as :meth:`sleep`; or the model is asleep.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. Its replies in flight go on.

        Raises:
            InvalidRequestError: there is none of this name.
            EngineBusyError, EngineStoppedError: as :meth:`load_adapter`.
        """
        ...


@runtime_checkable
class BackgroundStart(Protocol):
    """An engine that takes seconds to start, and reports its state meanwhile."""

    def start_in_background(self) -> asyncio.Task[None]:
        """Starts the engine in a task and returns it. Cancelling the task stops the start within seconds.

        Raises (from the task):
            ModelLoadError: the model cannot be loaded or cannot run here.
        """
        ...

    async def stop(self) -> None:
        """Releases the model. Requests in flight end with ``EngineStoppedError``."""
        ...
