"""Fields that ``/v1`` recognises but does not implement, with the neutral values that it accepts for each.

Names are OpenAI's, vLLM's, llama.cpp's, SGLang's and TGI's. A neutral value, which asks for nothing, is accepted; any
other is refused by name, since ignoring it would return a reply that is not what the caller asked for. Fields in no
table are unknown: they are ignored and listed in a header, or refused with ``APP_STRICT_FIELDS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

_UNSUPPORTED: Final = "is not supported here"


@dataclass(frozen=True, slots=True)
class NoOp:
    """A field that is recognised but has no effect.

    Args:
        neutral: the accepted values, besides null.
        accepts_any: every value is accepted, as for a label for the caller's own records.
        why: the reason for refusing other values; follows the field's name in the message.
    """

    neutral: tuple[object, ...] = ()
    accepts_any: bool = False
    why: str = _UNSUPPORTED

    def asks_for_nothing(self, value: object) -> bool:
        return value is None or self.accepts_any or any(_is_same(value, one) for one in self.neutral)

    @property
    def refusal(self) -> str:
        """The message for a value that is not neutral; ``{param}`` stands for the field's path."""
        neutral = " or ".join(json.dumps(value) for value in self.neutral)
        instead = f" Leave it out, or send {neutral}." if neutral else " Leave it out."
        return f"The parameter '{{param}}' {self.why}.{instead}"


def _only(*neutral: object, why: str = _UNSUPPORTED) -> NoOp:
    return NoOp(neutral, why=why)


_LABEL: Final = NoOp(accepts_any=True)
_TOOLS: Final = "asks for tool calls, which only /v1/chat/completions makes"
_FUNCTIONS: Final = "is the old form of tools and tool_choice: send those instead"
_SPEECH: Final = "asks for speech, but the model only writes text"
_GRAMMAR: Final = "is not how output of a given form is asked for here: send response_format or structured_outputs"
_MEDIA: Final = "is about images, sound or video, but the model only reads text"
_TEMPLATE: Final = "changes the model's chat template, which is not supported here"
_REASONING: Final = "is about thinking, which only /v1/chat/completions separates from the answer"
_SWITCH: Final = "is another server's way to ask for thinking: send enable_thinking or reasoning_effort instead"
_BUDGET: Final = "is another server's name for thinking_token_budget: send that instead"

