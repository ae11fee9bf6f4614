"""The parser of event streams against the standard read to the letter, wherever the bytes are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.remote import sse
from engine.remote.sse import BrokenStreamError, EventParser, ServerSentEvent

LINE_ENDS = st.sampled_from(["\n", "\r", "\r\n"])
VALUES = st.one_of(
    st.sampled_from(["", " ", "  two", "a:b", "\u2028\x85\x0b\x0c\x1c", "日本", "\ufeff", "7", "٣", "a\0b"]),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8),
)
NAMES = st.sampled_from(["data", "event", "id", "retry", "", "Data", "data ", "dat", "datas", "\ufeffdata", "x"])
LINES = st.one_of(
    st.just(""),
    st.just(""),
    st.just("data"),
    VALUES,
    st.builds(lambda name, space, value: f"{name}:{space}{value}", NAMES, st.sampled_from(["", " "]), VALUES),
)
STREAMS = st.builds(
    lambda mark, lines, rest: (mark + "".join(line + end for line, end in lines) + rest).encode(),
    st.sampled_from(["", "", "\ufeff"]),
    st.lists(st.tuples(LINES, LINE_ENDS), max_size=20),
    LINES,
)


def by_the_standard(stream: bytes) -> tuple[list[ServerSentEvent], int | None]:
    """Section 9.2.6 on the whole text at once: the events, and the reconnection time."""
    *lines, _unfinished = re.split("\r\n|\n|\r", stream.decode().removeprefix("\ufeff"))
    events: list[ServerSentEvent] = []
    data = name = last_id = ""
    retry = None
    for line in lines:
        field, _, value = line.partition(":")
        value = value[1:] if value[:1] == " " else value
        if line == "":
            if data:
                events.append(ServerSentEvent(data[:-1], name or "message", last_id))
            data = name = ""
        elif field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            last_id = value
        elif field == "retry" and re.fullmatch("[0-9]{1,9}", value):
            retry = int(value)
    return events, retry


def parsed(pieces: Iterable[bytes]) -> tuple[list[ServerSentEvent], int | None]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)], parser.retry_ms


@given(STREAMS, st.data())
def test_any_stream_cut_anywhere(stream: bytes, data: st.DataObject) -> None:
    expected = by_the_standard(stream)
    assert parsed([stream]) == expected
    assert parsed(stream[at : at + 1] for at in range(len(stream))) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    assert parsed(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)) == expected


def test_an_event_is_complete_with_the_blank_line_whatever_ends_it() -> None:
    """Not a byte later: after a carriage return, the line feed that may follow could be long in coming."""
    for end in (b"\n", b"\r", b"\r\n"):
        parser = EventParser()
        assert list(parser.feed(b"data: a" + end)) == []
        assert [event.data for event in parser.feed(end[:1])] == ["a"]
        assert [event.data for event in parser.feed(end[1:] + b"data: b" + end + end)] == ["b"]
    assert list(EventParser().feed(b"data: a\n")) == []


@pytest.mark.parametrize("piece", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("stream", "fits"),
    [
        (b"data:" + b"x" * 95, True),
        (b"data:" + b"x" * 96, False),
        (b":" + b"x" * 100, False),
        (b"data:xxxxx\n" * 10, True),
        (b"data:xxxxx\n" * 11, False),
        (b"data:xxxxx\n\n" * 100, True),
        (b": ping\n" * 100, True),
    ],
)
def test_an_event_may_have_a_maximum_of_bytes(
    stream: bytes, fits: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    if fits:
        parsed(pieces)
    else:
        with pytest.raises(BrokenStreamError, match="longer than 100 bytes"):
            parsed(pieces)


def test_what_is_complete_comes_before_an_error_in_the_same_bytes() -> None:
    events = EventParser().feed(b"data: good\n\ndata: \xff\n\n")
    assert next(events).data == "good"
    with pytest.raises(BrokenStreamError, match="UTF-8"):
        next(events)
