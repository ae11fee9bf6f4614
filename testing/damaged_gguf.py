"""Damages GGUF files: every number of the header in turn, truncation at every boundary, and random bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class Span:
    """A field of the header: its meaning, and where it lies."""

    what: str
    start: int
    size: int  #: bytes


def header_spans(data: bytes) -> list[Span]:
    """Returns every field of a valid file's header, in order. Of an array's entries, only the first."""
    return list(_Walk(data).spans())


def damaged(data: bytes, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yields ``count`` damaged copies of a valid file, each with a description of the damage."""
    rng = random.Random(seed)
    spans = header_spans(data)
    end = spans[-1].start + spans[-1].size
    makers = (_overwritten, _truncated, _noisy)
    for index in range(count):
        if index % 2 == 0:  # each field in turn, with another value every time round
            yield _overwritten(data, spans[index // 2 % len(spans)], rng)
        else:
            yield (
                rng.choice(makers[1:])(data, rng.choice(spans), rng)
                if index % 4 == 1
                else _noisy_within(data, end, rng)
            )


def _overwritten(data: bytes, span: Span, rng: random.Random) -> tuple[str, bytes]:
    old = int.from_bytes(data[span.start : span.start + span.size], "little")
    most = (1 << 8 * span.size) - 1
    value = rng.choice(
        [0, 1, old + 1, max(old - 1, 0), old * 2, most, most >> 1, 1 << 31, 1 << 62, rng.randint(0, most)]
    )
    new = (value & most).to_bytes(span.size, "little")
    return f"{span.what} = {value & most}", data[: span.start] + new + data[span.start + span.size :]


def _truncated(data: bytes, span: Span, rng: random.Random) -> tuple[str, bytes]:
    end = span.start + rng.randint(0, span.size)
    return f"truncated in {span.what}", data[:end]


def _noisy(data: bytes, span: Span, rng: random.Random) -> tuple[str, bytes]:
    return f"random bytes in {span.what}", data[: span.start] + rng.randbytes(span.size) + data[
        span.start + span.size :
    ]


def _noisy_within(data: bytes, end: int, rng: random.Random) -> tuple[str, bytes]:
    copy = bytearray(data)
    places = [rng.randrange(end) for _ in range(rng.choice([1, 1, 2, 8, 64]))]
    for place in places:
        copy[place] = rng.randrange(256)
    return f"random bytes at {places[:8]}", bytes(copy)


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def spans(self) -> Iterator[Span]:
        yield self._span("magic", 4)
        yield self._span("version", 4)
        num_tensors = self._number(8)
        yield self._span("number of tensors", 8)
        num_fields = self._number(8)
        yield self._span("number of fields", 8)
        for _ in range(num_fields):
            key = self._data[self._at + 8 : self._at + 8 + self._number(8)].decode()
            yield from self._string(f"name of {key}")
            kind = self._number(4)
            yield self._span(f"type of {key}", 4)
            yield from self._value(key, kind)
        for _ in range(num_tensors):
            name = self._data[self._at + 8 : self._at + 8 + self._number(8)].decode()
            yield from self._string(f"name of {name}")
            dimensions = self._number(4)
            yield self._span(f"dimensions of {name}", 4)
            for axis in range(dimensions):
                yield self._span(f"size {axis} of {name}", 8)
            yield self._span(f"format of {name}", 4)
            yield self._span(f"position of {name}", 8)

    def _value(self, key: str, kind: int) -> Iterator[Span]:
        if kind == 8:
            yield from self._string(key)
        elif kind == 9:
            entries = self._number(4)
            yield self._span(f"type of {key}'s entries", 4)
            count = self._number(8)
            yield self._span(f"length of {key}", 8)
            for index in range(count):
                spans = list(self._value(f"entry of {key}", entries))
                if index == 0:
                    yield from spans
        else:
            yield self._span(key, _SIZES[kind])

    def _string(self, what: str) -> Iterator[Span]:
        length = self._number(8)
        yield self._span(f"length of {what}", 8)
        yield self._span(what, length)

    def _span(self, what: str, size: int) -> Span:
        span = Span(what, self._at, size)
        self._at += size
        return span

    def _number(self, size: int) -> int:
        (value,) = struct.unpack_from("<I" if size == 4 else "<Q", self._data, self._at)
        return int(value)
