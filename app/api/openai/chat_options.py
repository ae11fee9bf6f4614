"""What a request asks of a reply beside its sampling: tools, thinking and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.api.openai.thinking import ThinkingSwitches
from app.api.openai.tools import ToolsInput
from engine import ChatOptions, ToolChoiceMode

OPTION_SPELLING: Final[Mapping[str, str]] = {
    "thinking": "enable_thinking",
    "max_thinking_tokens": "thinking_token_budget",
    "parse_reply": "separate_reasoning",
    "template_kwargs": "chat_template_kwargs",
}
"""Maps the names of the engine's chat options to the request's where they differ."""


class ChatOptionsInput(ThinkingSwitches, ToolsInput):
    """The tools that a reply may call, and how the model thinks."""

    def chat_options(self) -> ChatOptions:
        """Returns the options for the engine."""
        return ChatOptions(
            tools=tuple(function.for_engine() for function in self.functions),
            tool_choice=self.tool_choice or ToolChoiceMode.AUTO,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            thinking=self.thinking,
            reasoning_effort=self.effort,
            max_thinking_tokens=self.thinking_token_budget,
            stop_in_reasoning=bool(self.stop_in_reasoning),
            parse_reply=self.parses_reply,
            template_kwargs=self.chat_template_kwargs or {},
        )
