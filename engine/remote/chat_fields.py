"""The body's fields for a conversation: messages, tools and thinking, as each dialect spells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.chat_options import ChatOptions, NamedTool, Tool, ToolChoiceMode
from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.interface import ChatMessage
from engine.remote.dialects import Dialect


def chat_fields(messages: Sequence[ChatMessage], options: ChatOptions, dialect: Dialect) -> dict[str, Any]:
    """Returns the body's fields for a conversation and its options.

    Raises:
        InvalidRequestError: the conversation ends with a partial reply, which the server cannot continue.
        UnsupportedParameterError: the server lacks an option; names it.
    """
    fields: dict[str, Any] = {"messages": [_message(message, dialect) for message in messages]}
    if messages[-1].get("unfinished"):
        if dialect.continuation is None:
            raise InvalidRequestError(
                f"The model server ({dialect.title}) cannot continue an unfinished reply. Regenerate it instead."
            )
        fields |= dialect.continuation
    return fields | _tool_fields(options, dialect) | _thinking_fields(options, dialect)


def _message(message: ChatMessage, dialect: Dialect) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if "name" in message:
        sent["name"] = message["name"]
    if "tool_call_id" in message:
        sent["tool_call_id"] = message["tool_call_id"]
    if calls := message.get("tool_calls"):
        sent["content"] = message["content"] or None
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    if reasoning := message.get("reasoning"):
        sent |= dict.fromkeys(dialect.message_reasoning, reasoning)
    return sent


def _tool_fields(options: ChatOptions, dialect: Dialect) -> dict[str, Any]:
    choice = options.tool_choice
    tools = options.tools
    if not tools or choice is ToolChoiceMode.NONE:  # some servers would show the model tools that it may not call
        return {}
    if isinstance(choice, NamedTool) and not dialect.named_tools:
        # The same to the model: it has one tool, and must call one.
        tools = tuple([tool for tool in tools if tool.name == choice.name])
        choice = ToolChoiceMode.REQUIRED
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if isinstance(choice, NamedTool):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not ToolChoiceMode.AUTO:
        fields["tool_choice"] = choice.value
    if not options.parallel_tool_calls:
        if not dialect.parallel_tool_calls:
            raise _unsupported("parallel_tool_calls", False, dialect)
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = dict(tool.parameters)
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _thinking_fields(options: ChatOptions, dialect: Dialect) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    if options.thinking is not None:
        # Templates read either of the two names, and ignore the other.
        kwargs |= {"enable_thinking": options.thinking, "thinking": options.thinking}
    if options.reasoning_effort is not None:
        if dialect.reasoning_effort:
            fields["reasoning_effort"] = options.reasoning_effort
        else:
            kwargs["reasoning_effort"] = options.reasoning_effort
    kwargs |= options.template_kwargs
    if kwargs and not dialect.template_kwargs:
        if options.thinking is not None:
            raise _unsupported("thinking", options.thinking, dialect)
        if options.reasoning_effort is not None and not dialect.reasoning_effort:
            raise _unsupported("reasoning_effort", options.reasoning_effort, dialect)
        raise _unsupported("template_kwargs", ", ".join(kwargs), dialect)
    if kwargs:
        fields["chat_template_kwargs"] = kwargs
    if options.max_thinking_tokens is not None:
        if not dialect.thinking_budget:
            raise _unsupported("max_thinking_tokens", options.max_thinking_tokens, dialect)
        fields |= dict.fromkeys(dialect.thinking_budget, options.max_thinking_tokens)
    if not options.parse_reply:
        if dialect.unparsed is None:
            raise _unsupported("parse_reply", False, dialect)
        fields |= dialect.unparsed
    if options.stop_in_reasoning and dialect.stop_in_reasoning:  # the others know no other way
        fields["stop_in_reasoning"] = True
    return fields


def _unsupported(name: str, value: object, dialect: Dialect) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{name} is not supported by the model server ({dialect.title}), so its value {value!r} would have no effect. "
        f"Leave {name} out."
    )
