"""What a chat template is given: messages, tools and variables, in the form that templates expect."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from engine.chat_options import ChatOptions, Tool, ToolCall, ToolChoiceMode
from engine.errors import InvalidRequestError
from engine.interface import ChatMessage

_ENGINE_FIELDS = frozenset({"token_ids", "unfinished", "shared", "tool_calls", "reasoning"})
"""Fields of a message that only this engine reads, or that templates take in another form."""

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_THINKING_VARIABLES = ("enable_thinking", "thinking")
_RESERVED = frozenset(
    {
        *("messages", "conversation", "conversations", "tools", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens"),
    }
)
"""Names that ``template_kwargs`` must not replace."""


def reasoning_fields(template: str) -> tuple[str, ...]:
    """Returns the names under which a chat template reads the thinking of earlier replies; empty if it does not."""
    return tuple(name for name in _REASONING_FIELDS if re.search(rf"[.'\"]{name}\b", template))


def has_thinking_switch(template: str) -> bool:
    """Whether a chat template reads a variable that turns thinking on and off."""
    return any(re.search(rf"(?<![\w.'\"]){name}\b(?!['\"])", template) for name in _THINKING_VARIABLES)


def reads_tools(template: str) -> bool:
    """Whether a chat template renders the tools that it is given."""
    return _reads(template, "tools")


def wants_short_ids(template: str) -> bool:
    """Whether a chat template refuses ids of calls that are not nine characters long, as Mistral's do."""
    return re.search(r"length\s*!=\s*9\b", template) is not None


