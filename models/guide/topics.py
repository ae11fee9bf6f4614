"""Reads the guide's training text: plain YAML files that anyone can extend.

A topic is one thing the guide knows: the ways people ask for it, answers in several wordings, and what it says to
"why?", "shorter please" and "give an example". ``data/README.md`` describes every field.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from models.guide.patterns import Filled, Patterns, normalise

DATA = Path(__file__).parent / "data"
OFF_TOPIC = "off_topic"  #: the area of what has nothing to do with Deskmate

_FIELDS = {
    "topic", "ask", "names", "tasks", "held_out", "answer", "short", "why", "example", "more", "facts",
}  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same rules, ten times faster where libyaml is there
_SLOT = re.compile(r"\{(\w+)\}")
_FILLED_IN_TEXTS = 16  # of so many filled patterns, one is a text that the tokenizer learns from


class DataError(ValueError):
    """A data file says something that cannot be trained on; the message names file, topic and reason."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing the guide knows."""

    name: str
    area: str  #: the file it stands in, such as "off_topic"
    common: tuple[str, ...]  #: the few questions that people use most: the first of each kind in the file
    written: tuple[str, ...]  #: questions that were written word for word
    filled: Filled  #: questions that come of putting words into patterns
    held_out: tuple[str, ...]  #: wordings kept for the evaluation
    answers: tuple[str, ...]
    short: str | None
    why: tuple[str, ...]
    example: tuple[str, ...]
    more: tuple[str, ...]
    directions: Mapping[str, tuple[str, ...]]  #: a follow-up that points one way, such as "lower" -> answers to it
    facts: tuple[re.Pattern[str], ...]  #: each must be found in a right answer

    @property
    def num_questions(self) -> int:
        """That may be trained on."""
        return len(self.written) + len(self.filled)

    def own_answers(self, follow_up: str) -> tuple[str, ...]:
        """What belongs to this topic alone as an answer to the follow-up of that name; empty where nothing does."""
        short = (self.short,) if self.short else ()
        known = {"why": self.why, "shorter": short, "example": self.example, "more": self.more}
        return known.get(follow_up) or self.directions.get(follow_up, ())

    def knows(self, reply: str) -> bool:
        """Does ``reply`` contain every key fact of this topic?"""
        return all(fact.search(reply) for fact in self.facts)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A short question about the reply before, such as "why?"."""

    name: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    fallback: tuple[str, ...]  #: what to say where the topic has no answer of its own
    alone: tuple[str, ...]  #: what to say when there was no reply before


@dataclass(frozen=True, slots=True)
class Wording:
    """How people wrap a question, whatever it is about."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    synonyms: tuple[tuple[str, ...], ...]  #: words of one group may stand for each other in any question
    small_words: tuple[str, ...]  #: words that a hasty person leaves out
    plain_systems: tuple[str, ...]
    brief_systems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GuideData:
    topics: tuple[Topic, ...]
    follow_ups: tuple[FollowUp, ...]
    wording: Wording
    strangers: Mapping[str, tuple[str, ...]]  #: kept for the evaluation too: a topic's name, or OFF_TOPIC -> questions
    held_out: Mapping[str, Mapping[str, tuple[str, ...]]]  #: what is hard about them -> a topic's name -> questions

    def kept(self) -> Iterator[str]:
        """Every question for the evaluation alone."""
        for topic in self.topics:
            yield from topic.held_out
        for follow_up in self.follow_ups:
            yield from follow_up.held_out
        for by_topic in (self.strangers, *self.held_out.values()):
            for questions in by_topic.values():
                yield from questions

    def texts(self) -> list[str]:
        """What the guide may read or write, each text once, in a fixed order; none that is held out.

        Of questions made from patterns a part stands for all, or the few words of the patterns would drown the others.
        """
        texts: dict[str, None] = {}
        for topic in self.topics:
            short = (topic.short,) if topic.short else ()
            some = topic.filled[::_FILLED_IN_TEXTS]
            for group in (
                topic.written,
                some,
                topic.filled.phrases,
                topic.answers,
                short,
                topic.why,
                topic.example,
                topic.more,
                *topic.directions.values(),
            ):
                texts.update(dict.fromkeys(group))
        for follow_up in self.follow_ups:
            texts.update(dict.fromkeys((*follow_up.questions, *follow_up.fallback, *follow_up.alone)))
        wording = self.wording
        for group in (
            wording.openers,
            wording.closers,
            *wording.synonyms,
            wording.plain_systems,
            wording.brief_systems,
        ):
            texts.update(dict.fromkeys(group))
        return list(texts)


