"""The numbers that decide what comes out of a training, for the guide and for the draft model that guesses for it."""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what comes out, but for the data."""

    seed: int = 0
    vocabulary: int = 3072
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    inner: int = 768
    steps: int = 5400
    opening_rows: int = 20  #: rows of a step that openings are packed into: questions with a reply's first words
    opening_row: int = 128  #: tokens of such a row
    talk_rows: int = 4  #: rows of a step for everything longer
    talk_row: int = 512  #: room for about ten turns
    long_every: int = 8  #: every so many steps, the talks lie in rows as long as the context, for late positions
    opening_tokens: int = 6  #: words of a reply that decide what it is about
    topic_weight: float = 2.0  #: of naming a reply's topic where it begins, beside one token's 1
    learning_rate: float = 3e-3
    legs: tuple[float, ...] = (0.7, 0.3)  #: shares of the training; the mean of the weights at their ends is the model
    later_legs: float = 0.6  #: of the learning rate, for every leg but the first
    warmup_steps: int = 30
    falling: float = 0.6  #: the last part of a leg, in which the learning rate falls to nothing
    weight_decay: float = 0.05
    slip: float = 0.02  #: how often a token of a question is cut in two, as a misspelt word would be

    @property
    def tokens_per_step(self) -> int:
        return self.opening_rows * self.opening_row + self.talk_rows * self.talk_row

    def leg_at(self, done: float) -> tuple[int, float]:
        """The leg that goes on where ``done`` of the training is over, and how much of that leg is over."""
        begin = 0.0
        for leg, share in enumerate(self.legs[:-1]):
            if done < begin + share:
                return leg, (done - begin) / share
            begin += share
        return len(self.legs) - 1, (done - begin) / (1 - begin)


GUIDE = Recipe()
DRAFT = Recipe(width=128, layers=2, heads=2, kv_heads=1, inner=384, steps=600, legs=(1.0,))
