"""Dialects of OpenAI-compatible servers: which parameters beyond OpenAI's API each accepts, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from engine.chat_options import ChatOptions
from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.interface import Caller, ChatMessage
from engine.parameter_table import PARAMETERS, Kind
from engine.sampling_params import SamplingParams

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class TokenizeApi(StrEnum):
    """How a server counts the tokens of a conversation."""

    VLLM = "vllm"  #: ``POST /tokenize`` takes messages
    DESKMATE = "deskmate"  #: the same, below ``/v1``
    LLAMA_CPP = "llama.cpp"  #: ``POST /apply-template``, then ``POST /tokenize``
    NONE = "none"  #: it cannot: the number is estimated from the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The API of one kind of server.

    Args:
        name: the name that ``ENGINE_REMOTE_KIND`` and :data:`engine.parameter_table.PARAMETERS` use.
        title: display name.
        extra_fields: extra fields sent along with a parameter, by the server's name for it.
        values: replacements for single values, by our name of the parameter; None omits it.
        always: fields sent with every request.
        continuation: fields that make the server continue a partial reply; None where it cannot.
        tokenize_api: how the server counts tokens.
        token_ids: the server reports the token ids of a reply on request.
        usage: the server reports usage at the end of a stream on request.
        priority: the server accepts ``priority``.
        cache_salt: the server accepts ``cache_salt``, and shares its prefix cache among requests with equal salts.
    """

    name: str
    title: str
    extra_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    always: Mapping[str, Any] = field(default_factory=dict)
    continuation: Mapping[str, Any] | None = None
    tokenize_api: TokenizeApi = TokenizeApi.NONE
    token_ids: bool = False
    usage: bool = True
    priority: bool = False
    cache_salt: bool = False


_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_NO_TOP_K = {"top_k": {0: -1}}

_DIALECTS = (
    Dialect(
        name="vllm",
        title="vLLM",
        values=_NO_TOP_K,
        continuation=_CONTINUE,
        tokenize_api=TokenizeApi.VLLM,
        token_ids=True,
        cache_salt=True,
    ),
    Dialect(
        name="sglang",
        title="SGLang",
        values=_NO_TOP_K,
        continuation=_CONTINUE,
        cache_salt=True,  # versions without it ignore the field
    ),
    Dialect(
        name="deskmate",
        title="Deskmate",
        continuation=_CONTINUE,
        tokenize_api=TokenizeApi.DESKMATE,
        token_ids=True,
        priority=True,
        cache_salt=True,
    ),
    Dialect(
        name="llama.cpp",
        title="llama.cpp",
        # By default its penalty covers only the last 64 tokens.
        extra_fields={"repeat_penalty": {"repeat_last_n": -1}},
        continuation={},  # it continues a final assistant message by itself
        tokenize_api=TokenizeApi.LLAMA_CPP,
    ),
    Dialect(name="llama-cpp-python", title="llama-cpp-python", usage=False),
    Dialect(name="tgi", title="TGI", values={"top_p": {1.0: None}}),
    Dialect(name="openai", title="a server of OpenAI's API"),
)
DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in _DIALECTS})
"""Dialects by the names that ``ENGINE_REMOTE_KIND`` takes."""

_SENT_APART: Final = ("logprobs", "prompt_logprobs")
"""Parameters that :func:`sampling_fields` does not send: the first differs between endpoints, the second is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request, independent of any server's dialect. Exactly one of ``messages`` and ``prompt`` is set."""

    messages: Sequence[ChatMessage] | None = None
    prompt: str | Sequence[int] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    caller: Caller | None = None
    options: ChatOptions = field(default_factory=ChatOptions)  #: of conversations

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
            UnsupportedParameterError: the server lacks a parameter whose value is not neutral; names it.
            InvalidRequestError: the server cannot continue a partial reply.
        """
        body: dict[str, Any] = {"model": model, "stream": True, **dialect.always}
        if dialect.usage:
            body["stream_options"] = {"include_usage": True}
        if dialect.token_ids:
            body["return_token_ids"] = True
        if dialect.priority and self.priority:
            body["priority"] = self.priority
        if dialect.cache_salt and self.caller is not None:
            body["cache_salt"] = self.caller.salt.hex()
        if self.messages is not None:
            body |= chat_fields(self.messages, dialect)
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


def chat_fields(messages: Sequence[ChatMessage], dialect: Dialect) -> dict[str, Any]:
    """Returns the body's fields for a conversation.

    Raises:
        InvalidRequestError: the conversation ends with a partial reply, which the server cannot continue.
    """
    sent = ("role", "content", "name")
    fields: dict[str, Any] = {
        "messages": [{key: message[key] for key in sent if key in message} for message in messages]  # type: ignore[literal-required]
    }
    if messages[-1].get("unfinished"):
        if dialect.continuation is None:
            raise InvalidRequestError(
                f"The model server ({dialect.title}) cannot continue an unfinished reply. Regenerate it instead."
            )
        fields |= dialect.continuation
    return fields


def sampling_fields(params: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    """Returns the body's fields for the parameters. Unset ones are left out, so that the server's defaults apply.

    Raises:
        UnsupportedParameterError: names the first parameter that the server lacks.
    """
    if params.prompt_logprobs is not None:
        raise UnsupportedParameterError(
            "prompt_logprobs is not available from a remote model server, and neither is echo with logprobs. Leave "
            "both out."
        )
    fields: dict[str, Any] = {}
    for name, parameter in PARAMETERS.items():
        value = getattr(params, name)
        # A default of ours, such as n=1, is the server's own default too.
        if name in _SENT_APART or value is None or value == {} or value == parameter.default:
            continue
        spelled = parameter.spelling(dialect.name)
        if spelled is None:
            if value == parameter.neutral:
                continue
            raise UnsupportedParameterError(
                f"{name} is not supported by the model server ({dialect.title}), so its value {value!r} would have no "
                f"effect. Leave {name} at its default."
            )
        # Only parameters with hashable values, not collections, have replacements.
        others = dialect.values.get(name, NOTHING)
        value = others.get(value, value) if others else value
        if value is None:
            continue
        if parameter.kind is Kind.TOKEN_BIASES:
            value = {str(token): bias for token, bias in value.items()}
        fields[spelled] = list(value) if isinstance(value, tuple) else value
        fields |= dialect.extra_fields.get(spelled, NOTHING)
    return fields
