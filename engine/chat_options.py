"""What a request asks of a reply beside its sampling: tools that the model may call, and how it thinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call, as chat templates render it.

    Args:
        name: letters, digits, underscores, dots and hyphens.
        description: when to call it, for the model.
        parameters: JSON Schema of its arguments, an object; None takes no arguments.
        strict: arguments are held to the schema by a grammar.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a reply makes."""

    id: str
    name: str
    arguments: str  #: JSON text, an object


class ToolChoiceMode(StrEnum):
    """Whether a reply calls tools."""

    NONE = "none"  #: it does not
    AUTO = "auto"  #: the model decides
    REQUIRED = "required"  #: it calls at least one


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one tool that a reply must call."""

    name: str


ToolChoice = ToolChoiceMode | NamedTool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a reply to a conversation. The defaults ask for nothing.

    Args:
        tools: offered to the model through its chat template.
        tool_choice: with NONE the tools are not rendered.
        parallel_tool_calls: the reply may call more than one tool.
        thinking: asks a model that can do both to think before it answers, or not to; None is the template's default.
        reasoning_effort: passed to templates that read it, such as ``low``.
        max_thinking_tokens: tokens after which the thinking block is closed, so that the answer begins.
        stop_in_reasoning: stop strings and forbidden words act on the thinking, too, not on the answer alone.
        parse_reply: splits the reply into thinking, tool calls and answer. False leaves the text as it is.
        template_kwargs: further variables of the chat template.
        adapter: name of the loaded LoRA adapter that replies; None for the model itself.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoiceMode.AUTO
    parallel_tool_calls: bool = True
    thinking: bool | None = None
    reasoning_effort: str | None = None
    max_thinking_tokens: int | None = None
    stop_in_reasoning: bool = False
    parse_reply: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    adapter: str | None = None
