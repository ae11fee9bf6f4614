"""Reads the JSON values of a file one at a time: a file may hold a hundred thousand conversations.

Supports three layouts: a list of values, consecutive values (JSON Lines), and a list within an object.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from app.domain.text import clean_text
from app.errors import BrokenFile
from app.transfer.file_kinds import ACCEPTED

#: The field of Deskmate's own format that holds the list of conversations.
LIST_NAME = "conversations"

_TOO_DEEP = "the value that begins here is nested too deeply"
_PIECE = 2**20
_BEGINNING = 4096
#: Never in text: a file that is not UTF-8 and has one of these is not text in another encoding either.
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_BLANK = re.compile(r"[ \t\n\r]*")
#: The escapes that can produce characters which clean_text would change.
_UNCLEAN = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value of JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class Value:
    """A value and the line of the file on which it begins."""

    line: int
    value: Any


class JsonSource:
    """The values of a file with valid syntax.

    ``around`` is the object around the list, without the list; None if there is no such object.
    """

    def __init__(self, data: bytes, name: str) -> None:
        """Checks the file's syntax.

            Args:
                data: the file's content.
                name: the file's name, for error messages.

        Raises:
            BrokenFile: it is not valid JSON; the text names line and column.
        """
        self._name = name
        # Latin-1 maps each byte to one character: decoded as UTF-8, a single emoji would make every character take four
        # bytes. JSON's syntax is the same in both, and each value is decoded separately.
        self._text = self._utf8(data).decode("latin-1")
        self._spans: list[tuple[int, int]] = []
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
        for begin, end in self._spans:
            line += self._text.count("\n", counted, begin)
            counted = begin
            yield Value(line, self._value(begin, end))

    def _utf8(self, data: bytes) -> bytes:
        encoding = json.detect_encoding(data)
        if encoding not in ("utf-8", "utf-8-sig"):
            try:
                return data.decode(encoding).encode()
            except UnicodeError as error:
                raise BrokenFile(f"{self._name} is not text in {encoding.upper()}. Nothing was imported.") from error
        data = data.removeprefix(codecs.BOM_UTF8)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for begin in range(0, len(data), _PIECE):
            end = begin + _PIECE
            try:
                decoder.decode(data[begin:end], final=end >= len(data))
            except UnicodeDecodeError as error:
                if _CONTROL.search(data[:_BEGINNING]):
                    raise BrokenFile(f"{self._name} is not a text file. {ACCEPTED} Nothing was imported.") from error
                at = min(end, len(data)) - len(error.object) + error.start
                line = data.count(b"\n", 0, at) + 1
                raise BrokenFile(
                    f"{self._name} is not text in UTF-8: see line {line}, byte {at:,}. Nothing was imported."
                ) from error
        return data

    def _value(self, begin: int, end: int) -> Any:
        """Decodes the value in this span, whose syntax is valid."""
        text = self._text[begin:end].encode("latin-1").decode()
        value = _decoder.decode(text)
        if not _UNCLEAN.search(text):
            return value
        try:
            return _cleaned(value)
        except RecursionError:
            self._fail(begin, _TOO_DEEP)

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        assert blank is not None
        return blank.end()

    def _end(self, at: int) -> int:
        """The end of the value that begins at ``at``."""
        try:
            return _decoder.raw_decode(self._text, at)[1]
        except json.JSONDecodeError as error:
            self._fail(error.pos, error.msg[:1].lower() + error.msg[1:])
        except RecursionError:
            self._fail(at, _TOO_DEEP)
        except ValueError as error:  # too many digits, NaN
            self._fail(at, f"in the value that begins here, {error}")

    def _list(self, at: int) -> int:
        """Records the spans of the values of the list at ``at``; returns the position after it and any blanks."""
        at = self._skip(at + 1)
        if self._text[at : at + 1] == "]":
            return self._skip(at + 1)
        while True:
            begin, at = at, self._end(at)
            self._spans.append((begin, at))
            at = self._skip(at)
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
            return self._skip(at)
        self._spans = [(begin, at)]
        at = self._skip(at)
        while at < len(self._text):
            begin, at = at, self._end(at)
            self._spans.append((begin, at))
            at = self._skip(at)
        return at

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        """The object at ``at``, with None in place of the list, whose values are recorded; and its end."""
        members: dict[str, Any] = {}
        at = self._skip(at + 1)
        while self._text[at : at + 1] != "}":
            if members:
                if self._text[at : at + 1] != ",":
                    self._fail(at, "a comma or the end of the object should stand here")
                at = self._skip(at + 1)
            if self._text[at : at + 1] != '"':
                self._fail(at, "a name in double quotes should stand here")
            begin, at = at, self._end(at)
            name = self._value(begin, at)
            at = self._skip(at)
            if self._text[at : at + 1] != ":":
                self._fail(at, "a colon should stand here")
            at = self._skip(at + 1)
            if name == LIST_NAME and self._text[at : at + 1] == "[":
                self._spans = []
                members[name] = None
                at = self._list(at)
            else:
                begin, at = at, self._end(at)
                members[name] = self._value(begin, at)
                at = self._skip(at)
        return members, at + 1

    def _fail(self, at: int, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        before = self._text[self._text.rfind("\n", 0, at) + 1 : at]
        column = len(before.encode("latin-1").decode(errors="replace")) + 1
        raise BrokenFile(f"{self._name} is broken in line {line}, column {column}: {reason}. Nothing was imported.")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(name): _cleaned(item) for name, item in value.items()}
    return value