def load(data: Path = DATA) -> GuideData:
    """Read and check every data file.

    Raises:
        DataError: a field is missing or unknown, or one question stands in two topics.
    """
    wording = _read(data / "wording.yaml")
    try:
        patterns = Patterns({kind: _texts(wording[kind]) for kind in ("names", "tasks")})
    except ValueError as error:
        raise DataError(f"wording.yaml: {error}") from error
    systems = _read(data / "systems.yaml")
    words = _read(data / "words.yaml")
    strangers = _questions(_read(data / "strangers.yaml"))
    held_out = {kind: _questions(by_topic) for kind, by_topic in _read(data / "held_out.yaml").items()}
    evaluated = (strangers, *held_out.values())
    kept = {normalise(one) for by_topic in evaluated for questions in by_topic.values() for one in questions}
    directions = {
        name: {direction: _texts(answers) for direction, answers in entry.items()}
        for name, entry in _read(data / "directions.yaml").items()
    }
    topics: list[Topic] = []
    for file in sorted((data / "topics").glob("*.yaml")):
        for entry in _read(file):
            topics.append(_topic(entry, file, patterns, wording, words, kept, directions.get(entry.get("topic"), {})))
    follow_ups = tuple(
        FollowUp(
            name=name,
            questions=_texts(entry["ask"]),
            held_out=_texts(entry["held_out"]),
            fallback=_texts(entry.get("fallback")),
            alone=_texts(entry["alone"]),
        )
        for name, entry in _read(data / "follow_ups.yaml").items()
    )
    _refuse_duplicates(topics, follow_ups, patterns)
    named = {topic.name for topic in topics}
    for file_name, names, known in (
        ("strangers.yaml", strangers.keys(), {OFF_TOPIC, *named}),
        ("held_out.yaml", {name for by_topic in held_out.values() for name in by_topic}, named),
        ("directions.yaml", directions.keys(), named),
    ):
        if unknown := names - known:
            raise DataError(f"{file_name}: {sorted(unknown)} are no topics.")
    pointed = {direction for entry in directions.values() for direction in entry}
    if unknown := pointed - {follow_up.name for follow_up in follow_ups}:
        raise DataError(f"directions.yaml: {sorted(unknown)} are no follow-ups.")
    return GuideData(
        strangers=strangers,
        held_out=held_out,
        topics=tuple(topics),
        follow_ups=follow_ups,
        wording=Wording(
            openers=_texts(wording["openers"]),
            closers=_texts(wording["closers"]),
            synonyms=tuple(_texts(group) for group in wording["synonyms"]),
            small_words=_texts(wording["small_words"]),
            plain_systems=_texts(systems["plain"]),
            brief_systems=_texts(systems["brief"]),
        ),
    )


