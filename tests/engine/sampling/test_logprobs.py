"""Log-probabilities through the engine's own door, against a second copy of the model in transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import Delta, Engine, EngineSettings, SamplingParams, TokenLogprobs
from engine.sampling.logprobs import score
from testing.models import make_model
from testing.waiting import eventually

PROMPT = [70, 71, 72, 73, 74, 75, 76]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / request.param, request.param, seed=3)


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        model=str(model), dtype="float32", max_model_len=128, num_kv_blocks=70, kv_block_size=4, max_batched_tokens=16,
        max_num_seqs=8,
    )  # fmt: skip
    async with Engine(settings) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def logprobs(deltas: list[Delta]) -> list[TokenLogprobs]:
    return [scores for delta in deltas for scores in delta.logprobs]


def reference(model: Path, sequence: list[int]) -> torch.Tensor:
    """``log_softmax`` for the token behind each of ``sequence``."""
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return module(torch.tensor([sequence])).logits[0].log_softmax(-1)


def assert_scores(scores: TokenLogprobs, token: int, expected: torch.Tensor, count: int) -> None:
    assert scores.token.token_id == token
    assert scores.token.logprob == pytest.approx(float(expected[token]), abs=2e-4)
    assert len(scores.top) == count
    best = expected.topk(count)
    assert [top.logprob for top in scores.top] == pytest.approx(best.values.tolist(), abs=2e-4)
    for top in scores.top:
        assert top.logprob == pytest.approx(float(expected[top.token_id]), abs=2e-4)
    # Computed in another order of additions, tokens that are nearly as likely may change places.
    above, not_below = (int((expected > expected[token] + slack).sum()) for slack in (2e-4, -2e-4))
    assert scores.rank is not None
    assert above < scores.rank <= not_below


SHAPED = SamplingParams(
    seed=5, temperature=1.7, top_k=300, top_p=0.98, typical_p=0.95, repetition_penalty=1.3, presence_penalty=0.5,
    logit_bias={9: 8.0, 12: -50.0}, max_tokens=24, ignore_eos=True, logprobs=3,
)  # fmt: skip


async def test_they_are_the_models_own_whatever_the_sampling(engine: Engine, model: Path) -> None:
    deltas = await read(engine.complete(PROMPT, SHAPED))
    reply = tokens(deltas)
    expected = reference(model, PROMPT + reply)
    scores = logprobs(deltas)
    assert len(scores) == len(reply) == 24
    for position, token in enumerate(reply):
        assert_scores(scores[position], token, expected[len(PROMPT) - 1 + position], 3)
    assert any((one.rank or 0) > 3 for one in scores), "else the sampled token is always among the top"


async def test_each_delta_carries_those_of_its_tokens(engine: Engine) -> None:
    """Also one that waited for its reader and holds several, and one whose text is held back."""
    slow: list[Delta] = []
    async for delta in engine.complete(PROMPT, replace(SHAPED, stop="never there", logprobs=0)):
        slow.append(delta)
        await eventually(lambda: engine.stats().num_requests_running == 0)
    assert any(len(delta.token_ids) > 1 for delta in slow)
    for delta in slow:
        assert [scores.token.token_id for scores in delta.logprobs] == list(delta.token_ids)
        assert all(scores.top == () for scores in delta.logprobs)


async def test_asking_for_them_changes_no_token_and_costs_nobody_else(engine: Engine) -> None:
    mixes = [replace(SHAPED, seed=seed, logprobs=None) for seed in range(3)]
    alone = [tokens(await read(engine.complete(PROMPT, params))) for params in mixes]
    company = [asyncio.create_task(read(engine.complete([n, *range(100, 130)]))) for n in range(4)]
    asked = [replace(params, logprobs=5 * seed) for seed, params in enumerate(mixes)]
    crowded = await asyncio.gather(*(read(engine.complete(PROMPT, params)) for params in [*asked, *mixes]))
    assert [tokens(reply) for reply in crowded] == alone * 2
    assert all(logprobs(reply) for reply in crowded[:3])
    assert not any(logprobs(reply) for reply in [*crowded[3:], *await asyncio.gather(*company)])


async def test_tokens_are_named_by_their_text_and_bytes(engine: Engine) -> None:
    deltas = await read(engine.complete(PROMPT, replace(SHAPED, logprobs=20, logit_bias=None, top_k=0, max_tokens=60)))
    text = "".join(delta.text for delta in deltas)
    said = b"".join(scores.token.data for scores in logprobs(deltas)).decode(errors="replace")
    pieces = [piece for piece in text.split("\ufffd") if len(piece) > 3]
    assert pieces
    assert all(piece in said for piece in pieces)
    named = {top.token_id: top for scores in logprobs(deltas) for top in scores.top}
    assert all(top.text for top in named.values() if top.token_id < 390)
    assert any(top.data and "\ufffd" in top.text for top in named.values()), "no half character among the top"


# -- of the prompt ----------------------------------------------------------------------------------------


LONG = [70, 71, 5, *range(80, 150), 7, 7, 9]


async def test_the_prompts_are_the_models_own_in_chunks_and_past_the_prefix_cache(engine: Engine, model: Path) -> None:
    """Chunks of at most 16 tokens, among others; the cache knows this prompt already."""
    plain = await read(engine.complete(LONG, SamplingParams(max_tokens=3, seed=1)))
    company = [
        asyncio.create_task(read(engine.complete([n, *LONG], SamplingParams(max_tokens=40, ignore_eos=True))))
        for n in range(3)
    ]
    for count in (0, 4):
        deltas = await read(engine.complete(LONG, SamplingParams(max_tokens=3, seed=1, prompt_logprobs=count)))
        assert tokens(deltas) == tokens(plain)
        told = [delta for delta in deltas if delta.prompt_logprobs]
        assert len(told) == 1
        assert told[0].token_ids
        scores = told[0].prompt_logprobs
        assert [one.token.token_id for one in scores] == LONG
        assert (scores[0].token.logprob, scores[0].rank, scores[0].top) == (None, None, ())
        expected = reference(model, LONG)
        for position in range(1, len(LONG)):
            assert_scores(scores[position], LONG[position], expected[position - 1], count)
    for deltas in await asyncio.gather(*company):
        assert not any(delta.prompt_logprobs for delta in deltas)


async def test_a_prompt_put_out_by_others_keeps_what_is_known_of_it(engine: Engine, model: Path) -> None:
    """So few blocks that requests give way and come back: each prompt token is scored once, and rightly."""
    asked = SamplingParams(max_tokens=50, ignore_eos=True, prompt_logprobs=1, logprobs=1)
    replies = await asyncio.gather(*(read(engine.complete([n, *LONG[:60]], asked)) for n in range(6)))
    assert engine.stats().num_preemptions > 0
    for n, deltas in enumerate(replies):
        prompt = [n, *LONG[:60]]
        expected = reference(model, prompt + tokens(deltas))
        known = [*next(delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), *logprobs(deltas)]
        assert len(known) == len(prompt) + 50
        for position in range(1, len(known)):
            assert_scores(known[position], (prompt + tokens(deltas))[position], expected[position - 1], 1)


async def test_a_prompt_of_one_token_has_nothing_to_tell(engine: Engine) -> None:
    deltas = await read(engine.complete([70], SamplingParams(max_tokens=1, prompt_logprobs=2)))
    assert [one.token.logprob for one in deltas[-1].prompt_logprobs] == [None]


async def test_offline_too(engine: Engine) -> None:
    completion = (
        await asyncio.to_thread(engine.generate, [PROMPT], replace(SHAPED, prompt_logprobs=1), show_progress=False)
    )[0]
    assert [scores.token.token_id for scores in completion.logprobs] == list(completion.token_ids)
    assert [scores.token.token_id for scores in completion.prompt_logprobs] == PROMPT


def test_more_rows_than_are_scored_at_once_each_with_its_own_count() -> None:
    logits = torch.randn(70, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    chosen = [row % 50 for row in range(70)]
    counts = [row % 6 for row in range(70)]
    expected = logits.float().log_softmax(-1)
    for row, scores in enumerate(score(logits, chosen, counts)):
        assert scores.logprob == pytest.approx(float(expected[row, chosen[row]]), abs=1e-5)
        assert [value for _, value in scores.top] == pytest.approx(expected[row].topk(counts[row]).values.tolist())
        assert scores.rank == int((logits[row] > logits[row, chosen[row]]).sum()) + 1


def test_an_impossible_token_is_infinitely_unlikely() -> None:
    scores = score(torch.tensor([[0.0, -torch.inf, 0.0]]), [1], [3])[0]
    assert scores.logprob == -torch.inf
    assert scores.rank == 3
    assert sorted(token for token, _ in scores.top) == [0, 1, 2]
