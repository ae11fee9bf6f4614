"""Questions that come of putting phrases into patterns, each made when it is asked for.

Hundreds of patterns and thousands of phrases make a million questions: as texts they would take seconds to write down
and hundreds of megabytes to keep, in each process that looks at the guide's data.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import overload

_NO_PUNCTUATION = str.maketrans(dict.fromkeys(".,!?;:\"'", " "))


def normalise(question: str) -> str:
    """Two questions that are equal after this are the same question (case and punctuation do not count)."""
    words = " ".join(question.lower().translate(_NO_PUNCTUATION).split())
    return words or question.strip()


class Patterns:
    """How people wrap a phrase, such as ``what is {}``.

    Args:
        kinds: of phrases, with the patterns that suit them.

    Raises:
        ValueError: a pattern has no place of its own for a phrase.
    """

    def __init__(self, kinds: Mapping[str, Sequence[str]]) -> None:
        self._kinds = kinds
        self._found: dict[str, tuple[tuple[str, str], ...]] = {}  # what is kept is looked for in every topic
        self._around: dict[str, set[tuple[str, str]]] = {}  # what comes before a phrase -> what comes after, the kind
        for kind, patterns in kinds.items():
            for pattern in patterns:
                words = normalise(pattern).split()
                if words.count("{}") != 1:
                    raise ValueError(f"the pattern {pattern!r} needs one {{}}, as a word of its own.")
                place = words.index("{}")
                before, after = " ".join(words[:place]), " ".join(words[place + 1 :])
                self._around.setdefault(before, set()).add((after, kind))

    def of(self, kind: str) -> Sequence[str]:
        return self._kinds[kind]

    def find(self, question: str) -> tuple[tuple[str, str], ...]:
        """Every kind and phrase of which a pattern makes this question. All of it is normalised."""
        found = self._found.get(question)
        if found is None:
            found = self._found[question] = tuple(self._find(question))
        return found

    def _find(self, question: str) -> Iterator[tuple[str, str]]:
        words = question.split()
        for start in range(len(words)):
            afters = self._around.get(" ".join(words[:start]))
            if afters is None:
                continue
            for end in range(start + 1, len(words) + 1):
                after = " ".join(words[end:])
                for kind in self._kinds:
                    if (after, kind) in afters:
                        yield kind, " ".join(words[start:end])


class Filled(Sequence[str]):
    """The questions of one topic that come of patterns.

    Args:
        patterns: of all topics.
        whole: questions whose slots were filled from lists of words; they come first.
        phrases: of the topic, by kind.
        kept: normalised questions that must not be among them.
    """

    def __init__(
        self, patterns: Patterns, whole: Sequence[str], phrases: Mapping[str, Sequence[str]], kept: Set[str]
    ) -> None:
        self.whole = whole
        self._groups = [(kind, patterns.of(kind), own) for kind, own in phrases.items()]
        sizes = [len(whole), *(len(made) * len(own) for _kind, made, own in self._groups)]
        self._starts = [0, *itertools.accumulate(sizes)]
        known = set(self.normalised_phrases())
        made = {found for question in kept for found in patterns.find(question) if found in known}
        self._left_out = sorted(place for found in made for place in self._places(*found, kept))
        self._length = self._starts[-1] - len(self._left_out)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        for left_out in self._left_out:
            place += left_out <= place
        return self._at(place)

    def _at(self, place: int) -> str:
        """With those that are left out."""
        if place < len(self.whole):
            return self.whole[place]
        number = bisect(self._starts, place) - 1
        _kind, patterns, phrases = self._groups[number - 1]
        pattern, phrase = divmod(place - self._starts[number], len(phrases))
        return patterns[pattern].format(phrases[phrase])

    def _places(self, kind: str, phrase: str, kept: Set[str]) -> Iterator[int]:
        """Where a pattern makes one of ``kept`` of this phrase."""
        for start, (own_kind, patterns, phrases) in zip(self._starts[1:], self._groups, strict=False):
            if own_kind != kind:
                continue
            for column, own in enumerate(phrases):
                if normalise(own) == phrase:
                    for row, pattern in enumerate(patterns):
                        if normalise(pattern.format(own)) in kept:
                            yield start + row * len(phrases) + column

    @property
    def phrases(self) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(own for _kind, _patterns, own in self._groups))

    def normalised_phrases(self) -> Iterator[tuple[str, str]]:
        """Each with its kind."""
        return ((kind, normalise(phrase)) for kind, _patterns, own in self._groups for phrase in own)

    def first(self, kind: str, number: int) -> list[str]:
        """The first pattern's questions, ``number`` at most."""
        return [patterns[0].format(one) for name, patterns, own in self._groups if name == kind for one in own[:number]]
