"""The recipe in small: a few steps of a tiny model, on the real data."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.guide.dialogues import Dialogues
from models.guide.topics import GuideData, load
from models.guide.train import HERE, IGNORED, Packer, Recipe, build_model, train

TINY = Recipe(
    steps=8, width=32, layers=1, heads=2, kv_heads=1, inner=64, tokens_per_step=512, row=256, long_share=0.0
)  # fmt: skip


@pytest.fixture(scope="module")
def data() -> GuideData:
    return load()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(HERE)


def trained(
    data: GuideData, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, log: Path
) -> tuple[dict[str, Tensor], list[float]]:
    model = build_model(recipe, tokenizer)
    for _ in train(model, Packer(Dialogues(data), tokenizer, recipe), recipe, log, compiled=False):
        pass
    with log.open(encoding="utf-8") as file:
        return model.state_dict(), [float(row["loss"]) for row in csv.DictReader(file)]


def test_a_seed_gives_the_same_weights(data: GuideData, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, losses = trained(data, tokenizer, TINY, tmp_path / "one.csv")
        same, same_losses = trained(data, tokenizer, TINY, tmp_path / "same.csv")
        other, _ = trained(data, tokenizer, replace(TINY, seed=1), tmp_path / "other.csv")
    finally:
        torch.set_num_threads(threads)
    assert losses == same_losses
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert len(losses) == TINY.steps
    assert losses[-1] < losses[0]


def test_only_replies_are_learned_and_an_opening_is_cut(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    packer = Packer(Dialogues(data), tokenizer, replace(TINY, slip=0.0))
    messages = Dialogues(data).draw(random.Random(3), 2)
    ids, labels = packer.encode(messages)
    reply = tokenizer.convert_tokens_to_ids("<|assistant|>")
    end = tokenizer.eos_token_id
    assert len(ids) == len(labels)
    assert labels.count(end) == 2  # the end of each reply is learned, the end of a question is not
    assert all(labels[i] != IGNORED for i, token in enumerate(ids) if token == reply)
    assert all(labels[i] in (IGNORED, ids[i + 1]) for i in range(len(ids) - 1))
    short, _ = packer.encode(messages, opening=True)
    assert short == ids[: len(short)]
    assert len(short) - 1 - max(i for i, token in enumerate(short) if token == reply) <= TINY.opening_tokens


def test_packed_conversations_do_not_see_each_other(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    batch = Packer(Dialogues(data), tokenizer, TINY).batch(2, 256)
    for row in range(2):
        starts = [
            i for i in range(256) if batch.positions[row, i] == 0 and batch.tokens[row, i] != tokenizer.pad_token_id
        ]
        assert len(starts) >= 2
        for start in starts[1:]:
            assert not batch.mask[row, 0, start:, :start].any()