def _topic(
    entry: Mapping[str, Any],
    file: Path,
    patterns: Patterns,
    wording: Mapping[str, Any],
    words: Mapping[str, Any],
    kept: Set[str],
    directions: Mapping[str, tuple[str, ...]],
) -> Topic:
    """``kept``: normalised questions that no topic may be trained on."""
    name = entry.get("topic")
    where = f"{file.name}, topic {name!r}"
    if unknown := set(entry) - _FIELDS:
        raise DataError(f"{where}: unknown field {sorted(unknown)}; known are {sorted(_FIELDS)}.")
    if missing := {"topic", "held_out", "answer", "facts"} - set(entry):
        raise DataError(f"{where}: {sorted(missing)} missing.")
    names, tasks, ask = (_texts(entry.get(key)) for key in ("names", "tasks", "ask"))
    held_out = [
        *_expand(_texts(entry["held_out"]), words, "held_out", where),
        *(pattern.format(phrase) for pattern in wording["held_out_names"] for phrase in names[:1]),
        *(pattern.format(phrase) for pattern in wording["held_out_tasks"] for phrase in tasks[:1]),
    ]
    kept = kept | {normalise(question) for question in held_out}
    literal = [question for question in ask if not _SLOT.search(question)]
    slotted = _expand([question for question in ask if _SLOT.search(question)], words, "train", where)
    written = _trainable(literal, kept)
    filled = Filled(patterns, _trainable(slotted, kept), {"names": names, "tasks": tasks}, kept)
    if not written and not filled:
        raise DataError(f"{where}: no question left to train on.")
    common = (*_expand(ask[:3], words, "train", where)[:3], *filled.first("names", 3), *filled.first("tasks", 3))
    short = _texts(entry.get("short"))
    return Topic(
        name=str(name),
        area=file.stem,
        common=_trainable(common, kept),
        written=written,
        filled=filled,
        held_out=tuple(dict.fromkeys(held_out)),
        answers=_texts(entry["answer"]),
        short=short[0] if short else None,
        why=_texts(entry.get("why")),
        example=_texts(entry.get("example")),
        more=_texts(entry.get("more")),
        directions=directions,
        facts=tuple(re.compile(rf"(?<!\w)(?:{fact})", re.IGNORECASE) for fact in _texts(entry["facts"])),
    )


def _expand(patterns: Iterable[str], words: Mapping[str, Any], part: str, where: str) -> list[str]:
    """Fill the slots of each pattern, such as ``{dish}``, with every word of that list in words.yaml."""
    filled: list[str] = []
    for pattern in patterns:
        slots = list(dict.fromkeys(_SLOT.findall(pattern)))
        if unknown := [slot for slot in slots if slot not in words]:
            raise DataError(f"{where}: {pattern!r} uses {unknown}, which words.yaml does not have.")
        for chosen in itertools.product(*(_texts(words[slot][part]) for slot in slots)):
            filled.append(pattern.format(**dict(zip(slots, chosen, strict=True))))
    return filled


def _trainable(questions: Iterable[str], kept: Set[str]) -> tuple[str, ...]:
    """Each question once, in the first way it is written, without those that are held out."""
    wordings: dict[str, str] = {}
    for question in questions:
        if (key := normalise(question)) not in kept:
            wordings.setdefault(key, question)
    return tuple(wordings.values())


def _refuse_duplicates(topics: Sequence[Topic], follow_ups: Sequence[FollowUp], patterns: Patterns) -> None:
    """What is written out must not be another's, nor what a pattern makes of another's phrase.

    That two patterns make the same of two phrases is left to a test: looking for it takes longer than all the rest.
    """
    phrases: dict[tuple[str, str], str] = {}
    literals: list[tuple[str, str]] = []  # question, whose
    for topic in topics:
        for kind, phrase in topic.filled.normalised_phrases():
            if (other := phrases.setdefault((kind, phrase), topic.name)) != topic.name:
                raise _stands_twice(patterns.of(kind)[0].format(phrase), other, topic.name)
            literals.append((phrase, topic.name))
        questions = (*topic.written, *topic.filled.whole, *topic.held_out)
        literals += ((normalise(question), topic.name) for question in questions)
    for follow_up in follow_ups:
        questions = (*follow_up.questions, *follow_up.held_out)
        literals += ((normalise(question), follow_up.name) for question in questions)
    owner: dict[str, str] = {}
    for question, name in literals:
        known = [owner.get(question), *(phrases.get(found) for found in patterns.find(question))]
        for found in known:
            if found not in (None, name):
                raise _stands_twice(question, found, name)
        owner[question] = name


def _stands_twice(question: str, one: str | None, other: str) -> DataError:
    return DataError(f"the question {question!r} stands in two topics: {one!r} and {other!r}.")


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _questions(by_topic: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: _texts(questions) for name, questions in by_topic.items()}


def _texts(value: Any) -> tuple[str, ...]:
    """One text or a list of them; YAML's own idea of ``yes`` or ``123`` is refused, not guessed."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    for text in value:
        if not isinstance(text, str) or not text:
            raise DataError(f"{text!r} is not a text; put it in quotes.")
    return tuple(value)
