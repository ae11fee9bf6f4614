"""The JSON values of a file, one at a time: a file may hold a hundred thousand conversations.

Knows three layouts: a list of values, values one after the other (JSON Lines), and a list within an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from app.domain.text import clean_text
from app.errors import BrokenFile

#: Of the object around a list of conversations, the name under which the list stands in our own format.
LIST_NAME = "conversations"

_TOO_DEEP = "the value that begins here is nested too deeply"
_BLANK = re.compile(r"[ \t\n\r]*")
#: What clean_text would change can only have come into a text in one of these spellings.
_UNCLEAN = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value of JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class Value:
    """A value and the line of the file in which it begins."""

    line: int
    value: Any


class JsonSource:
    """The values of a file whose syntax is right.

    ``around`` is the object around the list, without the list; None where there is no such object.
    """

    def __init__(self, data: bytes, name: str) -> None:
        """Args:
        data: the file.
        name: what to call it where something is wrong.

        Raises:
            BrokenFile: it is no JSON; names the line and the column.
        """
        self._name = name
        self._text = self._decoded(data)
        self._spans: list[int] = []
        self.around: dict[str, Any] | None = None
        at = self._skip(0)
        if self._text[at : at + 1] == "[":
            at = self._list(at)
        elif self._text[at : at + 1] == "{":
            at = self._objects(at)
        elif at == len(self._text):
            raise BrokenFile(f"{name} is empty.")
        else:
            self._fail(at, "a list or an object should begin here")
        if at < len(self._text):
            self._fail(at, "the file should end here")

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Value]:
        line, counted = 1, 0
        for at in self._spans:
            line += self._text.count("\n", counted, at)
            counted = at
            value, end = self._value(at)
            if _UNCLEAN.search(self._text, at, end):
                try:
                    value = _cleaned(value)
                except RecursionError:
                    self._fail(at, _TOO_DEEP)
            yield Value(line, value)

    def _decoded(self, data: bytes) -> str:
        encoding = json.detect_encoding(data)
        try:
            return data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BrokenFile(
                f"{self._name} is not text in UTF-8: see line {line}, byte {error.start:,}. Nothing was imported."
            ) from error

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        assert blank is not None
        return blank.end()

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return _decoder.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            self._fail(error.pos, error.msg[:1].lower() + error.msg[1:])
        except RecursionError:
            self._fail(at, _TOO_DEEP)
        except ValueError as error:  # an endless number, NaN
            self._fail(at, f"in the value that begins here, {error}")

    def _list(self, at: int) -> int:
        """Note where the values of the list at ``at`` begin; returns what comes after it and after blanks."""
        at = self._skip(at + 1)
        if self._text[at : at + 1] == "]":
            return self._skip(at + 1)
        while True:
            self._spans.append(at)
            at = self._skip(self._value(at)[1])
            if self._text[at : at + 1] == "]":
                return self._skip(at + 1)
            if self._text[at : at + 1] != ",":
                self._fail(at, "a comma or the end of the list should stand here")
            at = self._skip(at + 1)

    def _objects(self, at: int) -> int:
        begin = at
        around, at = self._object(at)
        if LIST_NAME in around and "format" in around:
            del around[LIST_NAME]
            self.around = around
            return at
        self._spans = [begin]
        while at < len(self._text):
            self._spans.append(at)
            at = self._skip(self._value(at)[1])
        return at

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        """The object at ``at``, of the list in it only that it is there; and what comes after it and after blanks."""
        members: dict[str, Any] = {}
        at = self._skip(at + 1)
        while self._text[at : at + 1] != "}":
            if members:
                if self._text[at : at + 1] != ",":
                    self._fail(at, "a comma or the end of the object should stand here")
                at = self._skip(at + 1)
            if self._text[at : at + 1] != '"':
                self._fail(at, "a name in double quotes should stand here")
            name, at = self._value(at)
            at = self._skip(at)
            if self._text[at : at + 1] != ":":
                self._fail(at, "a colon should stand here")
            at = self._skip(at + 1)
            if name == LIST_NAME and self._text[at : at + 1] == "[":
                self._spans = []
                members[name] = None
                at = self._list(at)
            else:
                members[name], at = self._value(at)
                at = self._skip(at)
        return members, self._skip(at + 1)

    def _fail(self, at: int, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        raise BrokenFile(f"{self._name} is broken in line {line}, column {column}: {reason}. Nothing was imported.")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(name): _cleaned(item) for name, item in value.items()}
    return value
