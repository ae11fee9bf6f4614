"""Refuses options of a reply that only a grammar could enforce, which the in-process engine does not write yet."""

from __future__ import annotations

from engine.chat_options import ChatOptions, NamedTool, ToolChoiceMode
from engine.errors import UnsupportedParameterError


def refuse_unenforced(options: ChatOptions | None) -> None:
    """Checks that nothing needs to be forced: a tool call, or the end of the thinking.

    Raises:
        UnsupportedParameterError: something does; names it. To ignore that would give another reply than the one asked.
    """
    if options is None:
        return
    if isinstance(options.tool_choice, NamedTool) or options.tool_choice is ToolChoiceMode.REQUIRED:
        raise UnsupportedParameterError(
            "tool_choice can only force a call with a model server (ENGINE_REMOTE_URL). Send auto, and ask for the "
            "call in the prompt."
        )
    if options.max_thinking_tokens is not None:
        raise UnsupportedParameterError(
            "max_thinking_tokens is only available with a model server (ENGINE_REMOTE_URL). Leave it out."
        )
