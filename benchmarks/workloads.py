"""Defines the bench's workloads and the figures computed from the replies.

Prompts are random token ids from one ``random.Random(7)``. Engines may use their prefix caches as in normal use, so the
first token of each prompt differs between repetitions and no repetition finds an earlier one's prompt.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.peers.protocol import MARGIN, Chat, TimedReply
from benchmarks.quantiles import quantile

RunChats = Callable[[Sequence[Chat]], list[TimedReply]]
"""Runs chats on an engine and returns the timed replies."""
MetricValues = dict[str, float]
DEEP = "context of 3,900"


@dataclass(frozen=True)
class Metric:
    """One figure, a row of the table."""

    key: str
    title: str
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class Workload:
    """One workload.

    Args:
        name: name on the command line and in the table.
        measure: runs the chats and computes the figures; gets the engine's run function and the repetition's number.
        figures: the figures that are printed.
        context: tokens of the longest chat.
        chats: number of concurrent chats.
        read_at: mean context of the decodes, tokens, if the memory bandwidth bounds the figure ``decode``.
    """

    name: str
    measure: Callable[[RunChats, int], MetricValues]
    figures: tuple[Metric, ...]
    context: int
    chats: int = 1
    read_at: float | None = None


def fresh(chats: Sequence[Chat], turn: int) -> list[Chat]:
    """Returns the same chats with another first token."""
    return [replace(chat, prompt=(MARGIN + turn, *chat.prompt[1:])) for chat in chats]


def make_workloads(vocab_size: int, *, quick: bool = False) -> dict[str, Workload]:
    """Makes all workloads for a vocabulary size. The order of the random calls fixes the prompts."""
    rng = random.Random(7)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(MARGIN, vocab_size - MARGIN) for _ in range(length))

    def chat(min_prompt: int, max_prompt: int, min_reply: int, max_reply: int) -> Chat:
        return Chat(prompt(rng.randint(min_prompt, max_prompt)), rng.randint(min_reply, max_reply))

    short, long = prompt(128), prompt(1024)
    eight = [chat(32, 256, 64, 128) for _ in range(8)]
    many = [chat(32, 256, 64, 128) for _ in range(32)]
    talk, question = prompt(2000), prompt(48)
    deep = prompt(3900)
    streaming, newcomer = [prompt(64) for _ in range(4)], prompt(4000)
    if quick:
        eight = [replace(one, new_tokens=one.new_tokens // 4) for one in eight]
        many = [replace(one, new_tokens=one.new_tokens // 4) for one in many]
    alone, after = (32, 8) if quick else (128, 32)
    found = [
        _one_chat("1 chat", short, alone),
        _one_chat("prompt of 1,024", long, after),
        _many_chats("8 chats", eight),
        _many_chats("32 chats", many),
        _one_chat(DEEP, deep, 8 if quick else 48, ttft=False),
        _second_turn(talk, question),
        _long_prompt_arrives(streaming, newcomer, 48 if quick else 160),
    ]
    return {work.name: work for work in found}


def _one_chat(name: str, prompt: tuple[int, ...], new_tokens: int, *, ttft: bool = True) -> Workload:
    def measure(run: RunChats, turn: int) -> MetricValues:
        (reply,) = run(fresh([Chat(prompt, new_tokens)], turn))
        span = reply.times[-1] - reply.times[0]
        return {"ttft": 1000 * reply.first, "decode": (new_tokens - 1) / span}

    figures = [Metric("decode", "decode", "tok/s", True)]
    if ttft:
        figures.append(Metric("ttft", "first token", "ms", False))
    length = len(prompt) + new_tokens
    return Workload(name, measure, tuple(figures), length, read_at=len(prompt) + new_tokens / 2)


def _many_chats(name: str, chats: Sequence[Chat]) -> Workload:
    def measure(run: RunChats, turn: int) -> MetricValues:
        replies = run(fresh(chats, turn))
        return {
            "throughput": sum(chat.new_tokens for chat in chats) / max(reply.times[-1] for reply in replies),
            "ttft": 1000 * median(reply.first for reply in replies),
        }

    figures = (Metric("throughput", "all", "tok/s", True), Metric("ttft", "first token, median", "ms", False))
    return Workload(name, measure, figures, max(len(chat.prompt) + chat.new_tokens for chat in chats), chats=len(chats))


def _second_turn(talk: tuple[int, ...], question: tuple[int, ...]) -> Workload:
    """Asks a follow-up in a chat of 2,000 tokens: everything but the question is cached."""
    new_tokens = 16

    def measure(run: RunChats, turn: int) -> MetricValues:
        (begun,) = fresh([Chat(talk, new_tokens)], turn)
        (cold,) = run([begun])
        reply = tuple(cold.tokens)
        (warm,) = run([Chat((*begun.prompt, *reply, *question), new_tokens)])
        return {
            "ttft": 1000 * warm.first,
            "cold": 1000 * cold.first,
            "share": 100 * warm.first / cold.first,
        }

    figures = (
        Metric("ttft", "first token", "ms", False),
        Metric("share", "the same, of the first turn's", "%", False),
    )
    return Workload("second turn after 2,000", measure, figures, len(talk) + len(question) + 2 * new_tokens)


def _long_prompt_arrives(streaming: Sequence[tuple[int, ...]], newcomer: tuple[int, ...], new_tokens: int) -> Workload:
    """Sends a prompt of 4,000 tokens while other chats are decoding."""

    def measure(run: RunChats, turn: int) -> MetricValues:
        chats = [Chat(prompt, new_tokens) for prompt in streaming] + [Chat(newcomer, 4, after=new_tokens // 3)]
        *replies, late = run(fresh(chats, turn))
        return interruption(replies, late)

    figures = (
        Metric("gap", "95th percentile of the gaps", "ms", False),
        Metric("share", "the same, of those alone", "%", False),
        Metric("ttft", "first token of the long one", "ms", False),
    )
    return Workload("a prompt of 4,000 comes", measure, figures, len(newcomer) + 4, chats=len(streaming) + 1)


def interruption(replies: Sequence[TimedReply], late: TimedReply) -> MetricValues:
    """Compares the gaps between tokens during the long prompt's prefill with the gaps before it.

    A gap that overlaps the prefill counts as during it.

    Raises:
        RuntimeError: there are no gaps before, or none during, the prefill.
    """
    # Gaps before the last chat's first token are disturbed by the chats' own prefills and do not count.
    begun = max(reply.times[0] for reply in replies)
    alone: list[float] = []
    meanwhile: list[float] = []
    for reply in replies:
        for before, after in itertools.pairwise(reply.times):
            if begun <= before and after <= late.asked:
                alone.append(after - before)
            elif late.asked < after and before < late.times[0]:
                meanwhile.append(after - before)
    if not meanwhile or not alone:
        raise RuntimeError("the other chats were done before the long prompt came, or started after it")
    p95, p95_alone = quantile(meanwhile, 0.95), quantile(alone, 0.95)
    return {"gap": 1000 * p95, "alone": 1000 * p95_alone, "share": 100 * p95 / p95_alone, "ttft": 1000 * late.first}
