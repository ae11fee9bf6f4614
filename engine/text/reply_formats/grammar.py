"""Writes the grammar that holds a reply to tool calls which the parser reads back, from the format's description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.chat_options import Tool
from engine.text.lark import ANY_TEXT, LarkWriter
from engine.text.reply_formats.channel_grammar import write_channel_grammar, write_messages
from engine.text.reply_formats.reply_format import CallSyntax, Notation, ReplyFormat
from engine.text.reply_formats.value_grammar import PYTHON, ValueWriter, braces

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def is_constrainable(reply_format: ReplyFormat) -> bool:
    """Whether a grammar for the format's tool calls can be written."""
    return reply_format.calls is not None or reply_format.has_channels


def write_grammar(
    reply_format: ReplyFormat,
    tools: Sequence[Tool],
    special_tokens: Mapping[int, str],
    *,
    is_thinking: bool,
    is_required: bool,
    is_parallel: bool,
) -> str:
    """Returns the grammar of a reply that calls tools.

    Args:
        reply_format: one that :func:`is_constrainable`.
        tools: those that may be called.
        special_tokens: names of the special tokens that the format is written with, by id.
        is_thinking: the prompt ends with thinking that is open.
        is_required: the reply is nothing but calls, after thinking. Otherwise it is any text, with calls in it or not.
        is_parallel: there may be several calls.

    Raises:
        ValueError: a tool's parameters cannot be written in the format; says why.
    """
    if reply_format.has_channels:
        return write_channel_grammar(tools, special_tokens, is_required=is_required)
    assert reply_format.calls is not None
    writer = _Writer(reply_format.calls, {name: token for token, name in special_tokens.items()})
    thinking = _thinking(writer, reply_format, is_thinking=is_thinking)
    call = writer.call(tools)
    start = (
        writer.required(call, is_parallel=is_parallel) if is_required else writer.free(call, is_parallel=is_parallel)
    )
    return "\n".join([f"start: {thinking}{start}", *writer.rules])


def write_thinking_before(answer: str, reply_format: ReplyFormat, special_tokens: Mapping[str, int]) -> str:
    """Returns the grammar of a reply that may think before its answer, and opens the thinking itself.

    Args:
        answer: name of the answer's grammar.
        reply_format: one that knows thinking.
        special_tokens: ids of special tokens by their names.
    """
    writer = LarkWriter(special_tokens)
    if reply_format.has_channels:
        thinking = f"{write_messages(writer, ('analysis',))}? {writer.text('<|channel|>final<|message|>')}"
    else:
        thinking = _thinking(writer, reply_format, is_thinking=False)
    return "\n".join([f"start: {thinking} @{answer}", *writer.rules])


def _thinking(writer: LarkWriter, reply_format: ReplyFormat, *, is_thinking: bool) -> str:
    """Writes the thinking before the answer."""
    tags = reply_format.reasoning
    if tags is None:
        return ""
    thoughts = f"{writer.until(tags.close)} /[ \\n]{{0,4}}/ "
    return thoughts if is_thinking else f"({writer.text(tags.open)} {thoughts})? "