REQUEST_FIELDS: Final[Mapping[str, NoOp]] = {
    # OpenAI: labels for the caller's own records, and hints about OpenAI's prompt cache.
    **dict.fromkeys(("user", "metadata", "safety_identifier", "prompt_cache_key", "session_id", "rid"), _LABEL),
    "prompt_cache_retention": _only("in_memory", "in-memory"),
    "service_tier": _only("auto", "default", why="asks for a service tier, but there is only one"),
    "store": _only(False, why="asks to store the reply, which only /v1/responses does"),
    # OpenAI: tools, output formats, other media.
    "tools": _only([], why=_TOOLS),
    "tool_choice": _only("none", "auto", why=_TOOLS),
    "parallel_tool_calls": _only(True, False),
    "functions": _only([], why=_FUNCTIONS),
    "function_call": _only("none", "auto", why=_FUNCTIONS),
    "modalities": _only(["text"], why=_SPEECH),
    "audio": _only(why=_SPEECH),
    "prediction": _only(),
    "web_search_options": _only(),
    "reasoning_effort": _only("none", why=_REASONING),
    "enable_thinking": _only(False, why=_REASONING),
    "verbosity": _only("medium"),
    "moderation": _only(),
    # Fields of the other endpoint: a request class that has the field takes precedence.
    "suffix": _only(""),
    "echo": _only(False),
    "top_logprobs": _only(0),
    "prompt_embeds": _only(),
    # vLLM: sampling and the text of the reply.
    "include_stop_str_in_output": _only(False),
    "skip_special_tokens": _only(True),
    "spaces_between_special_tokens": _only(True),
    "truncate_prompt_tokens": _only(),
    "truncation_side": _only("left", "right"),
    "allowed_token_ids": _only(),
    "logprob_token_ids": _only(),
    "watermarking": _only(False),
    "repetition_detection": _only(),
    "stream_interval": _only(1),
    # vLLM: prompt and chat template.
    "add_special_tokens": _only(False),
    "documents": _only([], why=_TEMPLATE),
    "chat_template": _only(why=_TEMPLATE),
    "chat_template_kwargs": _only({}, why=_TEMPLATE),
    "media_io_kwargs": _only({}, why=_MEDIA),
    "mm_processor_kwargs": _only({}, why=_MEDIA),
    # vLLM and SGLang: structured output.
    **dict.fromkeys(
        (
            *("structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
            *("guided_decoding_backend", "guided_whitespace_pattern", "regex", "ebnf"),
        ),
        _only(why=_GRAMMAR),
    ),
    # vLLM and SGLang: additional response fields, and placement.
    "return_tokens_as_token_ids": _only(False),
    "return_token_offsets": _only(False),
    "return_prompt_text": _only(False),
    "return_mm_kwargs": _only(True, why=_MEDIA),
    "return_hidden_states": _only(False),
    "return_routed_experts": _only(False),
    "routed_experts_prompt_start": _only(0),
    "include_reasoning": _only(True, why=_REASONING),
    "thinking_token_budget": _only(-1, why=_REASONING),
    "separate_reasoning": _only(True, False, why=_REASONING),
    "stream_reasoning": _only(True, False, why=_REASONING),
    "stop_in_reasoning": _only(True, False, why=_REASONING),
    "kv_transfer_params": _only({}),
    "ec_transfer_params": _only({}),
    "vllm_xargs": _only({}),
    "lora_path": _only(),
    "session_params": _only({}),
    "no_stop_trim": _only(False),
    "custom_logit_processor": _only(),
    "data_parallel_rank": _only(),
    # llama.cpp.
    "cache_prompt": _only(True),
    "id_slot": _only(-1),
    "n_predict": _only(-1, why="is llama.cpp's name for max_tokens: send that instead"),
    "n_keep": _only(0),
    "n_indent": _only(0),
    "n_probs": _only(0, why="is llama.cpp's name for logprobs: send that instead"),
    "min_keep": _only(0),
    "t_max_predict_ms": _only(0, -1, why="is a limit in milliseconds: send deadline, in seconds, instead"),
    "repeat_penalty": _only(1.0, why="is llama.cpp's name for repetition_penalty: send that instead"),
    "tfs_z": _only(1.0),
    "mirostat": _only(0),
    "dynatemp_range": _only(0.0),
    "xtc_probability": _only(0.0),
    "dry_multiplier": _only(0.0),
    "grammar": _only("", why=_GRAMMAR),
    "json_schema": _only({}, why=_GRAMMAR),
    "samplers": _only(),
    "lora": _only([]),
    "post_sampling_probs": _only(False),
    "timings_per_token": _only(False),
    "return_tokens": _only(False),
    "return_progress": _only(False),
    "response_fields": _only([]),
    "reasoning_format": _only("none", "auto", why=_REASONING),
    "reasoning_budget_tokens": _only(-1, why=_BUDGET),
    "thinking_budget_tokens": _only(-1, why=_BUDGET),
    "reasoning_budget_message": _only(""),
    "parse_tool_calls": _only(True),
    # Parameters of samplers whose own fields above must be off.
    **dict.fromkeys(
        (
            *("repeat_last_n", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "dry_base"),
            *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        ),
        _LABEL,
    ),
    # Qwen's, DeepSeek's, GLM's and OpenRouter's services.
    "thinking_budget": _only(-1, why=_BUDGET),
    "thinking": _only(why=_SWITCH),
    "reasoning": _only({}, why=_SWITCH),
    # TGI.
    "tool_prompt": _only("", why=_TOOLS),
    "guideline": _only(""),
}

STREAM_FIELDS: Final[Mapping[str, NoOp]] = {"include_obfuscation": _only(True, False)}

MESSAGE_FIELDS: Final[Mapping[str, NoOp]] = {
    "annotations": _only([]),
    "audio": _only(why=_SPEECH),
    "cache_control": _LABEL,
    "function_call": _only(why="is the old form of tool_calls: send that instead"),
    "reasoning_details": _LABEL,
    "refusal": _only(),
}

PART_FIELDS: Final[Mapping[str, NoOp]] = dict.fromkeys(("annotations", "cache_control", "logprobs"), _LABEL)


MAX_ENTRIES = 10_000
"""Maximum entries of an object or a list of a request, since no other request runs while they are looked at; more are
refused. Messages and items are counted with the content parts and tool calls in them."""
_LISTS_IN_INPUTS: Final = ("content", "tool_calls", "output", "summary")


class Lenient(BaseModel):
    """Base of request models: checks the types of known fields, and keeps unknown ones to be listed."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    #: Recognised fields without effect. The model's own fields take precedence.
    no_ops: ClassVar[Mapping[str, NoOp]] = {}
    #: Fields with a limit of their own instead of :data:`MAX_ENTRIES`.
    unlimited: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_no_ops(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_ENTRIES:
            raise PydanticCustomError(
                "too_many", "it has {size} fields; the maximum is {limit}", {"size": len(data), "limit": MAX_ENTRIES}
            )
        kept = {}
        for name, value in data.items():
            known = None if name in cls.model_fields else cls.no_ops.get(name)
            if known is None:
                if isinstance(value, list | dict) and name not in cls.unlimited:
                    _check_number_of_entries(name, len(value))
                for text in value if isinstance(value, list) and value and isinstance(value[0], str) else [value]:
                    if isinstance(text, str):
                        checked_text(name, text)
                kept[name] = value
            elif not known.asks_for_nothing(value):
                raise unsupported(name, known.refusal)
        return kept

    def unknown_fields(self, prefix: str = "") -> Iterator[str]:
        """Yields the paths of the unknown fields of this model and of nested ones."""
        for name in self.model_extra or ():
            yield prefix + name
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Lenient):
                yield from value.unknown_fields(f"{prefix}{name}.")
            elif (
                isinstance(value, list) and value and not isinstance(value[0], int | str)
            ):  # skips lists of tokens, which may hold a million
                for index, one in enumerate(value):
                    if isinstance(one, Lenient):
                        yield from one.unknown_fields(f"{prefix}{name}[{index}].")


def unsupported(param: str, sentence: str) -> PydanticCustomError:
    """Creates the error that a validator raises for an unsupported parameter.

    Args:
        param: its path, relative to the validator.
        sentence: the message; ``{param}`` stands for the whole path.
    """
    return PydanticCustomError("unsupported_parameter", "{sentence}", {"param": param, "sentence": sentence})


def checked_text(param: str, value: str) -> str:
    """Returns ``value`` if it is valid text.

    Raises:
        PydanticCustomError: it holds half of a surrogate pair, which JSON can express but UTF-8 cannot encode.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise unsupported(param, "The field '{param}' is not valid text: it holds half of a surrogate pair.") from None
    return value


def check_number_of_inputs(param: str, inputs: list[Any]) -> None:
    """Checks the number of a request's messages or items, as they came and before each of them is parsed.

    Raises:
        PydanticCustomError: there are too many, with their content parts and tool calls.
    """
    size = len(inputs)
    for one in inputs if size <= MAX_ENTRIES else ():
        parts = (one.get(name) for name in _LISTS_IN_INPUTS) if isinstance(one, dict) else ()
        size += sum(len(each) for each in parts if isinstance(each, list))
    _check_number_of_entries(param, size)


def _check_number_of_entries(param: str, size: int) -> None:
    if size > MAX_ENTRIES:
        raise unsupported(param, f"The field '{{param}}' has {size} entries; the maximum is {MAX_ENTRIES}. Send fewer.")


def _is_same(value: object, neutral: object) -> bool:
    """Whether the values are equal in JSON: 1 equals 1.0, but neither equals true, unlike in Python."""
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)
