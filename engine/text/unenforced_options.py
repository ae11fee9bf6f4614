"""Refuses options of a reply that only a grammar could enforce, which the in-process engine does not write yet."""

from __future__ import annotations

from engine.chat_options import ChatOptions, NamedTool, ToolChoiceMode
from engine.errors import UnsupportedParameterError


def refuse_unenforced(options: ChatOptions | None) -> None:
    """Checks that no call of a tool needs to be forced.

    Raises:
        UnsupportedParameterError: one does. To ignore that would give another reply than the one asked.
    """
    if options is None:
        return
    if isinstance(options.tool_choice, NamedTool) or options.tool_choice is ToolChoiceMode.REQUIRED:
        raise UnsupportedParameterError(
            "tool_choice can only force a call with a model server (ENGINE_REMOTE_URL). Send auto, and ask for the "
            "call in the prompt."
        )
