"""Who asks when, and for how much: fixed by a seed before the first request is sent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

Lengths = Callable[[random.Random], int]
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True)
class PlannedRequest:
    """One request."""

    at: float  #: seconds after the load begins
    prompt: str | tuple[int, ...]
    reply_tokens: int


def lengths(text: str) -> Lengths:
    """``128``; ``32-256``, each equally likely; ``exp:200``, exponential with that mean; ``lognormal:200:0.8``, with
    that median and the spread of its logarithm.

    Raises:
        ValueError: it is none of these.
    """
    kind, *numbers = text.split(":")
    try:
        match kind, [float(number) for number in numbers]:
            case "exp", [mean] if mean >= 1:
                return lambda rng: max(1, round(rng.expovariate(1 / mean)))
            case "lognormal", [median, sigma] if median >= 1 and sigma >= 0:
                return lambda rng: max(1, round(median * rng.lognormvariate(0.0, sigma)))
            case _, []:
                low, _, high = text.partition("-")
                min_length, max_length = int(low), int(high or low)
                if 1 <= min_length <= max_length:
                    return lambda rng: rng.randint(min_length, max_length)
    except ValueError:
        pass
    raise ValueError(f"no lengths: {text}. There are: 128, 32-256, exp:200, lognormal:200:0.8")


def plan(
    rate: float,
    requests: int,
    seed: int,
    prompt_lengths: Lengths,
    reply_lengths: Lengths,
    *,
    vocab_size: int | None = None,
) -> list[PlannedRequest]:
    """Poisson arrivals: exponential gaps, of mean ``1 / rate`` seconds; all at once where the rate is infinite.

    For every rate a seed gives the same lengths, and gaps that are only scaled. The prompts differ, or a server that
    keeps what it has computed would know them already.

    Args:
        vocab_size: prompts are token ids below it; else they are words, about a token or two each.
    """
    rng = random.Random(seed)
    words = random.Random(f"{seed} at {rate}")
    gaps, shapes = [], []
    for _ in range(requests):
        gaps.append(rng.expovariate(1.0) / rate)
        shapes.append((prompt_lengths(rng), reply_lengths(rng)))
    times = accumulate(gaps)

    def prompt(length: int) -> str | tuple[int, ...]:
        if vocab_size is not None:
            return tuple(words.randrange(10, vocab_size - 10) for _ in range(length))
        return " ".join(words.choice(SYLLABLES) + words.choice(SYLLABLES) for _ in range(length))

    return [PlannedRequest(at, prompt(long), reply) for at, (long, reply) in zip(times, shapes, strict=True)]
