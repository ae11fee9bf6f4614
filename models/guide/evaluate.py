"""Measures the guide on questions it was never trained on, and prints the table of README.md.

Every held-out wording is asked alone, greedily; some are asked again after a talk about other things. A reply counts
when it holds the topic's key facts *and* lies closer to that topic's answers than to any other's (words in common),
and when it ended by itself.

The target for off-topic questions (90 %) is decided by all that are asked here, 214 of them; a part is too few.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from anywhere

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine import Engine, EngineSettings, FinishReason, SamplingParams
from models.guide.dialogues import Message, answer
from models.guide.dialogues import ask as question_about
from models.guide.topics import OFF_TOPIC, GuideData, Topic, load

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 400
DIRECTIONS = ("raise", "lower", "enable", "disable", "avoid")
_TURNS_BEFORE = (5, 6, 7)  # a question in mid-chat
_MID_CHAT_CASES = 200  # of held-out questions; half as many of topics that come back
_CONTEXTS = 5  # talks before which each greeting is asked


@dataclass(frozen=True, slots=True)
class EvaluationCase:
    """One thing to ask. ``expected``: texts of which the reply should be one, more or less."""

    group: str
    messages: tuple[Message, ...]
    topic: Topic
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluatedReply:
    case: EvaluationCase
    text: str
    ended: bool  #: the model drew its end token within ``MAX_TOKENS``


class Judge:
    """Decides which topic a reply belongs to, by the words it shares with the known answers."""

    def __init__(self, data: GuideData) -> None:
        self._answers = [
            (topic, words(text))
            for topic in data.topics
            for text in (*topic.answers, *((topic.short,) if topic.short else ()))
        ]

    def right(self, reply: EvaluatedReply) -> bool:
        """Is it on the topic, with its key facts? A refusal counts for every off-topic question."""
        said = words(reply.text)
        if reply.case.expected:
            return max(overlap(said, words(text)) for text in reply.case.expected) >= 0.8
        nearest = max(self._answers, key=lambda known: overlap(said, known[1]))[0]
        if reply.case.topic.area == OFF_TOPIC:
            return nearest.area == OFF_TOPIC
        return nearest is reply.case.topic and nearest.knows(reply.text)


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[\w./-]+", text.lower()))


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity, 0 to 1."""
    return len(one & other) / max(1, len(one | other))


def cases(data: GuideData, seed: int) -> Iterator[EvaluationCase]:
    """Every held-out question alone, and strangers' ones; then each topic's own follow-ups, in held-out wordings."""
    rng = random.Random(seed)
    for topic in data.topics:
        group = "Off-topic questions declined" if topic.area == OFF_TOPIC else "Held-out questions answered"
        # The many filled patterns of an off-topic topic say the same thing over and over; six of them will do.
        for question in topic.held_out if len(topic.held_out) <= 6 else rng.sample(topic.held_out, 6):
            yield EvaluationCase(group, (user(question),), topic)
    for topic in data.topics:
        for question in data.strangers.get(topic.name, ()):
            yield EvaluationCase("Strangers' questions answered", (user(question),), topic)
    declining = next(topic for topic in data.topics if topic.area == OFF_TOPIC)  # any of them will do
    for question in data.strangers.get(OFF_TOPIC, ()):
        yield EvaluationCase("Strangers' off-topic questions declined", (user(question),), declining)
    for follow_up in data.follow_ups:
        for topic in data.topics:
            if follow_up.name not in ("why", "shorter", "example") or not (
                expected := topic.own_answers(follow_up.name)
            ):
                continue
            messages = (
                user(question_about(rng, topic)),
                assistant(rng.choice(topic.answers)),
                user(rng.choice(follow_up.held_out)),
            )
            yield EvaluationCase(f'Follow-up "{follow_up.name}" answered', messages, topic, expected)


