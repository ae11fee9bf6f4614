"""Reads JSON text as it arrives, and passes it on as JSON that a strict parser accepts.

Models write control characters into strings, escape what needs no escaping, and leave a comma after the last item.
The text that is passed on has these corrected; anything else that is no JSON breaks the value off.
"""

from __future__ import annotations

import json
import re
from typing import Any

from engine.text.reply_formats.source import BrokenReplyError, Parse, Sink, TextSource

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[A-Za-z0-9+.\-]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_CLOSING = {"{": "}", "[": "]"}


def read_string(source: TextSource, sink: Sink) -> Parse[None]:
    """Passes on a string, which comes next, with its quotes.

    Raises:
        BrokenReplyError: the text ends within it.
    """
    sink(source.take(1))
    while True:
        if run := source.match(_STRING_RUN):
            sink(run)
        character = yield from source.peek()
        if not character:
            raise BrokenReplyError
        if character == "\\":
            source.take(1)
            sink((yield from _escape(source)))
        elif character == '"':
            sink(source.take(1))
            return
        elif character < " ":
            sink(json.dumps(source.take(1))[1:-1])


def _escape(source: TextSource) -> Parse[str]:
    """Reads what follows a backslash, and returns an escape that JSON knows."""
    character = yield from source.peek()
    if not character:
        raise BrokenReplyError
    source.take(1)
    if character in _ESCAPES:
        return "\\" + character
    if character != "u":
        return json.dumps(character, ensure_ascii=False)[1:-1] if character in "'`" else "\\\\" + _plain(character)
    digits = ""
    while len(digits) < 4 and (yield from source.peek()) in _HEX:
        digits += source.take(1)
    return f"\\u{digits}" if len(digits) == 4 else f"\\\\u{digits}"


def _plain(character: str) -> str:
    return json.dumps(character)[1:-1] if character < " " else character


def read_value(source: TextSource, sink: Sink) -> Parse[None]:
    """Passes on a value of any depth, without white space around it.

    Raises:
        BrokenReplyError: it is no JSON, or the text ends within it. The part that was passed on is a beginning of JSON.
    """
    closing: list[str] = []  # of the objects and lists that are open, innermost last
    while True:
        character = yield from source.peek()
        if character in _CLOSING:
            sink(source.take(1))
            closing.append(_CLOSING[character])
            yield from _space(source, sink)
            if (yield from source.peek()) != closing[-1]:
                if closing[-1] == "}":
                    yield from _key(source, sink)
                continue
        elif character == '"':
            yield from read_string(source, sink)
        else:
            yield from _scalar(source, sink)
        while closing:  # after a value
            space = yield from source.space()
            if (yield from source.accept(",")):
                space += "," + (yield from source.space())
                if (yield from source.peek()) == closing[-1]:
                    space = space.replace(",", "")  # a comma after the last item
            elif (yield from source.peek()) != closing[-1]:
                raise BrokenReplyError
            sink(space)
            if (yield from source.peek()) != closing[-1]:
                if closing[-1] == "}":
                    yield from _key(source, sink)
                break
            sink(source.take(1))
            closing.pop()
        if not closing:
            return


def _key(source: TextSource, sink: Sink) -> Parse[None]:
    if (yield from source.peek()) != '"':
        raise BrokenReplyError
    yield from read_string(source, sink)
    yield from _space(source, sink)
    yield from source.expect(":")
    sink(":")
    yield from _space(source, sink)


def _space(source: TextSource, sink: Sink) -> Parse[None]:
    if space := (yield from source.space()):
        sink(space)


def _scalar(source: TextSource, sink: Sink) -> Parse[None]:
    word = yield from source.run(_SCALAR)
    sink(word)
    if word not in ("true", "false", "null") and not _NUMBER.fullmatch(word):
        raise BrokenReplyError


def read_string_value(source: TextSource) -> Parse[str]:
    """Reads a string and returns what it stands for.

    Raises:
        BrokenReplyError: something else comes next.
    """
    if (yield from source.peek()) != '"':
        raise BrokenReplyError
    parts: list[str] = []
    yield from read_string(source, parts.append)
    return str(json.loads("".join(parts)))


def read_any(source: TextSource) -> Parse[Any]:
    """Reads a value and returns it."""
    parts: list[str] = []
    yield from read_value(source, parts.append)
    return json.loads("".join(parts))
