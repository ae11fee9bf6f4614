"""Writes grammars of replies in Harmony, gpt-oss's format of messages to channels.

See https://cookbook.openai.com/articles/openai-harmony. The prompt ends with the beginning of the first header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.chat_options import Tool
from engine.text.lark import ANY_TEXT, LarkWriter

_CHANNELS = ("analysis", "commentary", "final")


def write_channel_grammar(tools: Sequence[Tool], special_tokens: Mapping[int, str], *, is_required: bool) -> str:
    """Returns the grammar of a reply that calls a tool; one call ends it.

    Args:
        tools: those that may be called.
        special_tokens: names of the format's special tokens, by id.
        is_required: the reply is a call, after thinking. Otherwise it is messages, and a call or not.
    """
    writer = LarkWriter({name: token for token, name in special_tokens.items()})
    calls = " | ".join(
        f"{writer.text(f'<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>')} "
        + writer.json({"type": "object", **(tool.parameters or {"properties": {}, "additionalProperties": False})})
        for tool in tools
    )
    if is_required:
        start = f"{write_messages(writer, ('analysis',))}? ({calls})"
    else:
        start = f"{write_messages(writer, _CHANNELS)}* ({calls} | {_last_message(writer)})"
    return "\n".join([f"start: {start}", *writer.rules])


def write_messages(writer: LarkWriter, channels: Sequence[str]) -> str:
    """Writes a message to one of the channels, up to the header of the next one, and returns its rule."""
    names = " | ".join(writer.text(channel) for channel in channels)
    opening, closing = writer.text("<|channel|>"), writer.text("<|start|>assistant")
    return writer.rule(f"{opening} ({names}) {writer.text('<|message|>')} {writer.until('<|end|>')} {closing}")


def _last_message(writer: LarkWriter) -> str:
    return writer.rule(f"{writer.text('<|channel|>final<|message|>')} {writer.rule(ANY_TEXT)}")