def mid_chat_cases(data: GuideData, seed: int) -> Iterator[EvaluationCase]:
    """Greetings, held-out questions and topics that come back, each after five to seven turns of other things."""
    rng = random.Random(seed)
    topics = {topic.name: topic for topic in data.topics}
    for name, questions in data.held_out["mid_chat"].items():
        for question in questions:
            for _ in range(_CONTEXTS):
                talk = unrelated_talk(rng, data, topics[name])
                yield EvaluationCase(
                    "Greeting or ability question in mid-chat answered", (*talk, user(question)), topics[name]
                )
    known = [(topic, one) for topic in data.topics if topic.area != OFF_TOPIC for one in topic.held_out]
    for topic, question in rng.sample(known, _MID_CHAT_CASES):
        yield EvaluationCase(
            "Held-out question in mid-chat answered", (*unrelated_talk(rng, data, topic), user(question)), topic
        )
    for topic, question in rng.sample(known, _MID_CHAT_CASES // 2):
        first = (user(question_about(rng, topic)), assistant(answer(rng, topic)))
        yield EvaluationCase(
            "Topic that comes back in mid-chat answered",
            (*first, *unrelated_talk(rng, data, topic), user(question)),
            topic,
        )


def opposite_cases(data: GuideData, seed: int) -> Iterator[EvaluationCase]:
    """Follow-ups that point one way, each of a topic that answers the other way otherwise; and negated questions."""
    rng = random.Random(seed)
    follow_ups = [follow_up for follow_up in data.follow_ups if follow_up.name in DIRECTIONS]
    for topic in data.topics:
        for follow_up in follow_ups:
            if own := topic.own_answers(follow_up.name):
                before = (user(question_about(rng, topic)), assistant(answer(rng, topic)))
                question = user(rng.choice(follow_up.held_out))
                yield EvaluationCase("Follow-up that points one way answered", (*before, question), topic, own)
    topics = {topic.name: topic for topic in data.topics}
    for name, questions in data.held_out["negated"].items():
        for negated in questions:
            yield EvaluationCase("Negated question answered", (user(negated),), topics[name])


def unrelated_talk(rng: random.Random, data: GuideData, topic: Topic) -> list[Message]:
    """Some turns about anything but ``topic``; now and then one goes on with the topic before it."""
    others = [other for other in data.topics if other is not topic]
    talk: list[Message] = []
    about = rng.choice(others)
    for turn in range(rng.choice(_TURNS_BEFORE)):
        own = [one for one in data.follow_ups if about.own_answers(one.name)]
        if turn and own and rng.random() < 0.25:
            follow_up = rng.choice(own)
            talk += [user(rng.choice(follow_up.questions)), assistant(rng.choice(about.own_answers(follow_up.name)))]
        else:
            about = rng.choice(others)
            talk += [user(question_about(rng, about)), assistant(answer(rng, about))]
    return talk


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def ask(
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    asked: Sequence[EvaluationCase],
    temperature: float,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[EvaluatedReply]:
    """The reply to each case, through Deskmate's own engine; each has its own seed, and no filter is on unless said."""
    prompts = [
        tokenizer.apply_chat_template(list(case.messages), add_generation_prompt=True).input_ids for case in asked
    ]
    params = [
        SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=MAX_TOKENS, seed=number)
        for number in range(len(asked))
    ]
    completions = engine.generate(prompts, params)
    return [
        EvaluatedReply(case, completion.text, completion.finish_reason is FinishReason.STOP)
        for case, completion in zip(asked, completions, strict=True)
    ]


def broken(text: str, known: frozenset[str]) -> bool:
    """Is there a word nobody taught the guide, or a line said twice?"""
    lines = [line for line in text.splitlines() if len(line) > 20]
    return bool(words(text) - known) or len(lines) != len(set(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the guide on held-out questions.")
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16", help="that the engine computes in")
    parser.add_argument("--show-wrong", action="store_true", help="print each question that was answered wrong")
    options = parser.parse_args()

    data = load()
    judge = Judge(data)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    asked = [one for made in (cases, mid_chat_cases, opposite_cases) for one in made(data, options.seed)]
    engine = Engine(EngineSettings(model=str(options.model), dtype=options.dtype))
    replies = ask(engine, tokenizer, asked, 0.0)

    print("\n| Measure | Share | Asked |\n| --- | ---: | ---: |")
    for group in dict.fromkeys(case.group for case in asked):
        of_group = [reply for reply in replies if reply.case.group == group]
        row(group, sum(judge.right(reply) for reply in of_group), len(of_group))
    row("Replies that end by themselves", sum(reply.ended for reply in replies), len(replies))

    # As the page draws before anybody moves a control (generation_config.json).
    for group in ("Greeting or ability question in mid-chat answered", "Follow-up that points one way answered"):
        drawn_cases = [case for case in asked if case.group == group]
        drawn = ask(engine, tokenizer, drawn_cases, 0.6, top_p=0.9, top_k=40)
        row(f"{group}, drawn at temperature 0.6", sum(map(judge.right, drawn)), len(drawn))
    known = frozenset().union(*(words(text) for text in data.texts()))
    single = [case for case in asked if len(case.messages) == 1]
    drawn = ask(engine, tokenizer, single, 0.7)
    row("Broken or repeated text at temperature 0.7", sum(broken(reply.text, known) for reply in drawn), len(drawn))
    hot = ask(engine, tokenizer, single, 1.2, top_p=0.9, top_k=40)  # the filters that the panel begins with
    sober = [reply for reply in replies if len(reply.case.messages) == 1]
    other = sum(one.text != reply.text for one, reply in zip(hot, sober, strict=True))
    row("Other than the greedy reply at temperature 1.2, as the page draws", other, len(hot))
    row("Broken or repeated text then", sum(broken(reply.text, known) for reply in hot), len(hot))
    if options.show_wrong:
        for reply in replies:
            if not (judge.right(reply) and reply.ended):
                print(f"\n[{reply.case.topic.name}] {reply.case.messages[-1]['content']}\n  -> {reply.text}")


def row(measure: str, hits: int, of: int) -> None:
    print(f"| {measure} | {100 * hits / max(1, of):.1f} % | {of} |")


if __name__ == "__main__":
    main()
