"""Dialects of OpenAI-compatible servers: which parameters beyond OpenAI's API each accepts, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from engine.errors import UnsupportedParameterError
from engine.parameter_table import PARAMETERS, Kind
from engine.remote.structured_fields import structured_fields
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
        parallel_tool_calls: the server accepts ``parallel_tool_calls``.
        named_tools: the server holds a reply to the one tool that ``tool_choice`` names.
        template_kwargs: the server accepts ``chat_template_kwargs``.
        reasoning_effort: the server accepts ``reasoning_effort``; else it goes to the template.
        thinking_budget: fields for the maximum of thinking tokens; none where the server has no such limit.
        message_reasoning: fields of a message for what a reply thought; none where the server takes none.
        unparsed: fields that leave thinking in the reply's text; None where that is the server's own setting.
        stop_in_reasoning: the server accepts ``stop_in_reasoning``.
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
    parallel_tool_calls: bool = False
    named_tools: bool = True
    template_kwargs: bool = False
    reasoning_effort: bool = False
    thinking_budget: tuple[str, ...] = ()
    message_reasoning: tuple[str, ...] = ()
    unparsed: Mapping[str, Any] | None = None
    stop_in_reasoning: bool = False


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
        parallel_tool_calls=True,
        template_kwargs=True,
        reasoning_effort=True,
        thinking_budget=("thinking_token_budget",),
        message_reasoning=("reasoning", "reasoning_content"),  # since 0.12, and before
    ),
    Dialect(
        name="sglang",
        title="SGLang",
        values=_NO_TOP_K,
        continuation=_CONTINUE,
        cache_salt=True,  # versions without it ignore the field
        parallel_tool_calls=True,
        template_kwargs=True,
        reasoning_effort=True,
        message_reasoning=("reasoning_content",),
        unparsed={"separate_reasoning": False},
    ),
    Dialect(
        name="deskmate",
        title="Deskmate",
        continuation=_CONTINUE,
        tokenize_api=TokenizeApi.DESKMATE,
        token_ids=True,
        priority=True,
        cache_salt=True,
        parallel_tool_calls=True,
        template_kwargs=True,
        reasoning_effort=True,
        thinking_budget=("thinking_token_budget",),
        message_reasoning=("reasoning",),
        unparsed={"separate_reasoning": False},
        stop_in_reasoning=True,
    ),
    Dialect(
        name="llama.cpp",
        title="llama.cpp",
        # By default its penalty covers only the last 64 tokens.
        extra_fields={"repeat_penalty": {"repeat_last_n": -1}},
        continuation={},  # it continues a final assistant message by itself
        tokenize_api=TokenizeApi.LLAMA_CPP,
        parallel_tool_calls=True,
        named_tools=False,  # it reads a name as "auto"
        template_kwargs=True,
        thinking_budget=("reasoning_budget_tokens", "thinking_budget_tokens"),  # versions read one or the other
        message_reasoning=("reasoning_content",),
        unparsed={"reasoning_format": "none"},
    ),
    Dialect(name="llama-cpp-python", title="llama-cpp-python", usage=False, unparsed=NOTHING),
    Dialect(name="tgi", title="TGI", values={"top_p": {1.0: None}}, unparsed=NOTHING),
    Dialect(name="openai", title="a server of OpenAI's API", parallel_tool_calls=True, reasoning_effort=True),
)
DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in _DIALECTS})
"""Dialects by the names that ``ENGINE_REMOTE_KIND`` takes."""

_SENT_APART: Final = ("logprobs", "prompt_logprobs")
"""Parameters that :func:`sampling_fields` does not send: the first differs between endpoints, the second is refused."""


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
    if params.beam_search is not None:
        raise UnsupportedParameterError("beam_search is not available from a remote model server. Leave it out.")
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
    return fields | structured_fields(params.structured, dialect.title)
