"""A request to a model server, independent of the server's dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.chat_options import ChatOptions
from engine.interface import Caller, ChatMessage
from engine.remote.chat_fields import chat_fields
from engine.remote.dialects import Dialect, sampling_fields
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request, independent of any server's dialect. Exactly one of ``messages`` and ``prompt`` is set."""

    messages: Sequence[ChatMessage] | None = None
    prompt: str | Sequence[int] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    caller: Caller | None = None
    options: ChatOptions = field(default_factory=ChatOptions)  #: of conversations; a text has the adapter alone

    @property
    def path(self) -> str:
        return "/chat/completions" if self.messages is not None else "/completions"

    @property
    def affinity_key(self) -> str:
        """The start of the conversation, which stays the same while the conversation grows."""
        if self.messages is not None:
            return "\n".join(message["content"][:500] for message in self.messages[:2])
        return self.prompt[:500] if isinstance(self.prompt, str) else str(list(self.prompt or ())[:64])

    def body(self, dialect: Dialect, model: str) -> dict[str, Any]:
        """Returns the JSON body of the request for a server of this dialect.

        Raises:
            UnsupportedParameterError: the server lacks a parameter or an option whose value is not neutral; names it.
            InvalidRequestError: the server cannot continue a partial reply.
        """
        body: dict[str, Any] = {"model": self.options.adapter or model, "stream": True, **dialect.always}
        if dialect.usage:
            body["stream_options"] = {"include_usage": True}
        if dialect.token_ids:
            body["return_token_ids"] = True
        if dialect.priority and self.priority:
            body["priority"] = self.priority
        if dialect.cache_salt and self.caller is not None:
            body["cache_salt"] = self.caller.salt.hex()
        if self.messages is not None:
            body |= chat_fields(self.messages, self.options, dialect)
        elif isinstance(self.prompt, str):
            body["prompt"] = self.prompt
        else:
            body["prompt"] = list(self.prompt or ())
        return body | sampling_fields(self.params, dialect) | self._logprobs()

    def _logprobs(self) -> dict[str, Any]:
        count = self.params.logprobs
        if count is None:
            return {}
        if self.messages is None:
            return {"logprobs": count}
        return {"logprobs": True, "top_logprobs": count}
