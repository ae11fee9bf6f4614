"""The distributions that an inspection reports are those that the sampler takes tokens from."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import (
    Caller,
    ChatMessage,
    Engine,
    EngineSettings,
    InvalidRequestError,
    SamplingParams,
    StructuredOutput,
    StructureKind,
    TokenLogprobs,
)
from engine.sampling import cpu
from engine.sampling.inspection import RowInspector
from engine.sampling.sampler import SamplingRow
from engine.text.vocabulary import Vocabulary
from testing.models import make_model

DRAWS = 1000
HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]
TEXT = "The kettle sings at four."


def sampling_row(params: SamplingParams, token_ids: list[int], **more: Any) -> SamplingRow:
    complete = params.with_defaults(SamplingParams.neutral())
    return SamplingRow("one", complete, seed=1, token_ids=token_ids, num_prompt_tokens=1, **more)


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 0.7, 1.0, 1.9]),
        top_k=rng.choice([0, 1, 3, 40]),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01]),
        min_p=rng.choice([0.0, 0.05, 0.5]),
        typical_p=rng.choice([1.0, 0.9, 0.2]),
        top_n_sigma=rng.choice([0.0, 0.0, 1.5]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.8]),
        logit_bias=rng.choice([None, {5: 4.0, 6: -100.0}]),
    )


@pytest.mark.parametrize("seed", range(30))
def test_kept_weights_are_the_sampler_s_own_distribution(seed: int) -> None:
    rng = random.Random(seed)
    params = random_params(rng)
    row = sampling_row(params, [1, 5, 5, 7])
    logits = torch.randn(1, 150, generator=torch.Generator().manual_seed(seed)) * 3
    logits[0, rng.sample(range(150), 30)] = float(logits.max()) - rng.choice([0.0, 0.5])  # ties
    scores = cpu.adjust(logits, [row])
    shares = cpu.kept_weights(scores[0], row).astype(np.float64)
    shares /= shares.sum()
    tokens, highest = cpu.likeliest(scores)
    if row.is_greedy:
        assert shares[tokens[0]] == 1
        return
    numbers = [(each + 0.5) / DRAWS for each in range(DRAWS)]
    drawn = [cpu.draw(scores, highest, [row], [number])[0] for number in numbers]
    counts = np.bincount(drawn, minlength=150)
    assert np.abs(counts - shares * DRAWS).max() <= 1.01  # inverting the distribution at even steps


class _Names(Vocabulary):
    def __init__(self) -> None:
        pass

    def name(self, token_id: int) -> str:
        return f"<{token_id}>"

    def data(self, token_id: int) -> bytes:
        return self.name(token_id).encode()


def removed(params: SamplingParams, logits: list[float], **more: Any) -> dict[int, str]:
    token_ids = [3, 0]
    row = sampling_row(params, token_ids, **more)
    (inspection,) = RowInspector(row, token_ids, _Names(), keeps_rows=True).inspect(torch.tensor([logits]), [0])
    assert inspection is not None
    assert inspection.row is not None
    assert token_ids == [3, 0, 0]
    return {each.token.token_id: each.removed_by for each in inspection.row.alternatives if each.removed_by}


LOGITS = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def test_each_removed_token_names_what_removed_it() -> None:
    assert removed(SamplingParams(), LOGITS) == {}
    assert removed(SamplingParams(temperature=0), LOGITS) == dict.fromkeys(range(1, 6), "temperature")
    by_filters = removed(SamplingParams(top_k=5, top_p=0.98, min_p=0.1), LOGITS)
    assert by_filters == {5: "top_k", 4: "top_p", 3: "min_p"}
    assert removed(SamplingParams(typical_p=0.1), LOGITS).keys() < set(range(6))
    assert removed(SamplingParams(top_k=1, frequency_penalty=1.5), LOGITS)[0] == "penalties"
    assert removed(SamplingParams(top_k=2, logit_bias={1: -9}), LOGITS)[1] == "logit_bias"
    assert removed(SamplingParams(min_tokens=4), LOGITS, stop_token_ids=frozenset({2})) == {2: "min_tokens"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", seed=3, eos=False)


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        model=str(model), dtype="float32", max_model_len=256, num_kv_blocks=100, kv_block_size=4, max_batched_tokens=16,
        max_num_seqs=8, _env_file=None,
    )  # fmt: skip
    async with Engine(settings) as running:
        yield running


async def inspected(
    engine: Engine, reply: ChatMessage, params: SamplingParams, position: int | None = None
) -> tuple[TokenLogprobs, ...]:
    prepared = await engine.prepare(
        [*HELLO, {**reply, "unfinished": True}], replace(params, max_tokens=1), caller=Caller("ada")
    )
    deltas = [delta async for delta in engine.inspect(prepared, position=position)]
    return tuple(scores for delta in deltas for scores in delta.prompt_logprobs)


async def test_a_reply_s_own_tokens_are_inspected_as_they_were_sampled(engine: Engine) -> None:
    words = StructuredOutput(StructureKind.REGEX, "[a-z ]{90}")  # else a model with random weights writes no text
    params = SamplingParams(
        temperature=0.8, top_k=30, seed=4, max_tokens=24, logprobs=0, repetition_penalty=1.2, structured=words
    )
    deltas = [delta async for delta in engine.chat(HELLO, params, caller=Caller("ada"))]
    text = "".join(delta.text for delta in deltas)
    ids = await engine.reply_tokens(text, [token for delta in deltas for token in delta.token_ids])
    assert ids
    sampled = [scores for delta in deltas for scores in delta.logprobs][: len(ids)]
    reply = ChatMessage(role="assistant", content=text, token_ids=ids)
    found = await inspected(engine, reply, params)
    assert [each.token.token_id for each in found] == list(ids)
    for seen, was in zip(found, sampled, strict=True):
        assert seen.token.logprob == pytest.approx(was.token.logprob, abs=2e-3)
        assert seen.inspection is not None
        assert seen.inspection.kept_logprob is not None  # it was sampled, so it was kept
        assert 1 <= seen.inspection.num_kept <= 30
        assert seen.inspection.row is None

    (one,) = await inspected(engine, reply, params, position=len(ids) - 1)
    assert one.token == pytest.approx(found[-1].token) or one.token.token_id == found[-1].token.token_id
    assert one.inspection is not None
    assert one.inspection.entropy == pytest.approx(found[-1].inspection.entropy, abs=1e-3)  # type: ignore[union-attr]
    row = one.inspection.row
    assert row is not None
    logits = np.frombuffer(row.logits, "<f2").astype(np.float64)
    assert len(logits) == engine.info.vocab_size
    assert logits.max() == 0
    logprobs = logits - np.log(np.exp(logits).sum())
    for alternative in row.alternatives:
        assert logprobs[alternative.token.token_id] == pytest.approx(alternative.token.logprob, abs=4e-3)
    assert dict(row.counts)[ids[0]] >= 1
    assert sum(count for _id, count in row.counts) == len(ids) - 1
    assert len(row.alternatives) == 20
    assert {each.removed_by for each in row.alternatives if each.kept_logprob is None} == {"structured"}


async def test_a_text_of_no_known_tokens_is_inspected_too_and_the_prompt_is_not_computed_twice(engine: Engine) -> None:
    reply = ChatMessage(role="assistant", content=TEXT)
    found = await inspected(engine, reply, SamplingParams())
    assert b"".join(each.token.data for each in found).decode() == TEXT
    prepared = await engine.prepare([*HELLO, {**reply, "unfinished": True}], caller=Caller("ada"))
    deltas = [delta async for delta in engine.inspect(prepared, position=len(found) - 1)]
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.cached_prompt_tokens
    assert deltas[-1].timings.completion_tokens == 1


async def test_a_reply_that_has_left_its_form_is_inspected_without_it(engine: Engine) -> None:
    form = StructuredOutput(StructureKind.REGEX, "[0-9]+")
    found = await inspected(engine, ChatMessage(role="assistant", content=TEXT), SamplingParams(structured=form))
    first, second = found[0].inspection, found[2].inspection
    assert first is not None
    assert first.kept_logprob is None  # no digit
    assert second is not None
    assert second.kept_logprob is not None


async def test_refuses_what_is_no_reply(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="no reply to inspect"):
        await anext(engine.inspect(await engine.prepare(HELLO)))
    with pytest.raises(InvalidRequestError, match="tokens, so there is none at 9999"):
        await inspected(engine, ChatMessage(role="assistant", content=TEXT), SamplingParams(), position=9999)
    assert engine.stats().num_requests_running == 0
