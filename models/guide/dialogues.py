"""Makes training conversations out of topics: random questions, wrapped, mistyped and followed up."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.guide.patterns import normalise
from models.guide.topics import OFF_TOPIC, FollowUp, GuideData, Topic

Message = dict[str, str]
OFF_TOPIC_SHARE = 0.2
SYSTEMS = 0.33  #: how often a talk has a system message
STAYS = 0.7  #: how often a question is about the reply before, where there is one
_GREETED_AGAIN = 0.12  #: how often another topic in mid-chat is one that people begin a chat with
_ASKED_AGAIN = 0.2  #: how often it is one that the talk had before
_POINTED = 0.15  #: how often a talk of several turns comes to a topic that has answers to "when should i lower it?"
_ONE_WAY = 0.25  #: how often a follow-up on such a topic is of that kind
_PRACTISED = {"example": 4.0, "shorter": 2.0, "why": 2.0}  #: follow-up -> how much more often than others it comes up
_BEGINNINGS = frozenset({"hello", "what-can-you-do", "who-are-you"})
FIRST_ANSWER = 0.5  #: how often the first answer of a topic is taken before all are drawn from alike
_OFTEN = {"small_talk": 1.5}  #: area -> how much more often than others its topics come up

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
    _chances: tuple[float, ...] = field(init=False, repr=False)  #: of each topic, and of those before it
    _beginnings: tuple[Topic, ...] = field(init=False, repr=False)
    _pointed: tuple[Topic, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        others = {word: group for group in self.data.wording.synonyms for word in group}
        longest_first = sorted(others, key=lambda word: (-len(word), word))
        fixed = {
            "_held_out": frozenset(map(normalise, self.data.kept())),
            "_others": others,
            "_word": re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])"),
            "_small": frozenset(self.data.wording.small_words),
            "_chances": chances(self.data.topics),
            "_beginnings": tuple(topic for topic in self.data.topics if topic.name in _BEGINNINGS),
            "_pointed": tuple(topic for topic in self.data.topics if topic.directions),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)  # a frozen class fills its own fields this way

    def draw(self, rng: random.Random, turns: int, systems: float = SYSTEMS, stays: float = STAYS) -> list[Message]:
        """A conversation of ``turns`` questions and replies, with or without a system message.

        A reply's ``topic`` is what the talk is about, if it is about anything yet. ``systems`` is how often there is a
        system message; one in four of them asks for brevity. ``stays`` is how often a question is about the reply
        before; the others begin another topic.
        """
        wording = self.data.wording
        messages: list[Message] = []
        brief = False
        if rng.random() < systems:
            brief = rng.random() < 0.25
            kind = wording.brief_systems if brief else wording.plain_systems
            messages.append({"role": "system", "content": rng.choice(kind)})
        topic: Topic | None = None
        told: list[Topic] = []
        reply = ""
        for _ in range(turns):
            if rng.random() < (stays if topic else 0.02):
                follow_up = self._follow_up(rng, topic)
                question, reply = rng.choice(follow_up.questions), follow(rng, follow_up, topic, reply)
            else:
                topic = self._topic(rng) if turns == 1 else self._topic_of_talk(rng, told)
                told.append(topic)
                question = ask(rng, topic)
                reply = topic.short if brief and topic.short else answer(rng, topic)
            messages.append({"role": "user", "content": self.vary(rng, question)})
            messages.append({"role": "assistant", "content": reply} | ({"topic": topic.name} if topic else {}))
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
        if rng.random() < 0.12:
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
        return rng.choices(self.data.topics, cum_weights=self._chances)[0]

    def _topic_of_talk(self, rng: random.Random, told: Sequence[Topic]) -> Topic:
        """The next topic of a talk that had those ``told``.

        In mid-chat people greet, ask what it can do, and come back to what they had: left to chance, that would
        hardly ever be practised, and the model would learn that it is no question of its own there.
        """
        kind = rng.random()
        if told and kind < _GREETED_AGAIN and self._beginnings:
            return rng.choice(self._beginnings)
        if told and kind < _GREETED_AGAIN + _ASKED_AGAIN:
            return rng.choice(told)
        if kind > 1 - _POINTED and self._pointed:
            return rng.choice(self._pointed)
        return self._topic(rng)

    def _follow_up(self, rng: random.Random, topic: Topic | None) -> FollowUp:
        """Mostly one that the topic has an answer of its own to: those are many, and each is to be learned."""
        if topic is not None and topic.directions and rng.random() < _ONE_WAY:
            return rng.choice([one for one in self.data.follow_ups if one.name in topic.directions])
        known = [one for one in self.data.follow_ups if topic is not None and topic.own_answers(one.name)]
        drawn = known if known and rng.random() < 0.8 else self.data.follow_ups
        return rng.choices(drawn, [_PRACTISED.get(one.name, 1.0) for one in drawn])[0]


def chances(topics: Sequence[Topic]) -> tuple[float, ...]:
    """How often each topic is drawn, each number with those before it added, for ``random.choices``.

    Many wordings take more practice, but not in proportion. What people say first in every chat comes up most, and
    what has nothing to do with Deskmate is a share of its own: there is no end to it.
    """
    weights = [_OFTEN.get(topic.area, 1.0) * min(max(topic.num_questions, 100), 1000) ** 0.4 for topic in topics]
    declined = sum(weight for weight, topic in zip(weights, topics, strict=True) if topic.area == OFF_TOPIC)
    known = sum(weights) - declined
    factor = OFF_TOPIC_SHARE / (1 - OFF_TOPIC_SHARE) * known / declined if declined and known else 1.0
    return tuple(
        itertools.accumulate(
            weight * (factor if topic.area == OFF_TOPIC else 1.0) for weight, topic in zip(weights, topics, strict=True)
        )
    )


def ask(rng: random.Random, topic: Topic) -> str:
    """A question about ``topic``, of each kind so often whatever their numbers: patterns make many alike."""
    known = [
        (kind, share) for kind, share in ((topic.common, 0.2), (topic.written, 0.45), (topic.filled, 0.35)) if kind
    ]
    ((kind, _share),) = rng.choices(known, [share for _, share in known])
    return rng.choice(kind)


def answer(rng: random.Random, topic: Topic) -> str:
    """One of the topic's answers; mostly the first.

    Were they all as likely, the likeliest first word of a greedy reply could belong to another topic whose chance is
    smaller, but less divided.
    """
    return topic.answers[0] if rng.random() < FIRST_ANSWER else rng.choice(topic.answers)


def follow(rng: random.Random, follow_up: FollowUp, topic: Topic | None, reply: str) -> str:
    """What the guide says to ``follow_up`` after it said ``reply`` about ``topic``."""
    if topic is None:
        return rng.choice(follow_up.alone)
    match follow_up.name:
        case "again":
            return reply
        case "differently" if other := [answer for answer in topic.answers if answer != reply]:
            return rng.choice(other)
    own = topic.own_answers(follow_up.name)
    if follow_up.name == "shorter" and reply in own:
        own = ()
    return rng.choice(own or follow_up.fallback)


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
