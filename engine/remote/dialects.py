"""Dialects of OpenAI-compatible servers: which parameters beyond OpenAI's API each accepts, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.interface import Caller, ChatMessage
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
        title: display name.
        spelling: field of :class:`SamplingParams` → the server's name for it. A parameter that is missing here is
            refused, unless its value is neutral.
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

    title: str
    spelling: Mapping[str, str]
    extra_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    always: Mapping[str, Any] = field(default_factory=dict)
    continuation: Mapping[str, Any] | None = None
    tokenize_api: TokenizeApi = TokenizeApi.NONE
    token_ids: bool = False
    usage: bool = True
    priority: bool = False
    cache_salt: bool = False


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_OPENAI = _same(
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "stop", "seed", "n", "logit_bias"
)  # fmt: skip
_VLLM = _OPENAI | _same("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")
_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_NO_TOP_K = {"top_k": {0: -1}}

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "vllm": Dialect(
            title="vLLM",
            spelling=_VLLM | _same("bad_words"),
            values=_NO_TOP_K,
            continuation=_CONTINUE,
            tokenize_api=TokenizeApi.VLLM,
            token_ids=True,
            cache_salt=True,
        ),
        "sglang": Dialect(
            title="SGLang",
            spelling=_VLLM,
            values=_NO_TOP_K,
            continuation=_CONTINUE,
            cache_salt=True,  # versions without it ignore the field
        ),
        "deskmate": Dialect(
            title="Deskmate",
            spelling=_VLLM | _same("bad_words", "typical_p", "forbidden_words"),
            continuation=_CONTINUE,
            tokenize_api=TokenizeApi.DESKMATE,
            token_ids=True,
            priority=True,
            cache_salt=True,
        ),
        "llama.cpp": Dialect(
            title="llama.cpp",
            spelling=_OPENAI
            | _same("top_k", "min_p", "typical_p", "ignore_eos")
            | {"repetition_penalty": "repeat_penalty"},
            # By default its penalty covers only the last 64 tokens.
            extra_fields={"repeat_penalty": {"repeat_last_n": -1}},
            continuation={},  # it continues a final assistant message by itself
            tokenize_api=TokenizeApi.LLAMA_CPP,
        ),
        "llama-cpp-python": Dialect(
            title="llama-cpp-python",
            # It accepts ``n`` and ignores it.
            spelling={name: to for name, to in _OPENAI.items() if name != "n"}
            | _same("top_k", "min_p", "min_tokens")
            | {"repetition_penalty": "repeat_penalty"},
            usage=False,
        ),
        "tgi": Dialect(
            title="TGI",
            # It accepts ``n`` and ``logit_bias`` but ignores them, and gives ``presence_penalty`` another meaning.
            spelling=_same("temperature", "top_p", "frequency_penalty", "max_tokens", "stop", "seed"),
            values={"top_p": {1.0: None}},
        ),
        "openai": Dialect(title="a server of OpenAI's API", spelling=_OPENAI),
    }
)
"""Dialects by the names that ``ENGINE_REMOTE_KIND`` takes."""

#: Neutral values. They change nothing, so they are left out for servers without the parameter.
_NEUTRAL: Final[Mapping[str, object]] = {
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "n": 1,
    "logit_bias": {},
    "bad_words": (),
    "forbidden_words": (),
}
#: Parameters whose neutral value is also their unset value, which is never sent.
_UNSET: Final = (
    *("min_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "logit_bias", "bad_words", "forbidden_words"),
)
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "n",
    "logit_bias",
    "bad_words",
    "forbidden_words",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request, independent of any server's dialect. Exactly one of ``messages`` and ``prompt`` is set."""

    messages: Sequence[ChatMessage] | None = None
    prompt: str | Sequence[int] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    caller: Caller | None = None

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
        asked = self.params.logprobs
        if asked is None:
            return {}
        if self.messages is None:
            return {"logprobs": asked}
        return {"logprobs": True, "top_logprobs": asked}


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
    for name in _SAMPLING:
        value = getattr(params, name)
        neutral = name in _NEUTRAL and value == _NEUTRAL[name]
        if value is None or (neutral and name in _UNSET):
            continue
        spelled = dialect.spelling.get(name)
        if spelled is None:
            if neutral:
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
        if name == "logit_bias":
            value = {str(token): bias for token, bias in value.items()}
        fields[spelled] = list(value) if isinstance(value, tuple) else value
        fields |= dialect.extra_fields.get(spelled, NOTHING)
    return fields
