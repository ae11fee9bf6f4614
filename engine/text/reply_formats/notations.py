"""Reads tool calls in the notations that models use, one function for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.text.reply_formats import json_text
from engine.text.reply_formats.reply_format import CallSyntax, Notation
from engine.text.reply_formats.source import BrokenReplyError, Parse, Sink, TextSource

Begin = Callable[[str], Sink]
"""Begins a call of the tool of this name, and returns the sink for the JSON text of its arguments."""

_ARGUMENTS_KEYS = ("arguments", "parameters")


def read_call(source: TextSource, syntax: CallSyntax, begin: Begin) -> Parse[None]:
    """Reads what stands between the tags of a call. The source records from the opening tag until the name is known.

    Raises:
        BrokenReplyError: it is not in the notation.
    """
    yield from source.space()
    yield from _READERS[syntax.notation](source, syntax, begin)


def _read_json(source: TextSource, _syntax: CallSyntax, begin: Begin) -> Parse[None]:
    """Reads an object with name and arguments, or a list of these."""
    if not (yield from source.accept("[")):
        yield from read_json_object(source, begin)
        return
    yield from source.space()
    while True:
        yield from read_json_object(source, begin)
        yield from source.space()
        source.start_recording()
        if not (yield from source.accept(",")):
            yield from source.expect("]")
            return
        yield from source.space()


def read_json_object(source: TextSource, begin: Begin) -> Parse[None]:
    """Reads ``{"name": "f", "arguments": {"a": 1}}``, with the keys in any order, other keys left out."""
    yield from source.expect("{")
    arguments: Sink | None = None
    early: list[str] = []  # arguments that came before the name
    has_arguments = False
    yield from source.space()
    while not (yield from source.next_is("}")):
        key = yield from json_text.read_string_value(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        if key == "name" and arguments is None:
            arguments = begin((yield from json_text.read_string_value(source)))
            arguments("".join(early))
        elif key in _ARGUMENTS_KEYS and not has_arguments:
            has_arguments = True
            yield from read_arguments(source, early.append if arguments is None else arguments)
        else:
            yield from json_text.read_any(source)
        yield from source.space()
        if not (yield from source.accept(",")):
            break
        yield from source.space()
    if arguments is None:
        raise BrokenReplyError
    if not has_arguments:
        arguments("{}")
    if (yield from source.peek()) == "}":  # small models forget the last brace when the arguments end with one
        source.take(1)


def read_arguments(source: TextSource, sink: Sink) -> Parse[None]:
    """Reads the arguments: an object, null for none, or a string that holds the JSON text of an object."""
    first = yield from source.peek()
    if first == "{":
        yield from json_text.read_value(source, sink)
        return
    value: Any = None
    if first in ('"', "n"):
        value = yield from json_text.read_any(source)
        if isinstance(value, str):
            try:
                value = json.loads(value or "null")
            except ValueError:
                raise BrokenReplyError from None
    if value is not None and not isinstance(value, dict):
        raise BrokenReplyError
    if value is None and first != "n" and first != '"':
        raise BrokenReplyError
    sink(json.dumps(value or {}, ensure_ascii=False))


_READERS: dict[Notation, Callable[[TextSource, CallSyntax, Begin], Parse[None]]] = {Notation.JSON_OBJECT: _read_json}
