"""The recipe in small: a few steps of a tiny model, on the real data."""

from __future__ import annotations

import csv
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.guide import curve
from models.guide.dialogues import OFF_TOPIC_SHARE, Dialogues, answer, ask, chances
from models.guide.packing import IGNORED, Packer
from models.guide.recipe import DRAFT, GUIDE, Recipe
from models.guide.topics import OFF_TOPIC, GuideData
from models.guide.train import HERE, SIMILAR, Learner, Workshop, build_model, learned_positions, rate_at, train
from models.guide.workers import Workers

TINY = Recipe(
    steps=8, width=32, layers=1, heads=2, kv_heads=1, inner=64,
    opening_rows=2, opening_row=128, talk_rows=1, talk_row=512,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(HERE)


def trained(
    data: GuideData, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, log: Path
) -> tuple[dict[str, Tensor], list[float]]:
    model = build_model(recipe, tokenizer)
    learner = Learner(model, len(data.topics))
    for _ in train(learner, Packer(Dialogues(data), tokenizer, recipe), recipe, log, compiled=False):
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


def test_every_leg_climbs_and_comes_to_rest() -> None:
    recipe = replace(TINY, steps=100, legs=(0.5, 0.3, 0.2), warmup_steps=4, falling=0.5, later_legs=0.6)
    rates, began = [], 0
    for step in range(100):
        leg, over = recipe.leg_at(step / 100)
        if leg > 0 and over == pytest.approx(0):
            began = step
        rates.append(rate_at(leg, step - began, over, recipe))
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:25] == [1.0] * 21
    for begin, end, height in ((0, 50, 1.0), (50, 80, 0.6), (80, 100, 0.6)):
        assert max(rates[begin:end]) == height
        assert rates[end - 1] == pytest.approx(height / (0.5 * (end - begin)))
        falling = rates[(begin + end) // 2 : end]
        assert falling == sorted(falling, reverse=True)


def test_the_model_is_the_mean_of_its_legs(data: GuideData, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    recipe = replace(TINY, steps=4, legs=(0.5, 0.5), learning_rate=0.03)
    work, out = tmp_path / "work", tmp_path / "out"
    shop = Workshop(data, work, out, save_every=3, compiled=False, workers=Workers(), minutes=None)
    shop.make(build_model(recipe, tokenizer), shop.tokenizer(HERE, recipe.vocabulary), recipe)
    first, last, made = (load_file(folder / "model.safetensors") for folder in (work / "leg-1", work / "leg-2", out))
    assert made.keys() == first.keys() == last.keys()
    for name, tensor in made.items():
        half = (first[name].double() + last[name].double()) / 2
        assert torch.allclose(tensor.double(), half, rtol=0.01, atol=1e-4)  # rounded to bfloat16 once, not twice
        assert not torch.equal(first[name], last[name])
    assert {"config.json", "generation_config.json", "loss.svg", "tokenizer.model"} <= {
        one.name for one in out.iterdir()
    }
    assert LlamaForCausalLM.from_pretrained(out).config.hidden_size == recipe.width


def test_only_replies_are_learned_and_an_opening_is_cut(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    packer = Packer(Dialogues(data), tokenizer, replace(TINY, slip=0.0))
    messages = Dialogues(data).draw(random.Random(3), 2)
    ids, labels, topics = packer.encode(messages)
    reply = tokenizer.convert_tokens_to_ids("<|assistant|>")
    end = tokenizer.eos_token_id
    assert len(ids) == len(labels) == len(topics)
    assert labels.count(end) == 2  # the end of each reply is learned, the end of a question is not
    assert all(labels[i] != IGNORED for i, token in enumerate(ids) if token == reply)
    assert all(labels[i] in (IGNORED, ids[i + 1]) for i in range(len(ids) - 1))
    short, _, _ = packer.encode(messages, opening=True)
    assert short == ids[: len(short)]
    assert len(short) - 1 - max(i for i, token in enumerate(short) if token == reply) <= TINY.opening_tokens


def test_many_talks_go_on_for_several_turns(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    packer = Packer(Dialogues(data), tokenizer, GUIDE)
    reply, begin = tokenizer.convert_tokens_to_ids(["<|assistant|>", "<|begin|>"])
    talks: list[int] = []  # replies of each
    for _ in range(10):
        for row in packer.talks(GUIDE.talk_rows, GUIDE.talk_row).tokens.tolist():
            for token in row:
                if token == begin:
                    talks.append(0)
                elif token == reply:
                    talks[-1] += 1
    in_long_ones = sum(turns for turns in talks if turns >= 5)
    assert in_long_ones > 0.25 * sum(talks)


def test_where_a_reply_begins_its_topic_is_to_be_named(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    packer = Packer(Dialogues(data), tokenizer, TINY)
    rng = random.Random(4)
    for _ in range(20):
        messages = Dialogues(data).draw(rng, 3)
        ids, _, topics = packer.encode(messages)
        begins = [i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<|assistant|>")]
        about = [message.get("topic") for message in messages if message["role"] == "assistant"]
        assert [data.topics[topics[i]].name if topics[i] != IGNORED else None for i in begins] == about
        assert all(topic == IGNORED for i, topic in enumerate(topics) if i not in begins)
    batch = packer.talks(2, 512)
    assert int((batch.topics != IGNORED).sum()) >= 4


def test_few_sizes_are_computed_and_nothing_more_is_learned() -> None:
    labels = torch.full((2, 200), IGNORED)
    labels[1, 3:150] = 7
    places = learned_positions(labels)
    assert len(places) == 2 * SIMILAR
    assert sorted(places.tolist())[-147:] == list(range(203, 350))
    assert set(places.tolist()) - set(range(203, 350)) == {0}
    assert labels.flatten()[0] == IGNORED


def test_patterns_do_not_drown_what_was_written(data: GuideData) -> None:
    rng = random.Random(5)
    topic = max(data.topics, key=lambda topic: len(topic.filled) / max(1, len(topic.written)))
    drawn = [ask(rng, topic) for _ in range(400)]
    assert len(topic.filled) > 10 * len(topic.written)
    assert sum(question in topic.written for question in drawn) > 120
    assert sum(question not in topic.written for question in drawn) > 80
    lacking = [topic for topic in data.topics if not topic.filled]
    assert lacking
    assert all(ask(rng, topic) in topic.written for topic in lacking)


def test_packed_conversations_do_not_see_each_other(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    packer = Packer(Dialogues(data), tokenizer, TINY)
    for batch in (packer.openings(4, 256), packer.talks(8, 512)):
        rows, length = batch.tokens.shape
        shared = 0  # one long talk may fill a row
        for row in range(rows):
            starts = [
                i
                for i in range(length)
                if batch.positions[row, i] == 0 and batch.tokens[row, i] != tokenizer.pad_token_id
            ]
            shared += len(starts) >= 2
            for start in starts[1:]:
                assert (batch.mask[row, 0, start:, :start] < -1e30).all()
        assert shared >= rows / 2


def test_a_step_has_the_tokens_that_its_recipe_says(data: GuideData, tokenizer: PreTrainedTokenizerFast) -> None:
    for recipe in (GUIDE, DRAFT, TINY):
        packer = Packer(Dialogues(data), tokenizer, recipe)
        for number in range(2):  # the first has rows as long as the context
            batches = packer.step(number)
            assert sum(batch.tokens.numel() for batch in batches) == recipe.tokens_per_step
            filled = sum(int((batch.tokens != tokenizer.pad_token_id).sum()) for batch in batches)
            assert filled >= 0.85 * recipe.tokens_per_step


def test_the_curve_is_drawn_from_the_first_step_on(tmp_path: Path) -> None:
    log, picture = tmp_path / "loss.csv", tmp_path / "loss.svg"
    log.write_text("step,tokens,seconds,loss\n1,100,0.1,8.0\n", encoding="utf-8")
    curve.draw(log, picture)
    assert "<polyline" in picture.read_text(encoding="utf-8")
    log.write_text(
        "step,tokens,seconds,loss\n" + "".join(f"{i},{i * 100},{i},{8 / i}\n" for i in range(1, 3001)), encoding="utf-8"
    )
    curve.draw(log, picture)
    points = re.findall(r'points="([^"]+)"', picture.read_text(encoding="utf-8"))[0].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert 300 < len(points) <= 600
    assert heights == sorted(heights)  # downwards on a screen
    assert not list(tmp_path.glob("*.part"))


def test_off_topic_questions_have_their_share(data: GuideData) -> None:
    bounds = chances(data.topics)
    alone = [upper - lower for lower, upper in zip((0.0, *bounds), bounds, strict=False)]
    declined = sum(one for one, topic in zip(alone, data.topics, strict=True) if topic.area == OFF_TOPIC)
    assert declined / bounds[-1] == pytest.approx(OFF_TOPIC_SHARE)


def test_the_first_answer_comes_most_and_the_others_come(data: GuideData) -> None:
    rng = random.Random(0)
    topic = next(topic for topic in data.topics if len(topic.answers) == 2)
    drawn = [answer(rng, topic) for _ in range(400)]
    assert 0.6 < drawn.count(topic.answers[0]) / len(drawn) < 0.9
    assert set(drawn) == set(topic.answers)
