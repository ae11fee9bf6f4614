"""Reads tool calls in the notations that models use, one function for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from engine.text.reply_formats import json_text, python_calls
from engine.text.reply_formats.reply_format import CallSyntax, Notation
from engine.text.reply_formats.source import BrokenReplyError, Parse, Sink, TextSource

Begin = Callable[[str], Sink]
"""Begins a call of the tool of this name, and returns the sink for the JSON text of its arguments."""

Schemas = Mapping[str, Mapping[str, Any] | None]
"""The schemas of the tools' parameters, by the tools' names."""

_ARGUMENTS_KEYS = ("arguments", "parameters")
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_BARE = re.compile(r"[^,:{}\[\]\s]*")
_MAX_DEPTH = 100
"""Nesting of values in braces. Deeper ones break the call off."""


def read_call(source: TextSource, syntax: CallSyntax, schemas: Schemas, begin: Begin) -> Parse[None]:
    """Reads what stands between the tags of a call. The source records from the opening tag until the name is known.

    Raises:
        BrokenReplyError: it is not in the notation.
    """
    yield from source.space()
    match syntax.notation:
        case Notation.JSON_OBJECT:
            yield from _read_json(source, begin)
        case Notation.NAMED_JSON:
            yield from _read_named_json(source, syntax, begin)
        case Notation.PARAMETERS:
            yield from _read_parameters(source, syntax, schemas, begin)
        case Notation.PYTHONIC:
            yield from python_calls.read_calls(source, begin)
        case Notation.BRACES:
            yield from _read_braces(source, syntax, begin)


def _read_json(source: TextSource, begin: Begin) -> Parse[None]:
    """Reads an object with name and arguments, or several: in a list, or with semicolons between them."""
    is_list = bool((yield from source.accept("[")))
    yield from source.space()
    while True:
        yield from _read_json_object(source, begin)
        yield from source.space()
        source.start_recording()
        if not (yield from source.accept("," if is_list else ";")):
            break
        yield from source.space()
    if is_list:
        yield from source.expect("]")
    source.stop_recording()


def _read_json_object(source: TextSource, begin: Begin) -> Parse[None]:
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
    if first not in ('"', "n"):
        raise BrokenReplyError
    value = yield from json_text.read_any(source)
    if isinstance(value, str):
        try:
            value = json.loads(value or "null")
        except (ValueError, RecursionError):
            raise BrokenReplyError from None
    if value is not None and not isinstance(value, dict):
        raise BrokenReplyError
    sink(json.dumps(value or {}, ensure_ascii=False))


def _read_name(source: TextSource, syntax: CallSyntax) -> Parse[str]:
    yield from source.expect(syntax.name.open)
    name = yield from source.run(_NAME)
    if not name or not (yield from source.peek()):  # the reply ends within the name, perhaps
        raise BrokenReplyError
    return name


def _read_named_json(source: TextSource, syntax: CallSyntax, begin: Begin) -> Parse[None]:
    """Reads the name and a JSON object; or, as older models of the same families write it, a list of JSON objects."""
    if (yield from source.next_is("[", "{")):
        yield from _read_json(source, begin)
        return
    name = yield from _read_name(source, syntax)
    if (yield from source.accept("[CALL_ID]")):
        yield from source.run(_NAME)
    yield from source.space()
    yield from source.accept(syntax.name.close)
    yield from source.space()
    yield from read_arguments(source, begin(name))
    yield from source.space()
    yield from source.expect(syntax.arguments_close)


def _read_parameters(source: TextSource, syntax: CallSyntax, schemas: Schemas, begin: Begin) -> Parse[None]:
    """Reads the name, then keys and values in tags. A value is JSON, or a text that the tool's schema says is one."""
    name = yield from _read_name(source, syntax)
    yield from source.expect(syntax.name.close)
    sink = begin(name)
    properties = (schemas.get(name) or {}).get("properties", {})
    before = "{"
    while True:
        yield from source.space()
        if not (yield from source.accept(syntax.key.open)):
            break
        key: list[str] = []
        if not (yield from source.until((syntax.key.close,), key.append)):
            raise BrokenReplyError
        if syntax.value.open:
            yield from source.space()
            yield from source.expect(syntax.value.open)
        word = "".join(key).strip()
        sink(f"{before}{json.dumps(word, ensure_ascii=False)}: ")
        before = ", "
        schema = properties.get(word) if isinstance(properties, Mapping) else None
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        yield from _read_parameter(source, syntax.value.close, sink, is_text=kind == "string")
    yield from source.expect(syntax.arguments_close)
    sink("{}" if before == "{" else "}")


def _read_parameter(source: TextSource, close: str, sink: Sink, *, is_text: bool) -> Parse[None]:
    """Passes on a value as JSON, without the line break after its opening and before its closing tag."""
    yield from source.accept("\n")
    held = ""

    def add_text(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        sink(json.dumps(text[: len(text) - len(held)], ensure_ascii=False)[1:-1])

    if is_text:
        sink('"')
        found = yield from source.until((close,), add_text)
        if found:
            sink('"')
    else:
        parts: list[str] = []
        found = yield from source.until((close,), parts.append)
        text = "".join(parts)
        sink(_as_json(text.removesuffix("\n")) if found else json.dumps(text, ensure_ascii=False)[:-1])
    if not found:
        raise BrokenReplyError


def _as_json(text: str) -> str:
    """Returns the text if it is JSON, Python's constants as JSON's, and any other text as a JSON string."""
    constant = {"True": "true", "False": "false", "None": "null"}.get(text.strip())
    if constant is not None:
        return constant
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _read_braces(source: TextSource, syntax: CallSyntax, begin: Begin) -> Parse[None]:
    """Reads ``call:f{a:1,b:<escape>x<escape>}``."""
    name = yield from _read_name(source, syntax)
    if (yield from source.peek()) != "{":
        raise BrokenReplyError
    yield from _read_braced(source, syntax.string, begin(name), 0)


def _read_braced(source: TextSource, quote: str, sink: Sink, depth: int) -> Parse[None]:
    """Passes on a value as JSON: an object without quotes around its keys, a list, a quoted or bare text, a number."""
    if depth > _MAX_DEPTH:
        raise BrokenReplyError
    opening = yield from source.accept("{", "[")
    if opening:
        closing = "}" if opening == "{" else "]"
        sink(opening)
        yield from source.space()
        is_first = True
        while not (yield from source.accept(closing)):
            if not is_first:
                yield from source.expect(",")
                sink(", ")
                yield from source.space()
            is_first = False
            if opening == "{":
                key = yield from source.run(_BARE)
                yield from source.space()
                yield from source.expect(":")
                sink(json.dumps(key.strip('"'), ensure_ascii=False) + ": ")
                yield from source.space()
            yield from _read_braced(source, quote, sink, depth + 1)
            yield from source.space()
        sink(closing)
    elif (yield from source.accept(quote)):
        sink('"')
        if not (yield from source.until((quote,), lambda text: sink(json.dumps(text, ensure_ascii=False)[1:-1]))):
            raise BrokenReplyError
        sink('"')
    elif (yield from source.peek()) == '"':
        yield from json_text.read_string(source, sink)
    else:
        word = yield from source.run(_BARE)
        if not word:
            raise BrokenReplyError
        sink(_as_json(word))
