"""Reads tool calls that are written as calls in Python: ``[f(a=1), g(b="x")]``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from engine.text.reply_formats.source import BrokenReplyError, Parse, Sink, TextSource

_NAME = re.compile(r"[A-Za-z0-9_.]*")
_OUTSIDE = re.compile(r"[^()\"']+")
_CONSTANTS = {"true": True, "false": False, "null": None}


def read_calls(source: TextSource, begin: Callable[[str], Sink]) -> Parse[None]:
    """Reads a list of calls. Each one is passed on when it is whole.

    Raises:
        BrokenReplyError: it is no such list.
    """
    yield from source.expect("[")
    while True:
        yield from source.space()
        name = yield from source.run(_NAME)
        if not name:
            raise BrokenReplyError
        arguments = _keywords((yield from _read_parentheses(source)))
        begin(name)(arguments)
        yield from source.space()
        source.start_recording()
        if not (yield from source.accept(",")):
            break
    yield from source.expect("]")
    source.stop_recording()


def _read_parentheses(source: TextSource) -> Parse[str]:
    """Reads from an opening parenthesis to the one that closes it."""
    yield from source.expect("(")
    parts = ["("]
    depth = 1
    while depth:
        parts.append(source.match(_OUTSIDE))
        character = yield from source.peek()
        if not character:
            raise BrokenReplyError
        if character in "\"'":
            yield from _read_string(source, parts)
        elif character in "()":
            depth += 1 if character == "(" else -1
            parts.append(source.take(1))
    return "".join(parts)


def _read_string(source: TextSource, parts: list[str]) -> Parse[None]:
    quote = source.take(1)
    parts.append(quote)
    inside = re.compile(rf"[^{quote}\\\n]+")
    while True:
        parts.append(source.match(inside))
        character = yield from source.peek()
        if not character:
            raise BrokenReplyError
        if inside.match(character):  # it arrived just now
            continue
        source.take(1)
        if character == "\\":
            following = yield from source.peek()
            parts.append("\\" + (source.take(1) if following else ""))
        elif character == "\n":
            parts.append("\\n")
        else:
            parts.append(quote)
            return


def _keywords(parentheses: str) -> str:
    """Returns the keyword arguments of a call as JSON text."""
    try:
        call = ast.parse(f"f{parentheses}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            raise BrokenReplyError
        arguments = {one.arg: _literal(one.value) for one in call.keywords}
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        raise BrokenReplyError from None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(ast.literal_eval(key)): _literal(value) for key, value in pairs if key is not None}
    return ast.literal_eval(node)
