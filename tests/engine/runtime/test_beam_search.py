"""Beam search: the sequences and scores of transformers' own, whatever else runs, and nothing left behind."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import (
    LLM,
    BeamSearchParams,
    Completion,
    Delta,
    Engine,
    EngineSettings,
    FinishReason,
    InvalidRequestError,
    SamplingParams,
    StructuredOutput,
    StructureKind,
)
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.core_requests import GREEDY, AdjustableClock, add, finish
from testing.models import make_model

ENDS = list(range(3, 400, 9))  #: many, so that sequences end early and often
PROMPT = [70, 71, 72, 73, 74]
MARGIN = 2e-5  #: as a share of the score; closer ones are ties, which rounding decides


def searching(width: int, n: int | None = None, **options: Any) -> SamplingParams:
    penalties = {name: options.pop(name) for name in ("length_penalty", "early_stopping") if name in options}
    search = BeamSearchParams(width=width, **penalties)
    return SamplingParams(beam_search=search, n=n or width, **{"max_tokens": 12, **options})


class Reference:
    """transformers' beam search on a second copy of the model."""

    def __init__(self, path: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
        self._model.eval()

    def search(self, prompt: Sequence[int], params: SamplingParams) -> list[tuple[tuple[int, ...], float]]:
        search = params.beam_search
        assert search is not None
        ids = torch.tensor([list(prompt)])
        found = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=search.width,
            num_return_sequences=params.n,
            length_penalty=search.length_penalty,
            early_stopping=search.early_stopping,
            max_new_tokens=params.max_tokens,
            eos_token_id=None if params.ignore_eos else ENDS,
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows = found.sequences[:, len(prompt) :].tolist()
        sequences = [_until_end(row) if not params.ignore_eos else tuple(row) for row in rows]
        return list(zip(sequences, found.sequences_scores.tolist(), strict=True))

    def logprobs(self, sequence: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self._model(torch.tensor([list(sequence)])).logits[0].log_softmax(-1)


def _until_end(row: list[int]) -> tuple[int, ...]:
    end = next((index for index, token in enumerate(row) if token in ENDS), len(row))
    return tuple(row[: end + 1])


def check(found: Sequence[Any], expected: Sequence[tuple[tuple[int, ...], float]]) -> int:
    """Compares sequences and scores. Of neighbours whose scores are nearly tied, the order may differ.

    Returns:
        The number of sequences that are not nearly tied, and so were compared one by one.
    """
    scores = [score for _, score in expected]
    assert [one.beam_score for one in found] == pytest.approx(scores, rel=MARGIN)
    borders = [False, *(one - other < 2 * MARGIN * abs(one) for one, other in pairwise(scores)), False]
    clear = [index for index in range(len(scores)) if not borders[index] and not borders[index + 1]]
    for index in clear:
        assert tuple(found[index].token_ids) == expected[index][0]
    assert {tuple(one.token_ids) for one in found[:-1]} <= {sequence for sequence, _ in expected}
    return len(clear)


def make(path: Path, family: str, seed: int = 3) -> Path:
    return make_model(path / family, family, seed=seed, std=0.12, eos=ENDS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models"), "qwen3")


@pytest.fixture(scope="module")
def reference(path: Path) -> Reference:
    return Reference(path)


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    return load_model(EngineSettings(model=str(path), dtype="float32"), lambda _stage, _fraction: None)


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        model=str(path), dtype="float32", max_model_len=128, num_kv_blocks=100, kv_block_size=4, max_num_seqs=8
    )
    async with Engine(settings) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream if delta.progress is None]


@pytest.mark.parametrize(
    "family",
    [
        *("llama", "mistral-window", "qwen3-moe"),  # a cache, one of a window, experts
        *(pytest.param(family, marks=pytest.mark.full) for family in ("qwen3", "gemma2", "gpt-neox")),
    ],
)
async def test_sequences_and_scores_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    path = make(tmp_path, family)
    reference = Reference(path)
    settings = EngineSettings(model=str(path), dtype="float32", max_model_len=64, num_kv_blocks=100, kv_block_size=4)
    clear = 0
    async with Engine(settings) as engine:
        for width in (2, 5):
            for length_penalty in (1.0, -0.7, 2.0):
                for early_stopping in (False, True, "never"):
                    options: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
                    params = searching(width, **options)
                    prompt = [*PROMPT, width]
                    clear += check(await read(engine.complete(prompt, params)), reference.search(prompt, params))
    assert clear >= 9 * (2 + 5) - 6


@pytest.mark.parametrize("length_penalty", [10.0, -10.0])
async def test_the_greatest_length_penalties_have_scores(engine: Engine, length_penalty: float) -> None:
    """transformers has none here: it takes scores below -1e9 for beams that have not ended."""
    found = await read(engine.complete(PROMPT, searching(3, length_penalty=length_penalty, max_tokens=100)))
    scores = [delta.beam_score or 0.0 for delta in found]
    assert scores == sorted(scores, reverse=True)
    assert all(math.isfinite(score) and score < 0 for score in scores)


async def test_a_single_beam_and_one_that_may_not_end(engine: Engine, reference: Reference) -> None:
    params = searching(4, ignore_eos=True, max_tokens=20)
    check(await read(engine.complete(PROMPT, params)), reference.search(PROMPT, params))
    params = searching(4, ignore_eos=True, max_tokens=1)
    check(await read(engine.complete(PROMPT, params)), reference.search(PROMPT, params))
    [alone] = await read(engine.complete(PROMPT, searching(1, ignore_eos=True)))
    greedy = await read(engine.complete(PROMPT, SamplingParams(temperature=0, ignore_eos=True, max_tokens=12)))
    assert alone.token_ids == tuple(token for delta in greedy for token in delta.token_ids)


async def test_a_reply_has_its_text_its_end_and_its_log_probabilities(engine: Engine, reference: Reference) -> None:
    own = reference.search(PROMPT, searching(5))[0][0][0]
    params = searching(5, n=3, logprobs=2, prompt_logprobs=1, stop_token_ids=[own])
    deltas = await read(engine.complete(PROMPT, params))
    assert [delta.index for delta in deltas] == [0, 1, 2]
    assert [delta.is_last for delta in deltas] == [False, False, True]
    assert len(deltas[0].prompt_logprobs) == len(PROMPT)
    reasons = set()
    for delta in deltas:
        ended = delta.token_ids[-1] in [*ENDS, own]
        reasons.add(delta.finish_reason)
        assert delta.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert delta.stop_reason == (own if delta.token_ids[-1] == own else None)
        assert delta.text == await engine.detokenize(delta.token_ids[: len(delta.token_ids) - ended])
        rows = reference.logprobs([*PROMPT, *delta.token_ids])[len(PROMPT) - 1 :]
        for token, scores, row in zip(delta.token_ids, delta.logprobs, rows, strict=False):
            assert scores.token.token_id == token
            assert scores.token.logprob == pytest.approx(float(row[token]), abs=2e-4)
            assert scores.rank == int((row > row[token]).sum()) + 1
            assert [top.logprob for top in scores.top] == pytest.approx(row.topk(2).values.tolist(), abs=2e-4)
        assert len(delta.logprobs) == len(delta.token_ids)
        total = sum(scores.token.logprob or 0 for scores in delta.logprobs)
        assert delta.beam_score == pytest.approx(total / len(delta.token_ids), abs=1e-5)
        assert delta.timings is not None
        assert delta.timings.completion_tokens == len(delta.token_ids)
    assert FinishReason.STOP in reasons
    assert engine.stats().requests_finished["length"] + engine.stats().requests_finished["stop"] == 3


def test_beams_share_the_prompt_and_what_they_have_in_common(model: LoadedModel) -> None:
    settings = EngineSettings(max_model_len=128, max_num_seqs=8, num_kv_blocks=80, kv_block_size=4)
    core = EngineCore(model, settings)
    add(core, "r", [80 + index % 50 for index in range(80)], searching(8, max_tokens=20, ignore_eos=True))
    most, computed = 0.0, 0
    while core.has_work:
        core.step()
        core.check()
        most = max(most, core.stats().kv_cache_usage * core.stats().num_kv_blocks)
    assert 20 < most <= 20 + 8 * 6  # 8 sequences alone would hold 200
    assert core.stats().num_preemptions == 0
    assert core.stats().prompt_tokens == 80
    assert core.stats().num_steps == computed + 20


@pytest.mark.parametrize("seats", [2, 3, 6])
@pytest.mark.parametrize("blocks", [18, 24, 60])
def test_neither_other_replies_nor_a_lack_of_room_change_what_is_found(
    model: LoadedModel, reference: Reference, seats: int, blocks: int
) -> None:
    """With fewer seats or blocks than beams, some compute their step later than others, or again."""
    rng = random.Random(seats * blocks)
    settings = EngineSettings(
        max_model_len=64, max_num_seqs=seats, max_batched_tokens=16, num_kv_blocks=blocks, kv_block_size=4
    )
    core = EngineCore(model, settings)
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    for number in range(7):
        prompt = [*PROMPT * (number % 3), *[rng.randrange(20, 300) for _ in range(9)]]
        params = searching(rng.choice([3, 4, 5]), length_penalty=0.5) if number % 2 else replace(GREEDY, logprobs=1)
        asked[f"r{number}"] = prompt, params
        add(core, f"r{number}", prompt, params)
    record = finish(core)
    assert not record.failures
    for name, (prompt, params) in asked.items():
        if params.beam_search is not None:
            found = [tuple(record.tokens[name, index]) for index in range(params.n)]
            assert found == [sequence for sequence, _ in reference.search(prompt, params)]
    assert seats < 6 or blocks > 18 or core.stats().num_preemptions


@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
@pytest.mark.parametrize("caching", [True, False])
async def test_speculation_and_the_prefix_cache_change_nothing(
    path: Path, reference: Reference, speculation: str, caching: bool
) -> None:
    settings = EngineSettings(
        model=str(path),
        dtype="float32",
        max_model_len=64,
        max_num_seqs=2,
        num_kv_blocks=40,
        kv_block_size=4,
        speculation=speculation,
        enable_prefix_caching=caching,
    )
    async with Engine(settings) as engine:
        params = searching(4)
        check(await read(engine.complete(PROMPT * 2, params)), reference.search(PROMPT * 2, params))
        again = await read(engine.complete(PROMPT * 2, params))
        check(again, reference.search(PROMPT * 2, params))
        assert bool(again[0].cached_prompt_tokens) is caching


def test_nothing_is_drafted_for_beams(path: Path) -> None:
    settings = EngineSettings(
        model=str(path), dtype="float32", max_model_len=128, kv_block_size=4, speculation="prompt-lookup"
    )
    with LLM(**settings.model_dump(), show_progress=False) as llm:
        llm.generate([PROMPT], SamplingParams(temperature=0, ignore_eos=True, max_tokens=100))
        drafted = llm.engine.stats().draft_tokens
        assert drafted
        llm.beam_search([PROMPT], BeamSearchParams(width=2), SamplingParams(ignore_eos=True, max_tokens=100))
        assert llm.engine.stats().draft_tokens == drafted


def test_a_search_that_has_begun_ends_with_the_engine(model: LoadedModel) -> None:
    """Its parked beams would wait for siblings that the next engine has not admitted yet."""
    core = EngineCore(model, EngineSettings(max_model_len=64, max_num_seqs=2, num_kv_blocks=60, kv_block_size=4))
    add(core, "begun", PROMPT, searching(4))
    for _ in range(4):
        core.step()
    add(core, "waits", PROMPT, searching(4))
    core.strategy.request_ids = ()
    failed, waiting = core.evacuate()
    assert {one.stream_id for one in failed} == {"begun"}
    assert [one.stream_id for one in waiting] == ["waits"]
    following = EngineCore(model, EngineSettings(max_model_len=64, max_num_seqs=2, num_kv_blocks=60, kv_block_size=4))
    following.add(waiting[0])
    assert len(finish(following).tokens) == 4


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("seats", [2, 8])
def test_an_aborted_search_leaves_nothing_behind(model: LoadedModel, steps: int, seats: int) -> None:
    core = EngineCore(model, EngineSettings(max_model_len=64, max_num_seqs=seats, num_kv_blocks=60, kv_block_size=4))
    add(core, "r", PROMPT, searching(6, n=2, ignore_eos=True, max_tokens=40))
    for _ in range(steps):
        core.step()
    assert core.abort("r")
    assert not core.has_work
    core.check()
    assert core.stats().kv_cache_usage == 0
    assert core.stats().requests_finished["abort"] == 2


@pytest.mark.parametrize("seats", [2, 8])
def test_a_deadline_returns_the_best_so_far(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, seats: int) -> None:
    clock = AdjustableClock()
    monkeypatch.setattr("engine.runtime.output_processor.monotonic", clock)
    core = EngineCore(model, EngineSettings(max_model_len=64, max_num_seqs=seats, num_kv_blocks=60, kv_block_size=4))
    add(core, "r", PROMPT, searching(4, n=2, max_tokens=40, ignore_eos=True), deadline=1000.0)
    for _ in range(5 * 4 // min(seats, 4)):
        core.step()
    clock.ahead = monotonic() + 2000.0
    record = finish(core)
    assert [record.reasons["r", index] for index in (0, 1)] == [FinishReason.DEADLINE] * 2
    assert all(len(record.tokens["r", index]) >= 3 for index in (0, 1))
    add(core, "late", PROMPT, searching(4, n=2), deadline=0.001)
    clock.ahead += 10.0
    assert finish(core).failures == {"late": "DeadlineError"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.7}, "temperature cannot be combined with beam search"),
        ({"top_p": 0.5}, "top_p cannot be combined"),
        ({"repetition_penalty": 1.1}, "repetition_penalty cannot be combined"),
        ({"min_tokens": 2}, "min_tokens cannot be combined"),
        ({"stop": "x"}, "stop cannot be combined"),
        ({"stop_regex": "x"}, "stop_regex cannot be combined"),
        ({"logit_bias": {5: 1.0}}, "logit_bias cannot be combined"),
        ({"bad_words": ["x"]}, "bad_words cannot be combined"),
        ({"forbidden_words": ["x"]}, "forbidden_words cannot be combined"),
        ({"structured": StructuredOutput(StructureKind.JSON_OBJECT)}, "structured output cannot be combined"),
    ],
)
async def test_what_it_cannot_be_combined_with_is_refused(engine: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await read(engine.complete(PROMPT, searching(2, **options)))
    await read(engine.complete(PROMPT, searching(2, temperature=1, top_p=1, seed=5)))
    await read(engine.complete(PROMPT, searching(2, temperature=0)))


def test_a_call_that_tool_choice_forces_is_refused(model: LoadedModel) -> None:
    processor = EngineCore(model, EngineSettings(max_model_len=64, num_kv_blocks=60, kv_block_size=4)).request_processor
    forced = replace(processor.resolve(PROMPT, searching(2)), structured=StructuredOutput(StructureKind.JSON_OBJECT))
    with pytest.raises(InvalidRequestError, match="tool_choice cannot hold a reply of beam search"):
        processor.process("r", PROMPT, forced)


async def test_more_ends_than_candidates_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="beam_width must be lower: 64 beams"):
        await read(engine.complete(PROMPT, searching(64, n=2, stop_token_ids=list(range(400)))))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 0}, "beam_width must be between 1 and 64"),
        ({"width": 65}, "beam_width must be between 1 and 64"),
        ({"width": True}, "beam_width"),
        ({"width": 2, "length_penalty": float("nan")}, "length_penalty must be between -10 and 10"),
        ({"width": 2, "length_penalty": 10.5}, "length_penalty"),
        ({"width": 2, "early_stopping": "always"}, 'early_stopping must be true, false or "never"'),
        ({"width": 2, "early_stopping": 1}, "early_stopping"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        BeamSearchParams(**options)


def test_no_more_replies_than_beams_are_returned() -> None:
    with pytest.raises(InvalidRequestError, match="n must be at most beam_width"):
        searching(2, n=3)


def test_offline_completions_have_their_score(path: Path, reference: Reference) -> None:
    engine = Engine(
        EngineSettings(model=str(path), dtype="float32", max_model_len=64, num_kv_blocks=60, kv_block_size=4)
    )
    prompts = [PROMPT, [*PROMPT, 90, 91]]
    found: list[Completion] = engine.generate(prompts, searching(3, n=2), show_progress=False)
    for index, prompt in enumerate(prompts):
        check(found[2 * index : 2 * index + 2], reference.search(prompt, searching(3, n=2)))
