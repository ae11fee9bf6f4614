"""Splits a reply into thinking, tool calls and answer while it is written."""

from __future__ import annotations

import re
import secrets
import string
from typing import NamedTuple

from engine.outputs import ToolCallDelta
from engine.text.reply_formats import notations
from engine.text.reply_formats.notations import Schemas
from engine.text.reply_formats.reply_format import CallSyntax, ReplyFormat
from engine.text.reply_formats.source import BrokenReplyError, Parse, Sink, TextSource

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
"""Characters of a call's id. Mistral's templates take ids of nine letters and digits only; all others take any."""


class ReplyParts(NamedTuple):
    """What became certain with some more text of a reply."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class ReplyParser:
    """Splits one reply. How the text is cut into pushes does not change what all pushes together return.

    Thinking can only begin where no answer has begun, so that an answer may speak of its tags. White space around
    thinking and around calls belongs to neither and is left out; a reply without either is returned unchanged.

    A call that is not in the format stays part of the text, tags included, if the tool's name could not be read. After
    the name its deltas are on their way already: then the arguments are what the model wrote up to the closing tag or
    the end of the reply, which is no JSON, so that no client takes them for what the model meant to write.

    Args:
        reply_format: how the model writes.
        is_thinking: the prompt ends with thinking that is open.
        tools: the tools on offer, with the schemas of their parameters; without any, calls are not looked for.
    """

    def __init__(self, reply_format: ReplyFormat, *, is_thinking: bool = False, tools: Schemas | None = None) -> None:
        self._format = reply_format
        self._source = TextSource()
        self._tools = tools or {}
        self.is_thinking = is_thinking and reply_format.reasoning is not None  #: thinking is open
        self._text: list[str] = []
        self._has_text = self._has_reasoning = False
        self._space = ""  # white space at the end of the text, or of the thinking, so far
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._num_calls = 0
        self._parse = self._messages() if reply_format.has_channels else self._reply()
        next(self._parse)

    def push(self, text: str) -> ReplyParts:
        """Adds text and returns what became certain with it."""
        self._source.feed(text)
        self._advance()
        return self._pop()

    def finish(self) -> ReplyParts:
        """Returns the rest, when no more text follows."""
        self._source.has_ended = True
        self._advance()
        return self._pop()

    def _advance(self) -> None:
        try:
            next(self._parse)
        except StopIteration:
            return

    def _pop(self) -> ReplyParts:
        parts = ReplyParts(
            "".join(self._text), "".join(self._reasoning), tuple(call.delta() for call in self._calls if call.is_new)
        )
        self._text.clear()
        self._reasoning.clear()
        self._calls = [call for call in self._calls if call.is_open]
        return parts

    def _reply(self) -> Parse[None]:
        calls = self._format.calls if self._tools else None
        yield
        if not self.is_thinking:
            self._space = yield from self._source.space()
        while True:
            if self.is_thinking or (yield from self._accept_thinking()):
                yield from self._read_thinking()
            if calls is not None and (yield from self._is_bare_call(calls)):
                opened = ""
            else:
                opened = yield from self._read_text(calls)
                if not opened or calls is None:
                    if not self._num_calls:
                        self._text.append(self._space)
                    return
            yield from self._read_calls(calls, opened)
            self._space += yield from self._source.space()

    def _is_bare_call(self, calls: CallSyntax) -> Parse[bool]:
        """Whether the reply begins like a call without an opening tag."""
        may_begin = calls.starts_with and not self._has_text and not self._num_calls
        return bool(may_begin) and (yield from self._source.peek()) == calls.starts_with

    def _messages(self) -> Parse[None]:
        """Reads messages to channels (Harmony). The prompt ends within the first one's header."""
        yield
        header: list[str] = []
        if not (yield from self._source.next_is("<|", " to=")):
            yield from self._read_message("final")
        while (yield from self._source.until(("<|message|>",), header.append)):
            yield from self._read_message("".join(header))
            header.clear()
        if not self._has_text and not self._num_calls and not self._has_reasoning:
            self._add_text("".join(header))

    def _read_message(self, header: str) -> Parse[None]:
        """Reads what follows a message's header, up to the next message's."""
        recipient = _RECIPIENT.search(header)
        ends = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
        if recipient and self._tools:
            call = self._begin(recipient[1].removeprefix("functions."))
            try:
                yield from self._source.space()
                yield from notations.read_arguments(self._source, call.arguments.append)
                yield from self._source.until(ends, lambda _text: None)
            except BrokenReplyError:
                yield from self._source.until(ends, call.arguments.append)
            call.is_open = False
        elif "analysis" in header:
            self._space = "\n" if self._has_reasoning else ""
            self.is_thinking = True
            yield from self._source.until(ends, self._hold_space(self._add_reasoning))
            self.is_thinking = False
            self._space = ""
        else:
            self._space = "\n" if self._has_text else ""
            yield from self._source.until(ends, self._add_text)

    def _accept_thinking(self) -> Parse[bool]:
        tags = self._format.reasoning
        return tags is not None and bool((yield from self._source.accept(tags.open)))

    def _read_thinking(self) -> Parse[None]:
        """Reads thinking up to its closing tag, without white space around it."""
        assert self._format.reasoning is not None
        self.is_thinking = True
        yield from self._source.space()
        self._space = ""
        yield from self._source.until((self._format.reasoning.close,), self._hold_space(self._add_reasoning))
        self.is_thinking = False
        yield from self._source.space()
        self._space = ""

    def _read_text(self, calls: CallSyntax | None) -> Parse[str]:
        """Reads the answer up to a call, and returns its opening tag; empty at the end."""
        if calls is None:
            return (yield from self._source.until((), self._add_text))
        stops = tuple(filter(None, (calls.section.open, calls.tags.open)))
        return (yield from self._source.until(stops, self._hold_space(self._add_text)))

    def _add_text(self, text: str) -> None:
        if self._has_text or not self._num_calls:
            self._text.append(self._space)
        self._text.append(text)
        self._has_text = True
        self._space = ""

    def _add_reasoning(self, text: str) -> None:
        self._reasoning += (self._space, text)
        self._has_reasoning = True
        self._space = ""

    def _hold_space(self, add: Sink) -> Sink:
        """Returns a sink that passes on text, and white space only once something follows it."""

        def sink(text: str) -> None:
            kept = text.rstrip()
            if kept:
                add(kept)
            self._space += text[len(kept) :]

        return sink

    def _begin(self, name: str) -> _Call:
        call = _Call(self._num_calls, name)
        self._num_calls += 1
        self._calls.append(call)
        return call

    def _read_calls(self, calls: CallSyntax, opened: str) -> Parse[None]:
        """Reads a call, or all calls of a section, whose opening tag was read."""
        if not opened or opened != calls.section.open:
            yield from self._read_call(calls, opened)
            return
        while True:
            yield from self._source.space()
            if not (yield from self._source.accept(calls.tags.open)):
                yield from self._source.accept(calls.section.close)
                return
            yield from self._read_call(calls, calls.tags.open)

    def _read_call(self, calls: CallSyntax, opened: str) -> Parse[None]:
        before, self._space = self._space, ""
        self._source.start_recording()
        begun: list[_Call] = []

        def begin(name: str) -> Sink:
            if not opened and name not in self._tools:  # a reply that happens to be JSON
                raise BrokenReplyError
            self._source.stop_recording()
            if begun:
                begun[-1].is_open = False
            begun.append(self._begin(name))
            return begun[-1].arguments.append

        close = calls.tags.close if opened else ""
        try:
            yield from notations.read_call(self._source, calls, self._tools, begin)
            yield from self._source.space()
            if close and (yield from self._source.peek()):
                yield from self._source.expect(close)
        except BrokenReplyError:
            if self._source.is_recording:  # the name is not known
                self._space = before
                self._add_text(opened + self._source.stop_recording())
            else:
                yield from self._source.until((close,) if close else (), begun[-1].arguments.append)
        for call in begun:
            call.is_open = False


class _Call:
    """A call that is being read, with the part of its arguments that was not returned yet."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name: str | None = name  # until it is returned
        self.arguments: list[str] = []
        self.is_open = True

    @property
    def is_new(self) -> bool:
        return self.name is not None or bool(self.arguments)

    def delta(self) -> ToolCallDelta:
        """Returns what was not returned yet."""
        name, self.name = self.name, None
        arguments = "".join(self.arguments)
        self.arguments.clear()
        return ToolCallDelta(self.index, arguments, None if name is None else make_call_id(), name)


def make_call_id() -> str:
    """Makes the id of a call."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