class _Writer(LarkWriter):
    def __init__(self, syntax: CallSyntax, special_tokens: Mapping[str, int]) -> None:
        super().__init__(special_tokens)
        self._syntax = syntax
        self._body = ""  # the rule of what follows a call's opening tag

    def required(self, call: str, *, is_parallel: bool) -> str:
        """Writes a reply of one call, or of several."""
        syntax = self._syntax
        opening, between, closing = self.text(syntax.section.open), syntax.space, self.text(syntax.section.close)
        if self._is_list:
            opening, between, closing = f"{self.text(syntax.tags.open)} {self.text('[')}", ", ", self.text("]")
        elif syntax.notation is Notation.PYTHONIC:
            opening, between, closing = self.text("["), ", ", self.text("]")
        elif syntax.starts_with:
            between = "; "
        more = f"({self.text(between)} {call})*" if is_parallel else ""
        return f"{opening} {call} {more} {closing}"

    def free(self, call: str, *, is_parallel: bool) -> str:
        """Writes a reply of text, in which a call is held to its grammar from the opening tag on."""
        syntax = self._syntax
        opening = syntax.section.open or syntax.tags.open
        calls = self.required(call, is_parallel=is_parallel)
        rest = self.rule(ANY_TEXT)
        if opening == syntax.tags.open and not self._is_list:
            return f"({self.until(opening)} {self._body}){'*' if is_parallel else '?'} {rest}"
        # The opening tag is what ends the text before the calls.
        return f"({self.until(opening)} {calls.strip().removeprefix(self.text(opening))})? {rest}"

    def call(self, tools: Sequence[Tool]) -> str:
        """Writes a call of one of the tools, and returns its rule."""
        syntax = self._syntax
        self._body = self.rule(" | ".join(self._tool(tool) for tool in tools))
        opening = "" if self._is_list or syntax.starts_with else self.text(syntax.tags.open)
        return self.rule(f"{opening} {self._body}")

    @property
    def _is_list(self) -> bool:
        """Whether calls are written as a list of JSON objects: Mistral's older models have no token for arguments."""
        syntax = self._syntax
        return (
            syntax.notation is Notation.NAMED_JSON
            and not syntax.section.open
            and (syntax.name.close not in self.special_tokens)
        )

    def _tool(self, tool: Tool) -> str:
        """Writes what follows the opening tag of a call of this tool."""
        syntax = self._syntax
        schema: dict[str, Any] = {"type": "object", **(tool.parameters or _NO_ARGUMENTS)}
        closing = "" if syntax.starts_with else self.text(syntax.tags.close)
        if syntax.notation is Notation.JSON_OBJECT or self._is_list:
            key = syntax.arguments_key
            before = self.text(f'{{"name": {json.dumps(tool.name)}, "{key}": ')
            space = "" if self._is_list or syntax.starts_with else self.text(syntax.space)
            return self.rule(f"{space} {before} {self.json(schema)} {self.text('}')} {space} {closing}")
        name = f"{self.text(syntax.name.open)} {self.text(tool.name)}"
        if syntax.notation is Notation.BRACES:
            return self.rule(f"{name} {ValueWriter(self, braces(syntax.string), schema).arguments()} {closing}")
        if syntax.notation is Notation.PYTHONIC:
            if not all(part.isidentifier() for part in tool.name.split(".")):
                raise ValueError(f"{tool.name!r} is no name in Python, in which this model writes calls")
            arguments = ValueWriter(self, PYTHON, schema).keyword_arguments()
            return self.rule(f"{name} {self.text('(')} {arguments} {self.text(')')}")
        space = self.text(syntax.space)
        if syntax.notation is Notation.NAMED_JSON:
            after = f"{space} {self.text(syntax.arguments_close)} " if syntax.arguments_close else ""
            middle = f"{space} {self.text(syntax.name.close)} {space}"
            return self.rule(f"{name} {middle} {self.json(schema)} {after} {closing}")
        values = " ".join(self._parameters(schema))
        before = space if syntax.name.open else ""
        after = f"{self.text(syntax.arguments_close)} {space}" if syntax.arguments_close else ""
        name = f"{before} {name} {self.text(syntax.name.close)} {space}"
        return self.rule(f"{name} {values} {after} {closing}")

    def _parameters(self, schema: Mapping[str, Any]) -> list[str]:
        """Writes the arguments in the order of the schema's properties."""
        syntax = self._syntax
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        written = []
        for key, one in schema.get("properties", {}).items():
            value = one if isinstance(one, Mapping) else {}
            space = self.text(syntax.space)
            opening = f"{self.text(syntax.key.open + key + syntax.key.close)} {space} {self.text(syntax.value.open)}"
            if value.get("type") == "string" and "enum" not in value and "const" not in value:
                text = self.until(syntax.value.close)
            else:
                line_end = "" if syntax.value.open else space
                text = f"{self._value(value, shared)} {line_end} {self.text(syntax.value.close)}"
            required = key in schema.get("required", ())
            written.append(self.rule(f"{opening} {text} {space}") + ("" if required else "?"))
        return written

    def _value(self, schema: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
        if schema.get("type") == "string":  # a text without quotes
            choices = schema.get("enum", [schema.get("const")])
            return self.rule(" | ".join(self.text(str(choice)) for choice in choices))
        return self.json({**shared, **schema})
