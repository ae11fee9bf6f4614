"""Fields of ``/v1/responses`` that are recognised but not implemented, as :mod:`app.api.openai.fields` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.api.openai.fields import REQUEST_FIELDS, NoOp

_LABEL: Final = NoOp(accepts_any=True)
_RENAMED: Final = "is chat completions' name for {}: send that instead"
_SUMMARY: Final = "asks for a summary of the thinking, but it is returned in full"
_UNPARSED: Final = (
    "asks for a reply without separate items for thinking and calls, which only /v1/chat/completions makes"
)


def _only(*neutral: object, why: str = "is not supported here") -> NoOp:
    return NoOp(neutral, why=why)


RESPONSE_FIELDS: Final[Mapping[str, NoOp]] = {
    **REQUEST_FIELDS,
    "background": _only(False, why="asks for a response in the background, but a response is sent as it is generated"),
    "conversation": _only(why="asks for a stored conversation: send previous_response_id or the items as input"),
    "prompt": _only(why="asks for a stored prompt, which is not supported here: send instructions and input"),
    "context_management": _only([]),
    "moderation": _only(),
    "access_programs": _only(),
    "image": _only({}, why="is about images, but the model only reads text"),
    # About tools that OpenAI runs itself, and about its prompt cache.
    **dict.fromkeys(("max_tool_calls", "prompt_cache_options"), _LABEL),
    # Chat completions' names.
    "messages": _only(why=_RENAMED.format("input")),
    "max_tokens": _only(why=_RENAMED.format("max_output_tokens")),
    "max_completion_tokens": _only(why=_RENAMED.format("max_output_tokens")),
    "reasoning_effort": _only(why=_RENAMED.format("reasoning.effort")),
    "response_format": _only(why=_RENAMED.format("text.format")),
    "verbosity": _only("medium", why=_RENAMED.format("text.verbosity")),
    "logprobs": _only(False, why=_RENAMED.format("top_logprobs")),
    "n": _only(1),
    "best_of": _only(1),
    "use_beam_search": _only(False, why="asks for beam search, which only the two completions endpoints make"),
    "beam_width": _only(),
    "length_penalty": _only(1.0),
    "early_stopping": _only(False),
    "prompt_logprobs": _only(),
    "return_token_ids": _only(False),
    "include_reasoning": _only(True, why=_UNPARSED),
    "separate_reasoning": _only(True, why=_UNPARSED),
    "stream_reasoning": _only(True, why=_UNPARSED),
    "reasoning_format": _only("auto", why=_UNPARSED),
}

REASONING_FIELDS: Final[Mapping[str, NoOp]] = {
    "summary": _only("auto", why=_SUMMARY),
    "generate_summary": _only("auto", why=_SUMMARY),
    "context": _only("auto"),
    "mode": _only("standard"),
}

TEXT_FIELDS: Final[Mapping[str, NoOp]] = {"verbosity": _only("medium")}

TOOL_FIELDS: Final[Mapping[str, NoOp]] = {
    "allowed_callers": _only(["direct"], why="lists callers other than the model, which are not supported here"),
    "defer_loading": _only(False),
}

ITEM_FIELDS: Final[Mapping[str, NoOp]] = dict.fromkeys(
    ("status", "phase", "caller", "namespace", "encrypted_content"), _LABEL
)

INCLUDED: Final[Mapping[str, bool]] = {
    "message.output_text.logprobs": True,
    # Reasoning items hold their text, so that they can be sent back without it.
    "reasoning.encrypted_content": False,
}
"""Values of ``include``, and whether each has an effect. Others are about tools that OpenAI runs, and are refused."""
