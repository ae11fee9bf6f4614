"""Measures the guide on questions it was never trained on, and prints the table of README.md.

Every held-out wording is asked alone, greedily. A reply counts when it holds the topic's key facts *and* lies closer
to that topic's answers than to any other's (words in common), and when it ended by itself.
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

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from models.guide.dialogues import Message
from models.guide.topics import GuideData, Topic, load

HERE = Path(__file__).resolve().parent
DECLINES = "off_topic"
MOST_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to ask. ``expected``: texts of which the reply should be one, more or less."""

    group: str
    messages: tuple[Message, ...]
    topic: Topic
    expected: tuple[str, ...] = ()

    @property
    def likely(self) -> str:
        """A right reply."""
        return (self.expected or self.topic.answers)[0]


@dataclass(frozen=True, slots=True)
class Reply:
    case: Case
    text: str
    ended: bool  #: the model drew its end token within ``MOST_TOKENS``


class Judge:
    """Decides which topic a reply belongs to, by the words it shares with the known answers."""

    def __init__(self, data: GuideData) -> None:
        self._answers = [
            (topic, words(text))
            for topic in data.topics
            for text in (*topic.answers, *((topic.short,) if topic.short else ()))
        ]

    def right(self, reply: Reply) -> bool:
        """Is it on the topic, with its key facts? A refusal counts for every off-topic question."""
        said = words(reply.text)
        if reply.case.expected:
            return max(overlap(said, words(text)) for text in reply.case.expected) >= 0.8
        nearest = max(self._answers, key=lambda known: overlap(said, known[1]))[0]
        if reply.case.topic.area == DECLINES:
            return nearest.area == DECLINES
        return nearest is reply.case.topic and nearest.knows(reply.text)


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[\w./-]+", text.lower()))


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity, 0 to 1."""
    return len(one & other) / max(1, len(one | other))


def cases(data: GuideData, seed: int) -> Iterator[Case]:
    """Every held-out question alone; then each topic's own follow-ups, with held-out wordings of the follow-up."""
    rng = random.Random(seed)
    for topic in data.topics:
        group = "Off-topic questions declined" if topic.area == DECLINES else "Held-out questions answered"
        # The many filled patterns of an off-topic topic say the same thing over and over; six of them will do.
        for question in topic.held_out if len(topic.held_out) <= 6 else rng.sample(topic.held_out, 6):
            yield Case(group, ({"role": "user", "content": question},), topic)
    own = {"why": "why", "shorter": "short", "example": "example"}
    for follow_up in data.follow_ups:
        for topic in data.topics:
            if follow_up.name not in own or not (wanted := getattr(topic, own[follow_up.name])):
                continue
            expected = (wanted,) if isinstance(wanted, str) else wanted
            messages = (
                {"role": "user", "content": rng.choice(topic.questions)},
                {"role": "assistant", "content": rng.choice(topic.answers)},
                {"role": "user", "content": rng.choice(follow_up.held_out)},
            )
            yield Case(f'Follow-up "{follow_up.name}" answered', messages, topic, expected)


@torch.inference_mode()
def ask(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Case], temperature: float, batch: int
) -> Iterator[Reply]:
    """Generate a reply to each case; ``temperature`` 0 is greedy."""
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    rendered = [
        tokenizer.apply_chat_template(list(case.messages), tokenize=False, add_generation_prompt=True) for case in asked
    ]
    # A batch is done when its longest reply is: those that should be about as long are asked together.
    order = sorted(range(len(asked)), key=lambda i: (len(asked[i].messages), len(asked[i].likely), len(rendered[i])))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        inputs = tokenizer([rendered[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False)
        output = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=MOST_TOKENS,
            top_p=1.0 if temperature else None,
            top_k=0 if temperature else None,
            **sampling,
        )
        for i, row in zip(chosen, output[:, inputs.input_ids.shape[1] :], strict=True):
            ended = tokenizer.eos_token_id in row.tolist()
            yield Reply(asked[i], tokenizer.decode(row, skip_special_tokens=True), ended)


def broken(text: str, known: frozenset[str]) -> bool:
    """Is there a word nobody taught the guide, or a line said twice?"""
    lines = [line for line in text.splitlines() if len(line) > 20]
    return bool(words(text) - known) or len(lines) != len(set(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the guide on held-out questions.")
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--show-wrong", action="store_true", help="print each question that was answered wrong")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    data = load()
    judge = Judge(data)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    asked = list(cases(data, options.seed))
    greedy = ask(model, tokenizer, asked, 0.0, options.batch)
    replies = list(tqdm(greedy, total=len(asked), desc="greedy", unit="reply"))

    print("\n| Measure | Share | Asked |\n| --- | ---: | ---: |")
    for group in dict.fromkeys(case.group for case in asked):
        of_group = [reply for reply in replies if reply.case.group == group]
        row(group, sum(judge.right(reply) for reply in of_group), len(of_group))
    row("Replies that end by themselves", sum(reply.ended for reply in replies), len(replies))

    known = frozenset().union(*(words(text) for text in data.texts()))
    single = [case for case in asked if len(case.messages) == 1]
    random_draws = ask(model, tokenizer, single, 0.7, options.batch)
    drawn = list(tqdm(random_draws, total=len(single), desc="drawn", unit="reply"))
    row("Broken or repeated text at temperature 0.7", sum(broken(reply.text, known) for reply in drawn), len(drawn))
    if options.show_wrong:
        for reply in replies:
            if not (judge.right(reply) and reply.ended):
                print(f"\n[{reply.case.topic.name}] {reply.case.messages[-1]['content']}\n  -> {reply.text}")


def row(measure: str, hits: int, of: int) -> None:
    print(f"| {measure} | {100 * hits / max(1, of):.1f} % | {of} |")


if __name__ == "__main__":
    main()
