"""What a request asks for, through the engine's own door: ends, lengths, seeds, and what is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine import (
    ChatMessage,
    ContextLengthError,
    Delta,
    Engine,
    EngineSettings,
    FinishReason,
    InvalidRequestError,
    SamplingParams,
)
from engine.text.detokenizer import REPLACEMENT
from testing.models import make_model

PROMPT = [70, 71, 72, 73, 74]
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40)
FILTERS: list[dict[str, object]] = [
    {},
    {"top_k": 30},
    {"top_p": 0.9, "repetition_penalty": 1.2},
    {"min_p": 0.02},
    {"typical_p": 0.8},
    {"typical_p": 0.9, "top_k": 100, "logprobs": 4},
    {"forbidden_words": ["a", "e", "the", "o"], "prompt_logprobs": 1},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", seed=3)


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        model=str(model),
        dtype="float32",
        max_model_len=128,
        num_kv_blocks=70,
        kv_block_size=4,
        max_num_seqs=8,
    )
    async with Engine(settings) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


# -- how a reply ends -------------------------------------------------------------------------------------


async def test_a_reply_ends_before_its_stop_string_and_never_shows_it(engine: Engine) -> None:
    whole = text(await read(engine.complete(PROMPT, GREEDY)))
    start = next(i for i in range(10, len(whole) - 4) if REPLACEMENT not in whole[i : i + 4])
    stop = whole[start : start + 4]
    deltas = await read(engine.complete(PROMPT, replace(GREEDY, stop=("never there", stop))))
    assert text(deltas) == whole[: whole.index(stop)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, stop)
    for end in range(len(deltas)):
        assert whole[: whole.index(stop)].startswith(text(deltas[:end]))
    timings = deltas[-1].timings
    assert timings is not None
    assert timings.completion_tokens == len(tokens(deltas)) < 40


@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
async def test_a_reply_ends_before_a_match_of_its_stop_expression(model: Path, speculation: str) -> None:
    settings = EngineSettings.model_validate(
        {"model": str(model), "dtype": "float32", "max_model_len": 128, "speculation": speculation}
    )
    async with Engine(settings) as engine:
        params = replace(GREEDY, n=3, logprobs=1, temperature=0.9, seed=5)
        whole = [
            text([delta for delta in await read(engine.complete(PROMPT, params)) if delta.index == index])
            for index in range(3)
        ]
        expression = f"(?s){re.escape(whole[0][12])}.{{2}}|{re.escape(whole[1][20])}+{re.escape(whole[1][21])}"
        deltas = await read(engine.complete(PROMPT, replace(params, stop_regex=expression)))
        for index in range(3):
            own = [delta for delta in deltas if delta.index == index]
            ends = range(len(whole[index]) + 1)
            found = [match for end in ends if (match := re.compile(expression).search(whole[index], 0, end))]
            expected = whole[index][: found[0].start()] if found else whole[index]
            assert text(own) == expected
            assert all(expected.startswith(text(own[:end])) for end in range(len(own)))
            assert sum(len(delta.logprobs) for delta in own) == len(tokens(own))
            if found:
                assert (own[-1].finish_reason, own[-1].stop_reason) == (FinishReason.STOP, expression)


async def test_held_back_text_comes_when_the_length_ends_the_reply(engine: Engine) -> None:
    whole = text(await read(engine.complete(PROMPT, GREEDY)))
    deltas = await read(engine.complete(PROMPT, replace(GREEDY, stop=(whole[-3:] + "and no more",))))
    assert text(deltas) == whole
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_a_stop_token_ends_the_reply_and_is_not_in_its_text(engine: Engine) -> None:
    free = tokens(await read(engine.complete(PROMPT, GREEDY)))
    stop = free[12]
    first = free.index(stop)
    deltas = await read(engine.complete(PROMPT, replace(GREEDY, stop_token_ids=(stop,))))
    assert tokens(deltas) == free[: first + 1]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, stop)
    shorter = await read(engine.complete(PROMPT, replace(GREEDY, max_tokens=first)))
    assert text(deltas) == text(shorter)


async def test_no_stop_token_comes_before_min_tokens(engine: Engine) -> None:
    free = tokens(await read(engine.complete(PROMPT, GREEDY)))
    params = replace(GREEDY, stop_token_ids=tuple(free[:10]), min_tokens=20)
    deltas = await read(engine.complete(PROMPT, params))
    assert len(tokens(deltas)) >= 20
    assert not set(tokens(deltas)[:19]) & set(free[:10])


async def test_the_context_window_ends_what_nothing_else_does(engine: Engine) -> None:
    deltas = await read(engine.complete(PROMPT, replace(GREEDY, max_tokens=None)))
    assert len(tokens(deltas)) == 128 - len(PROMPT)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_the_longest_prompt_gets_its_one_token(engine: Engine) -> None:
    deltas = await read(engine.complete([5] * 127, GREEDY))
    assert len(tokens(deltas)) == 1


async def test_logit_bias_and_penalties_reach_the_sampler(engine: Engine) -> None:
    deltas = await read(engine.complete(PROMPT, replace(GREEDY, logit_bias={9: 100.0}, max_tokens=5)))
    assert tokens(deltas) == [9] * 5
    deltas = await read(
        engine.complete(PROMPT, replace(GREEDY, logit_bias={9: 100.0}, repetition_penalty=100.0, max_tokens=5))
    )
    assert tokens(deltas)[0] == 9
    assert tokens(deltas).count(9) == 1


# -- seeds ------------------------------------------------------------------------------------------------


async def test_a_seed_reproduces_a_reply_alone_and_under_load(engine: Engine) -> None:
    """The company changes batch, chunks, blocks and, with so few blocks, puts requests out and back."""
    mixes = [
        SamplingParams(seed=seed, max_tokens=40, ignore_eos=True, temperature=1.3, **filters)  # type: ignore[arg-type]
        for seed, filters in enumerate(FILTERS)
    ]
    alone = [tokens(await read(engine.complete(PROMPT, params))) for params in mixes]
    assert len({tuple(reply) for reply in alone}) == len(mixes)
    company = [
        asyncio.create_task(
            read(engine.complete([n, *range(100, 140)], SamplingParams(max_tokens=60, ignore_eos=True)))
        )
        for n in range(6)
    ]
    await asyncio.sleep(0.01)
    crowded = await asyncio.gather(*(read(engine.complete(PROMPT, params)) for params in mixes))
    assert [tokens(reply) for reply in crowded] == alone
    await asyncio.gather(*company)
    assert engine.stats().num_preemptions > 0


async def test_without_a_seed_replies_differ(engine: Engine) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)
    replies = {tuple(tokens(await read(engine.complete(PROMPT, params)))) for _ in range(3)}
    assert len(replies) == 3


# -- chat -------------------------------------------------------------------------------------------------


async def test_the_next_turn_of_a_chat_reuses_the_cache(engine: Engine) -> None:
    first: list[ChatMessage] = [{"role": "user", "content": "hello there"}]
    deltas = await read(engine.chat(first, SamplingParams(temperature=0, max_tokens=8)))
    turn: list[ChatMessage] = [
        *first,
        {"role": "assistant", "content": text(deltas)},
        {"role": "user", "content": "and now?"},
    ]
    timings = (await read(engine.chat(turn, SamplingParams(max_tokens=2))))[-1].timings
    assert timings is not None
    assert (timings.cached_prompt_tokens or 0) >= (await engine.prepare(first)).num_prompt_tokens // 4 * 4


@pytest.mark.usefixtures("single_steps")
async def test_a_model_without_template_does_not_speak_for_the_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pressed to write what would be the user's next line, the reply ends before it."""
    path = make_model(tmp_path / "model", "qwen3", chat_template=False)
    async with Engine(EngineSettings(model=str(path), dtype="float32", max_model_len=64)) as engine:
        assert not engine.info.has_chat_template
        assert "has no chat template" in caplog.text
        assert engine._core is not None
        tokenizer = engine._core.model.tokenizer
        script = tokenizer.encode("fine\nUser: and you?", add_special_tokens=False)
        sampler: Any = engine._core.strategy.sampler.sampler
        sampler.sample = lambda _logits, rows: [script[row.position] for row in rows]
        deltas = await read(engine.chat([{"role": "user", "content": "hi"}], GREEDY))
    assert text(deltas) == "fine"
    assert deltas[-1].finish_reason is FinishReason.STOP


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [128, 500])
async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(engine: Engine, length: int) -> None:
    with pytest.raises(ContextLengthError, match=rf"{length} tokens long.*at most 128") as caught:
        await read(engine.complete([5] * length))
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (length, 128)


