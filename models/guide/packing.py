"""Packs conversations into rows of a few fixed lengths, so that a compiled training step sees few shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.guide import tokenizer as pieces
from models.guide.dialogues import STAYS, SYSTEMS, Dialogues, Message
from models.guide.recipe import CONTEXT, Recipe

IGNORED = -100  # label of a position that is not learned
_POOL = 48  # conversations to choose the next of a row from


class Encoded(NamedTuple):
    """A conversation; three numbers for each of its tokens."""

    ids: list[int]
    labels: list[int]  #: the token that follows, or ``IGNORED``
    topics: list[int]  #: where a reply begins, the index of what it is about; else ``IGNORED``


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed conversations."""

    tokens: Tensor  #: [rows, length] int64
    labels: Tensor  #: [rows, length] int64, the token that follows or ``IGNORED``
    topics: Tensor  #: [rows, length] int64, where a reply begins the index of what it is about, else ``IGNORED``
    positions: Tensor  #: [rows, length] int64, from 0 in each conversation
    mask: Tensor  #: [rows, 1, length, length] bfloat16, added to attention's scores: causal within a conversation


class Packer:
    """Turns conversations into rows of one length; each sees only itself, from position 0 on.

    A step has two kinds of rows. In the short ones lie questions with the first words of their reply: there it is
    decided what a reply is about, which is the hard part, and a short row wastes no attention. In the others lie
    follow-ups and whole talks.
    """

    def __init__(self, dialogues: Dialogues, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        self._dialogues = dialogues
        self._encoder = tokenizer.backend_tokenizer
        self._recipe = recipe
        self._rng = random.Random(recipe.seed)
        self._ids = {token: tokenizer.convert_tokens_to_ids(token) for token in pieces.SPECIAL}
        self._pieces = {index: piece for piece, index in tokenizer.get_vocab().items()}
        self._topics = {topic.name: index for index, topic in enumerate(dialogues.data.topics)}
        self._openings: list[Encoded] = []
        self._talks: list[Encoded] = []

    def step(self, number: int) -> tuple[Batch, Batch]:
        """The rows of a step: openings, and talks."""
        recipe = self._recipe
        talk_row = recipe.talk_row if number % recipe.long_every else min(CONTEXT, recipe.talk_rows * recipe.talk_row)
        talk_rows = recipe.talk_rows * recipe.talk_row // talk_row
        return self.openings(recipe.opening_rows, recipe.opening_row), self.talks(talk_rows, talk_row)

    def openings(self, rows: int, length: int) -> Batch:
        return self._batch([self._row(self._openings, length, self._draw_opening) for _ in range(rows)], length)

    def talks(self, rows: int, length: int) -> Batch:
        return self._batch([self._row(self._talks, length, self._draw_talk) for _ in range(rows)], length)

    def encode(self, messages: list[Message], opening: bool = False) -> Encoded:
        """What is to be learned of a conversation: replies, their ends, and what they are about.

        Of an ``opening`` the last reply is cut after its first words.
        """
        ids, learned, topics = [self._ids[pieces.BEGIN]], [False], [IGNORED]
        for message in messages:
            reply = message["role"] == "assistant"
            body = self._encoder.encode(("" if reply else " ") + message["content"], add_special_tokens=False).ids
            if not reply:
                body = self._slip(body)
            ids += [self._ids[f"<|{message['role']}|>"], *body, self._ids[pieces.END]]
            learned += [False, *[reply] * (len(body) + 1)]
            topics += [self._topics.get(message.get("topic", ""), IGNORED), *[IGNORED] * (len(body) + 1)]
        if opening and (rest := len(body) + 1 - self._recipe.opening_tokens) > 0:
            ids, learned, topics = ids[:-rest], learned[:-rest], topics[:-rest]
        labels = [token if wanted else IGNORED for token, wanted in zip(ids[1:], learned[1:], strict=True)]
        return Encoded(ids, [*labels, IGNORED], topics)

    def _slip(self, ids: list[int]) -> list[int]:
        """Cut some tokens in two: what was learned about a word should survive another spelling of it."""
        cut: list[int] = []
        for token in ids:
            piece = self._pieces[token].replace("▁", " ")
            if len(piece) > 2 and not piece.startswith("<0x") and self._rng.random() < self._recipe.slip:
                at = self._rng.randrange(1, len(piece))
                for part in (piece[:at], piece[at:]):
                    cut += self._encoder.encode(part, add_special_tokens=False).ids
            else:
                cut.append(token)
        return cut

    def _batch(self, filled: list[list[Encoded]], length: int) -> Batch:
        rows = len(filled)
        tokens = torch.full((rows, length), self._ids[pieces.PAD])
        labels = torch.full((rows, length), IGNORED)
        topics = torch.full((rows, length), IGNORED)
        positions = torch.zeros((rows, length), dtype=torch.long)
        owner = torch.full((rows, length), -1)
        for r, conversations in enumerate(filled):
            at = 0
            for number, (ids, wanted, about) in enumerate(conversations):
                end = at + len(ids)
                tokens[r, at:end] = torch.tensor(ids)
                labels[r, at:end] = torch.tensor(wanted)
                topics[r, at:end] = torch.tensor(about)
                positions[r, at:end] = torch.arange(len(ids))
                owner[r, at:end] = number
                at = end
        causal = torch.ones((length, length), dtype=torch.bool).tril()
        seen = (owner[:, :, None] == owner[:, None, :]) & causal
        mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill_(~seen, torch.finfo(torch.bfloat16).min)
        return Batch(tokens, labels, topics, positions, mask[:, None])

    def _row(self, pool: list[Encoded], length: int, draw: Callable[[int], Encoded]) -> list[Encoded]:
        """Fill one row from a small pool: whatever comes first, then always the longest that still fits."""
        row: list[Encoded] = []
        free = length
        while True:
            while len(pool) < _POOL:
                pool.append(draw(length))
            fitting = [i for i, one in enumerate(pool) if len(one.ids) <= free]
            if not fitting:
                return row
            chosen = max(fitting, key=lambda i: len(pool[i].ids)) if row else fitting[0]
            row.append(pool.pop(chosen))
            free -= len(row[-1].ids)

    def _draw_opening(self, length: int) -> Encoded:
        return self._draw_that_fits(length, turns=1, opening=True, systems=0.1)  # they are long, and decide little

    def _draw_talk(self, length: int) -> Encoded:
        kind = self._rng.random()
        if kind < 0.5:  # a follow-up's reply hangs on the reply before, and is decided by its first words, too
            return self._draw_that_fits(length, self._rng.choice((2, 2, 2, 3)), opening=self._rng.random() < 0.5)
        if kind < 0.8:  # what people come to after many turns hangs on nothing before, whatever was said there
            turns = self._rng.randint(4, max(4, length // 48))
            return self._draw_that_fits(length, turns, opening=True, stays=self._rng.choice((0.0, 0.3, 0.5)))
        # Mostly short talks; some go on for as long as the row, so that late positions are learned as well.
        return self._draw_that_fits(length, self._rng.choice((1, 1, 1, 2, 2, 3, 4)) if kind < 0.95 else length // 64)

    def _draw_that_fits(
        self, length: int, turns: int, opening: bool = False, systems: float = SYSTEMS, stays: float = STAYS
    ) -> Encoded:
        """A conversation of as many turns as there is room for, ``turns`` at most."""
        while True:
            conversation = self.encode(self._dialogues.draw(self._rng, turns, systems, stays), opening)
            if len(conversation.ids) <= length:
                return conversation
            turns = max(1, turns * 3 // 4)
