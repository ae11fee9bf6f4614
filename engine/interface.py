"""The door between the houses: what ``app/`` may ask of any engine, in-process or remote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

from prometheus_client import CollectorRegistry

from engine.outputs import Delta, EngineStats, EngineStatus, Health, ModelInfo
from engine.sampling_params import SamplingParams


class ChatMessage(TypedDict):
    """One message of a conversation as chat templates take it.

    ``token_ids``, of a reply, are what the model sampled when it wrote that (see :meth:`ChatEngine.reply_tokens`): the
    prompt holds them again where the template shows the reply unchanged, and so hits the prefix cache. Ids that do
    not spell the content are ignored, so another model or an edited text do no harm.

    ``name`` tells apart people of the same role, where the model's template shows it.

    ``unfinished``, of a last message that is a reply: the model goes on with it, and its deltas are what is new.

    ``shared``, of the first messages: the text belongs to no caller (a system prompt of the desk's), so what the prefix
    cache holds of it serves every caller.
    """

    role: str
    content: str
    name: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    unfinished: NotRequired[bool]
    shared: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request is made.

    The prefix cache serves a caller's own text to equal callers only, and users take turns.

    Args:
        user: id of the user; empty without accounts, where all requests are one user's.
        cache_salt: further separates what one user's requests find in the cache, as vLLM's field of this name.
    """

    user: str
    cache_salt: str = ""

    @property
    def salt(self) -> bytes:
        """Separates block hashes: 16 bytes."""
        return blake2b(
            f"{len(self.user)} {self.user}{self.cache_salt}".encode(errors="surrogatepass"), digest_size=16
        ).digest()


class ChatEngine(Protocol):
    """Streams replies. Leaving the ``async for`` (or cancelling its task) aborts the request."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (its generation_config), with every field set."""
        ...

    @property
    def registry(self) -> CollectorRegistry:
        """Prometheus metrics of the engine, ``deskmate_*``."""
        ...

    def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
    ) -> AsyncIterator[Delta]:
        """Stream a reply to a conversation. Raises on the first ``anext`` what :meth:`check_chat` raises.

        Where this is a :class:`~engine.runtime.deltas.Deltas`, it can be listened to as well.

        Args:
            deadline: seconds; a reply that takes longer ends with ``FinishReason.DEADLINE`` and keeps its text, one
                that has not begun by then raises ``DeadlineError``.
            priority: lower comes first; at ``BACKGROUND_PRIORITY`` all other requests do.
            caller: None shares everything with every other request without one.
        """
        ...

    def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        priority: int = 0,
        caller: Caller | None = None,
    ) -> AsyncIterator[Delta]:
        """Stream a continuation of ``prompt``, without a chat template."""
        ...

    async def check_chat(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None = None, *, caller: Caller | None = None
    ) -> int:
        """Would :meth:`chat` accept this now? Returns the prompt's length in tokens.

        Raises:
            ContextLengthError: the rendered prompt leaves no room for a reply.
            InvalidRequestError: anything else that can never be served.
            EngineOverloadedError: the waiting queue is full.
            EngineStoppedError: the engine takes no requests.
        """
        ...

    async def tokenize(
        self, prompt: str | Sequence[ChatMessage], *, add_special_tokens: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation up to where its reply begins, however long.

        Args:
            add_special_tokens: of a text: with those around it that the model expects there (such as BOS).

        Raises:
            UnsupportedParameterError: the server that runs the model does not tell them.
            InvalidRequestError: the tokenizer or the template refuses it.
            EngineStoppedError: the engine takes no requests.
        """
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises as :meth:`tokenize`."""
        ...

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it. Raises as :meth:`tokenize`."""
        ...

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Of the token ids sampled for a reply, those that spell exactly its ``text``, for the next turn.

        Leaves out the token that ended it, a stop string, and what was held back when it was stopped. Empty where
        no such ids exist, or none are known.

        Raises:
            EngineStoppedError: the engine takes no requests.
        """
        ...

    @property
    def status(self) -> EngineStatus:
        """What it is doing."""
        ...

    def stats(self) -> EngineStats: ...

    def health(self) -> Health: ...

    async def drain(self, timeout: float) -> bool:
        """Take no new requests and wait for those in flight; True when all ended within ``timeout`` seconds."""
        ...


@runtime_checkable
class ModelHost(Protocol):
    """An engine that holds its model itself, and so can let go of it and take another."""

    async def sleep(self, timeout: float = 30.0) -> None:
        """Release the weights and the cache. Replies in flight get ``timeout`` seconds, then they are interrupted.

        Raises:
            EngineBusyError: a model is being loaded or ended just now.
            EngineStoppedError: the engine is not started.
        """
        ...

    async def wake(self) -> None:
        """Load the model again, after a sleep or a failure.

        Raises:
            ModelLoadError: it cannot be loaded any more.
            EngineBusyError, EngineStoppedError: as :meth:`sleep`.
        """
        ...

    async def swap(
        self, model: str, *, revision: str | None = None, max_model_len: int | None = None, timeout: float = 30.0
    ) -> None:
        """Serve another model: a folder or a hub id. The old one serves on when it cannot be loaded.

        Raises:
            ModelLoadError: it cannot be loaded or cannot run here; says why.
            EngineBusyError, EngineStoppedError: as :meth:`sleep`.
        """
        ...