async def test_a_conversation_that_is_too_long_is_refused_before_and_at_the_send(engine: Engine) -> None:
    messages: list[ChatMessage] = [{"role": "user", "content": "word " * 300}]
    with pytest.raises(ContextLengthError):
        await engine.prepare(messages)
    with pytest.raises(ContextLengthError):
        await read(engine.chat(messages))


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "empty"),
        ("", {}, "empty"),
        ([5, 10_000], {}, "token id 10000"),
        ([-1], {}, "token id -1"),
        (PROMPT, {"logit_bias": {9999: 1.0}}, "logit_bias.*got 9999"),
        (PROMPT, {"stop_token_ids": [416]}, "stop_token_ids.*got 416"),
        (PROMPT, {"stop_regex": "a("}, r"stop_regex 'a\(' is no regular expression.*at character 2"),
        (PROMPT, {"min_tokens": 124}, "min_tokens=124.*123 tokens"),
    ],
)
async def test_what_can_never_be_served_is_refused_at_once(
    engine: Engine, prompt: list[int] | str, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await read(engine.complete(prompt, SamplingParams(**params)))
    assert engine.stats().num_requests_running == 0
    assert (await read(engine.complete(PROMPT, GREEDY)))[-1].finish_reason is FinishReason.LENGTH


async def test_a_token_the_model_does_not_have_is_refused_in_chats_too(tmp_path: Path) -> None:
    """Fine-tunes bring tokenizers that know more tokens than the model; one such message must not stop the engine."""
    path = make_model(tmp_path / "model", "qwen2")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens([f"added{number}" for number in range(400)])
    tokenizer.save_pretrained(path)
    async with Engine(EngineSettings(model=str(path), dtype="float32")) as engine:
        with pytest.raises(InvalidRequestError, match="the model's ids end at"):
            await engine.prepare([{"role": "user", "content": "added399"}])
        assert [delta async for delta in engine.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2))]


async def test_tokens_of_texts_and_conversations_there_and_back(engine: Engine, model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = "The quick fox<|im_end|>"
    ids = await engine.tokenize(text)
    assert list(ids) == tokenizer.encode(text)
    assert list(await engine.tokenize(text, add_special_tokens=False)) == tokenizer.encode(
        text, add_special_tokens=False
    )
    assert await engine.detokenize(ids) == text
    assert await engine.token_strings(ids) == tokenizer.convert_ids_to_tokens(ids)
    long: list[ChatMessage] = [{"role": "user", "content": "word " * 500}]
    assert len(await engine.tokenize(long)) > engine.info.max_model_len
    short: list[ChatMessage] = [{"role": "user", "content": "hi"}]
    assert len(await engine.tokenize(short)) == (await engine.prepare(short)).num_prompt_tokens
    for impossible in ([-1], [10**30]):
        with pytest.raises(InvalidRequestError, match="tokens holds token id"):
            await engine.detokenize(impossible)


async def test_more_log_probabilities_than_the_settings_allow_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="between 0 and 20, the ENGINE_MAX_LOGPROBS"):
        await anext(engine.complete(PROMPT, SamplingParams(logprobs=21)))