def clock_formats(template: str) -> tuple[str, ...] | None:
    """Returns the formats in which a chat template writes the time; empty if it does not.

    None if the text may differ with each rendering of the same messages in some other way.
    """
    if re.search(r"\b(random|lipsum)\b", template):
        return None
    # The only clock that transformers gives a template.
    num_mentions = len(re.findall("strftime_now", template))
    num_tests = len(re.findall(r"\bstrftime_now\s+is\s+(?:not\s+)?defined\b", template))
    formats = [found[1] for found in re.findall(r"\bstrftime_now\(\s*(['\"])([^'\"\\]*)\1\s*\)", template)]
    return tuple(dict.fromkeys(formats)) if num_tests + len(formats) == num_mentions else None


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Validates messages before rendering.

    Raises:
        InvalidRequestError: no template could render them.
    """
    if not messages:
        raise InvalidRequestError("A conversation needs at least one message.")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise InvalidRequestError(f"Message {number} needs a role and a content, both text.")
        if message.get("unfinished") and (message["role"] != "assistant" or number < len(messages)):
            raise InvalidRequestError(f"Message {number} cannot be unfinished: only a reply at the end can go on.")


def template_messages(
    messages: Sequence[ChatMessage], reasoning_names: Sequence[str], *, short_ids: bool = False
) -> list[dict[str, Any]]:
    """Returns the messages as templates take them, without the fields that only this engine uses.

    Args:
        short_ids: give calls ids of nine characters; those of clients and other models may be longer.
    """
    names: dict[str, str] = {}  # of the tools, by the call's id
    plain = []
    for message in messages:
        one: dict[str, Any] = {key: value for key, value in message.items() if key not in _ENGINE_FIELDS}
        if calls := message.get("tool_calls"):
            names.update((call.id, call.name) for call in calls)
            one["tool_calls"] = [_call(call) for call in calls]
        if reasoning := message.get("reasoning"):
            one.update(dict.fromkeys(reasoning_names, reasoning))
        if message["role"] == "tool" and "name" not in one and message.get("tool_call_id") in names:
            one["name"] = names[message["tool_call_id"]]
        if short_ids:
            for call in one.get("tool_calls", ()):
                call["id"] = _short_id(call["id"])
            if isinstance(id := one.get("tool_call_id"), str):
                one["tool_call_id"] = _short_id(id)
        plain.append(one)
    return plain


def _short_id(id: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9]{9}", id):
        return id
    return hashlib.blake2b(id.encode(errors="replace"), digest_size=5).hexdigest()[:9]


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):  # the reply broke off within them
        arguments = call.arguments
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Returns tools as templates take them, which is OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _as_json(tool.parameters) if tool.parameters else {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _as_json(value: Any) -> Any:
    """Returns a copy of a JSON value in plain dictionaries and lists, which templates can write as JSON."""
    if isinstance(value, Mapping):
        return {key: _as_json(one) for key, one in value.items()}
    return [_as_json(one) for one in value] if isinstance(value, list | tuple) else value


def template_variables(options: ChatOptions, template: str) -> dict[str, Any]:
    """Returns the variables that a request sets, beside messages.

    Thinking and effort are passed to templates that read them; others have no such choice.

    Raises:
        InvalidRequestError: ``template_kwargs`` replaces what the engine passes.
    """
    if reserved := sorted(_RESERVED.intersection(options.template_kwargs)):
        raise InvalidRequestError(f"chat_template_kwargs cannot set {reserved[0]}. Leave it out.")
    variables: dict[str, Any] = {}
    thinking = options.thinking
    if thinking is None and options.reasoning_effort is not None:
        thinking = False if options.reasoning_effort == "none" else None
    if thinking is not None:
        variables.update((name, thinking) for name in _THINKING_VARIABLES if _reads(template, name))
    if options.reasoning_effort not in (None, "none") and _reads(template, "reasoning_effort"):
        variables["reasoning_effort"] = options.reasoning_effort
    variables.update((key, _as_json(value)) for key, value in options.template_kwargs.items())
    if options.tools and options.tool_choice is not ToolChoiceMode.NONE:
        variables["tools"] = template_tools(options.tools)
    return variables


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", template) is not None


def check_tools(options: ChatOptions) -> None:
    """Validates the tools of a request.

    Raises:
        InvalidRequestError: a name is malformed or given twice, parameters describe no object, or the choice names a
            tool that is not offered.
    """
    names = [tool.name for tool in options.tools]
    for tool in options.tools:
        if not re.fullmatch(r"[A-Za-z0-9_.\-]{1,64}", tool.name):
            raise InvalidRequestError(
                f"The tool name {tool.name[:64]!r} is not valid: use 1 to 64 letters, digits, underscores, dots and "
                "hyphens."
            )
        if names.count(tool.name) > 1:
            raise InvalidRequestError(f"Two tools are named {tool.name}. Give each its own name.")
        if tool.parameters and tool.parameters.get("type", "object") != "object":
            raise InvalidRequestError(f"The parameters of the tool {tool.name} must be a JSON Schema of type object.")
    chosen = options.tool_choice
    if isinstance(chosen, ToolChoiceMode):
        if chosen is ToolChoiceMode.REQUIRED and not names:
            raise InvalidRequestError("tool_choice requires a tool, but no tools are offered.")
    elif chosen.name not in names:
        raise InvalidRequestError(f"tool_choice names {chosen.name[:64]!r}, which is not among the tools offered.")


def check_names(field: str, value: Any, control_tokens: Collection[str]) -> None:
    """Refuses control tokens in the names of a JSON value's members.

    transformers' ``sanitize_control_tokens`` keeps those in texts from being read as the real ones, but not those in
    the keys of dictionaries, such as the names of a tool's parameters.

    Args:
        field: what holds the value, for the message.

    Raises:
        InvalidRequestError: a name contains one.
    """
    if isinstance(value, Mapping):
        for key, one in value.items():
            for token in control_tokens:
                if token in str(key):
                    raise InvalidRequestError(
                        f"{field} holds the name {str(key)[:64]!r}, and {token} in it is this model's control token. "
                        "Choose another name."
                    )
            check_names(field, one, control_tokens)
    elif isinstance(value, list | tuple):
        for one in value:
            check_names(field, one, control_tokens)
