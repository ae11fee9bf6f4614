"""Plans the requests of a load (times, prompts and lengths) from a seed, before the first one is sent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

Lengths = Callable[[random.Random], int]
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True)
class PlannedRequest:
    """One planned request."""

    at: float  #: seconds after the start of the load
    prompt: str | tuple[int, ...]
    reply_tokens: int


def lengths(text: str) -> Lengths:
    """Parses a distribution of lengths in tokens.

    ``128`` is constant, ``32-256`` uniform, ``exp:200`` exponential with that mean, and ``lognormal:200:0.8``
    log-normal with that median and that standard deviation of the logarithm.

    Raises:
        ValueError: the text is none of these.
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
    raise ValueError(f"invalid lengths: {text}. Use a form such as 128, 32-256, exp:200 or lognormal:200:0.8.")


def plan(
    rate: float,
    requests: int,
    seed: int,
    prompt_lengths: Lengths,
    reply_lengths: Lengths,
    *,
    vocab_size: int | None = None,
) -> list[PlannedRequest]:
    """Plans Poisson arrivals: exponential gaps with a mean of ``1 / rate`` seconds; all at once for an infinite rate.

    A seed gives the same lengths, and the same gaps up to scaling, for every rate. The prompts differ between rates, so
    that a server's prefix cache does not already hold them.

    Args:
        rate: requests per second.
        requests: number of requests.
        seed: fixes times, lengths and prompts.
        prompt_lengths: distribution of prompt lengths, tokens.
        reply_lengths: distribution of reply lengths, tokens.
        vocab_size: prompts are token ids below it; with None they are words, about one or two tokens each.
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
