"""Makes training conversations out of topics: random questions, wrapped, mistyped and followed up."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from models.guide.topics import FollowUp, GuideData, Topic, normalise

Message = dict[str, str]

_NEIGHBOURS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et", "s": "ad", "t": "ry",
    "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialogues:
    """Draws conversations. The same ``random.Random`` state draws the same conversation."""

    data: GuideData
    _held_out: frozenset[str] = field(init=False, repr=False)
    _others: Mapping[str, tuple[str, ...]] = field(init=False, repr=False)  #: word -> what also says it
    _word: re.Pattern[str] = field(init=False, repr=False)  #: finds any of those words
    _small: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        items = (*self.data.topics, *self.data.follow_ups)
        others = {word: group for group in self.data.wording.synonyms for word in group}
        longest_first = sorted(others, key=lambda word: (-len(word), word))
        fixed = {
            "_held_out": frozenset(normalise(question) for item in items for question in item.held_out),
            "_others": others,
            "_word": re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])"),
            "_small": frozenset(self.data.wording.small_words),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)  # a frozen class fills its own fields this way

    def draw(self, rng: random.Random, turns: int) -> list[Message]:
        """A conversation of ``turns`` questions and replies, with or without a system message."""
        wording = self.data.wording
        messages: list[Message] = []
        brief = rng.random() < 0.08
        if brief:
            messages.append({"role": "system", "content": rng.choice(wording.brief_systems)})
        elif rng.random() < 0.35:
            messages.append({"role": "system", "content": rng.choice(wording.plain_systems)})
        topic: Topic | None = None
        reply = ""
        for _ in range(turns):
            if rng.random() < (0.5 if topic else 0.02):
                follow_up = rng.choice(self.data.follow_ups)
                question, reply = rng.choice(follow_up.questions), follow(rng, follow_up, topic, reply)
            else:
                topic = self._topic(rng)
                question = rng.choice(topic.common if rng.random() < 0.25 else topic.questions)
                reply = topic.short if brief and topic.short else rng.choice(topic.answers)
            messages.append({"role": "user", "content": self.vary(rng, question)})
            messages.append({"role": "assistant", "content": reply})
        return messages

    def vary(self, rng: random.Random, question: str) -> str:
        """The same question as another person would type it: in other words, politer, hastier, misspelt.

        What comes out is never a held-out wording, also not by chance.
        """
        varied = self._vary(rng, question)
        return question if normalise(varied) in self._held_out else varied

    def _vary(self, rng: random.Random, question: str) -> str:
        wording = self.data.wording
        if rng.random() < 0.4:
            question = self._word.sub(lambda found: self._other(rng, found.group()), question)
        if rng.random() < 0.12:
            question = self._keywords(question)
        if rng.random() < 0.2:
            question = rng.choice(wording.openers) + question
        if rng.random() < 0.12:
            question = question.rstrip("?!. ") + rng.choice(wording.closers)
        if rng.random() < 0.25:
            question = mistype(rng, question)
        question = rng.choices(
            (question, question.lower(), question[:1].upper() + question[1:], question.upper()), (4, 3, 6, 0.4)
        )[0]
        if question[-1:].isalnum():
            question += rng.choices(("", "?", ".", "!", "??", " ?"), (5, 6, 1, 1.5, 0.3, 0.3))[0]
        return question

    def _other(self, rng: random.Random, word: str) -> str:
        return rng.choice(self._others[word]) if rng.random() < 0.5 else word

    def _keywords(self, question: str) -> str:
        """Only the words that carry the meaning, as typed into a search box; all of them when few are left."""
        kept = [word for word in question.split() if word.strip("?!.,").lower() not in self._small]
        return " ".join(kept) if len(kept) >= 2 else question

    def _topic(self, rng: random.Random) -> Topic:
        # Many wordings take more practice, but not in proportion; what people say first in every chat comes up most.
        topics = self.data.topics
        often = [2.0 if topic.area == "small_talk" else 1.0 for topic in topics]
        size = [min(max(len(topic.questions), 100), 1000) ** 0.4 for topic in topics]
        return rng.choices(topics, [one * other for one, other in zip(often, size, strict=True)])[0]


def follow(rng: random.Random, follow_up: FollowUp, topic: Topic | None, reply: str) -> str:
    """What the guide says to ``follow_up`` after it said ``reply`` about ``topic``."""
    if topic is None:
        return rng.choice(follow_up.alone)
    match follow_up.name:
        case "again":
            return reply
        case "shorter" if topic.short and topic.short != reply:
            return topic.short
        case "differently" if other := [answer for answer in topic.answers if answer != reply]:
            return rng.choice(other)
        case "why" if topic.why:
            return rng.choice(topic.why)
        case "example" if topic.example:
            return rng.choice(topic.example)
        case "more" if topic.more:
            return rng.choice(topic.more)
    return rng.choice(follow_up.fallback)


def mistype(rng: random.Random, text: str) -> str:
    """One or two slips of the finger: letters swapped, dropped, doubled or replaced by a neighbour."""
    for _ in range(rng.choice((1, 1, 2))):
        places = [i for i in range(len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
        if len(places) < 3:
            return text
        i = rng.choice(places)
        match rng.randrange(4):
            case 0:
                text = text[:i] + text[i + 1] + text[i] + text[i + 2 :]
            case 1:
                text = text[:i] + text[i + 1 :]
            case 2:
                text = text[:i] + text[i] + text[i:]
            case _:
                text = text[:i] + rng.choice(_NEIGHBOURS.get(text[i].lower(), text[i])) + text[i + 1 :]
    return text
