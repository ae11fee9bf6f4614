"""Several steps at once give the replies of single ones, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import EngineSettings, FinishReason, SamplingParams
from engine.errors import LogitsError
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.execution.steps import multi_step
from engine.execution.steps.multi_step import MultiSteps
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.scheduling.cache_layout import CacheLayout, blocks_for_sequence
from testing.core_requests import (
    GREEDY,
    MAX_LEN,
    MAX_REPLY_TOKENS,
    ON_HOST,
    SAMPLED,
    TOGETHER,
    AdjustableClock,
    ReaderRecord,
    add,
    are_close,
    compute_sequentially,
    finish,
    run_scenario,
)
from testing.models import make_model
from testing.native import needs_compiler

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 4


@pytest.fixture(scope="module", params=["llama", "mistral-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_model(tmp_path_factory.mktemp("models") / request.param, request.param, seed=3, eos=False))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_model(tmp_path_factory.mktemp("models") / "llama", "llama", seed=3, eos=False))


def load(path: Path) -> LoadedModel:
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu")
    model = load_model(settings, lambda _stage, _fraction: None)
    assert model.decoder is not None
    return model


@pytest.fixture
def steps_per_call(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets every call compute up to four steps; returns the number of steps in each call."""
    monkeypatch.setattr(multi_step, "MAX_STEPS", 4)
    monkeypatch.setattr(multi_step, "max_hold_seconds", lambda _readers: 1000.0)
    done: list[int] = []
    compute = Runner.execute_steps

    def counted(self: Runner, *args: Any) -> Any:
        drawn = compute(self, *args)
        done.append(len(drawn.tokens))
        return drawn

    monkeypatch.setattr(Runner, "execute_steps", counted)
    return done


def make_core(model: LoadedModel, **chosen: Any) -> EngineCore:
    given = {"max_model_len": MAX_LEN, "max_num_seqs": 6, "max_batched_tokens": 16, "num_kv_blocks": 200}
    core = EngineCore(model, EngineSettings(**{**given, "kv_block_size": BLOCK, "device": "cpu", **chosen}))
    core._pacing.observe(1, 0, 0.001)  # or it would first have to find out what a step takes
    return core


def alone(model: LoadedModel, prompt: Sequence[int], params: SamplingParams) -> ReaderRecord:
    """The reply of an engine that computes one step at a time, to nobody else."""
    core = make_core(model)
    compute_sequentially(core)
    add(core, "r", prompt, params)
    return finish(core)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "seeds", [range(6), *(pytest.param(range(n, n + 20), marks=pytest.mark.full) for n in (10, 30))]
)
def test_whatever_happens_the_replies_are_the_same(
    model: LoadedModel, seeds: range, steps_per_call: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = AdjustableClock(), Counter[str]()
    for module in (
        "execution.steps.strategy",
        "execution.steps.multi_step",
        "runtime.request_processor",
        "runtime.output_processor",
    ):
        monkeypatch.setattr(f"engine.{module}.monotonic", clock)
    expected: dict[Any, ReaderRecord] = {}

    def expect(prompt: list[int], params: SamplingParams) -> ReaderRecord:
        key = tuple(prompt), repr(params)
        if key not in expected:
            expected[key] = alone(model, prompt, params)
        return expected[key]

    for seed in seeds:
        rng = random.Random(seed)
        max_num_seqs = rng.choice([1, 3, 6])
        budget = max_num_seqs + rng.choice([0, 3, 20])
        least = blocks_for_sequence(CacheLayout.of(model.layers).windows, MAX_LEN, budget, BLOCK) + 1
        core = make_core(
            model,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            num_kv_blocks=least + rng.choice([0, 0, 6, 100]),
            enable_prefix_caching=rng.random() < 0.8,
        )
        seen += run_scenario(rng, core, clock, expect)
    for what in ("aborts", "stops", "preemptions", "prefix hits"):
        assert seen[what] > 0, what
    assert set(steps_per_call) == {1, 2, 3, 4}


@needs_compiler
def test_replies_of_all_lengths_end_where_they_must(llama: LoadedModel, steps_per_call: list[int]) -> None:
    core = make_core(llama, max_batched_tokens=32)
    asked = {f"r{length}": replace(SAMPLED, max_tokens=length, seed=length) for length in range(1, 7)}
    for name, params in asked.items():
        add(core, name, [5, 6, 7], params)
    record = finish(core)
    for name, params in asked.items():
        assert record.tokens[name, 0] == alone(llama, [5, 6, 7], params).tokens["r", 0]
        assert record.reasons[name, 0] is FinishReason.LENGTH
    assert steps_per_call == [4, 1]  # behind the first step, in which nobody is being written to
    assert core.stats().num_steps == 6
    assert core.stats().generation_tokens == 1 + 2 + 3 + 4 + 5 + 6


@needs_compiler
def test_the_context_s_end_is_not_passed(llama: LoadedModel, steps_per_call: list[int]) -> None:
    core = make_core(llama, num_kv_blocks=MAX_LEN // BLOCK + 1)
    add(core, "a", [5, 6, 7], replace(GREEDY, max_tokens=MAX_LEN))
    assert len(finish(core).tokens["a", 0]) == MAX_LEN - 3
    assert core.stats().num_preemptions == 0
    assert max(steps_per_call) == 4


@needs_compiler
def test_a_stop_string_ends_a_reply_that_has_gone_on(llama: LoadedModel, steps_per_call: list[int]) -> None:
    text = alone(llama, [5, 6, 7], GREEDY).text
    params = replace(GREEDY, stop=(text[6:9],))
    core = make_core(llama)
    add(core, "a", [5, 6, 7], params)
    record = finish(core)
    assert record.reasons["a", 0] is FinishReason.STOP
    assert record.text == text[: text.index(text[6:9])]
    assert record.tokens["a", 0] == alone(llama, [5, 6, 7], params).tokens["r", 0]
    assert steps_per_call


@needs_compiler
@pytest.mark.parametrize("asked", [{"top_n_sigma": 0.5}, {"top_n_sigma": 1.5, "top_k": 9, "top_p": 0.9}])
def test_cpp_continues_with_top_n_sigma(llama: LoadedModel, steps_per_call: list[int], asked: dict[str, Any]) -> None:
    plain = replace(SAMPLED, temperature=1.5)
    params = replace(plain, **asked)
    core = make_core(llama)
    add(core, "a", [5, 6, 7], params)
    record = finish(core)
    assert max(steps_per_call) == 4
    assert record.tokens["a", 0] == alone(llama, [5, 6, 7], params).tokens["r", 0]
    assert record.tokens["a", 0] != alone(llama, [5, 6, 7], plain).tokens["r", 0]  # the filter does something here


@needs_compiler
@pytest.mark.parametrize(
    "params", [*ON_HOST, *TOGETHER, replace(SAMPLED, typical_p=0.7)], ids=lambda params: repr(params)[-60:]
)
def test_a_reply_with_parameters_of_its_own_keeps_no_other_to_single_steps(
    llama: LoadedModel, steps_per_call: list[int], params: SamplingParams
) -> None:
    core = make_core(llama)
    add(core, "a", [5, 6, 7], replace(GREEDY, max_tokens=40))
    record = ReaderRecord()
    record.add(core.step())  # the prompt
    record.add(core.step())
    assert steps_per_call == [4]
    add(core, "b", [9, 8, 7], params)
    while ("b", params.n - 1) not in record.reasons:
        record.add(core.step())
        core.check()
    assert 4 in steps_per_call[1:]
    finish(core, record)
    assert record.tokens["a", 0] == alone(llama, [5, 6, 7], replace(GREEDY, max_tokens=40)).tokens["r", 0]
    whole = alone(llama, [9, 8, 7], params)
    for index in range(params.n):
        assert record.tokens["b", index] == whole.tokens["r", index]
        assert are_close(record.logprobs["b", index], whole.logprobs["r", index])
        assert len(record.logprobs["b", index]) == (0 if params.logprobs is None else MAX_REPLY_TOKENS)


@needs_compiler
def test_replies_that_all_need_python_take_single_steps(llama: LoadedModel, steps_per_call: list[int]) -> None:
    core = make_core(llama)
    for name in "ab":
        add(core, name, [5, 6, 7], replace(SAMPLED, typical_p=0.7))
    assert len(finish(core).tokens) == 2
    assert steps_per_call == []


@needs_compiler
def test_logits_kept_for_log_probabilities_are_limited(
    llama: LoadedModel, steps_per_call: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_step, "MAX_SCORED_BYTES", 4 * 4 * llama.vocab_size)
    params = replace(GREEDY, logprobs=2)
    core, names = make_core(llama), "ab"
    add(core, "a", [5, 6, 7], params)
    record = ReaderRecord()
    record.add(core.step())
    record.add(core.step())
    assert steps_per_call == [4]
    add(core, "b", [5, 6, 7], params)
    finish(core, record)
    expected = alone(llama, [5, 6, 7], params)
    for name in names:
        assert are_close(record.logprobs[name, 0], expected.logprobs["r", 0])
    assert steps_per_call == [4, 4, 1]  # single steps as long as both are read, then those of the second one


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_cpp_penalizes_as_numpy_does(llama: LoadedModel, steps_per_call: list[int], seed: int) -> None:
    rng = random.Random(seed)
    core, asked = make_core(llama, max_batched_tokens=64), {}
    for number in range(6):
        params = replace(
            rng.choice((GREEDY, SAMPLED)),
            seed=number,
            max_tokens=24,
            repetition_penalty=rng.choice((1.0, 0.7, 1.0 + rng.random())),
            presence_penalty=rng.choice((0.0, rng.uniform(-2, 2))),
            frequency_penalty=rng.choice((0.0, rng.uniform(-2, 2))),
            logit_bias={rng.randrange(300): rng.uniform(-5, 5) for _ in range(rng.choice((0, 3)))},
            min_tokens=rng.choice((0, 9)),
            stop_token_ids=tuple(rng.sample(range(300), 20)),
            logprobs=rng.choice((None, 3)),
        )
        prompt = [rng.randrange(3, 60) for _ in range(rng.randint(1, 20))]
        asked[f"r{number}"] = prompt, params
        add(core, f"r{number}", prompt, params)
    record = finish(core)
    assert 4 in steps_per_call
    for name, (prompt, params) in asked.items():
        expected = alone(llama, prompt, params)
        assert record.tokens[name, 0] == expected.tokens["r", 0]
        assert are_close(record.logprobs[name, 0], expected.logprobs["r", 0])
        assert record.reasons[name, 0] is expected.reasons["r", 0]


@needs_compiler
@pytest.mark.parametrize("failing_call", [1, 2, 3, 6])
@pytest.mark.parametrize("typical_p", [1.0, 0.7], ids=["masked", "sampled in Python"])
def test_an_error_between_steps_ends_the_reply_that_caused_it(
    llama: LoadedModel,
    steps_per_call: list[int],
    failing_call: int,
    typical_p: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = replace(SAMPLED, bad_words=("a",), typical_p=typical_p)
    core = make_core(llama)
    add(core, "good", [5, 6, 7], replace(GREEDY, max_tokens=40))
    add(core, "bad", [9, 8, 7], params)
    record = ReaderRecord()
    record.add(core.step())  # the prompts
    row = core.strategy.sampler.sampling_row(core._scheduler.requests[1])
    bans, length = row.bans, len(row.token_ids)

    def failing() -> Any:
        if len(row.token_ids) >= length + failing_call - 1:
            raise LogitsError("this ban fails", request_ids=(row.request_id,))
        return bans()

    monkeypatch.setattr(row, "bans", failing)
    finish(core, record)
    assert record.failures == {"bad": "LogitsError"}
    assert record.tokens["bad", 0] == alone(llama, [9, 8, 7], params).tokens["r", 0][:failing_call]
    assert record.tokens["good", 0] == alone(llama, [5, 6, 7], replace(GREEDY, max_tokens=40)).tokens["r", 0]
    assert 4 in steps_per_call


@needs_compiler
def test_scores_that_are_of_no_use_end_one_reply_in_whichever_step(
    llama: LoadedModel, steps_per_call: list[int]
) -> None:
    prompt, others = [5, 6, 7], [9, 8, 7]
    whole = alone(llama, prompt, GREEDY).tokens["r", 0]
    neighbour = alone(llama, others, GREEDY).tokens["r", 0]
    places = [at for at in range(6) if whole[at] not in {*prompt, *others, *whole[:at], *neighbour}]
    assert len(places) >= 4
    for at in places:
        core = make_core(llama)
        assert core.strategy.runner._decoder is not None
        embedding = core.strategy.runner._decoder._weights.embedding
        kept = embedding[whole[at]].clone()
        embedding[whole[at]] = float("nan")  # what is computed from this token
        try:
            add(core, "bad", prompt, GREEDY)
            add(core, "good", others, GREEDY)
            record = finish(core)
        finally:
            embedding[whole[at]] = kept
        assert record.failures == {"bad": "LogitsError"}
        assert record.tokens["bad", 0] == whole[: at + 1]
        assert record.tokens["good", 0] == neighbour
    assert len(steps_per_call) > len(places)


@needs_compiler
def test_a_delta_says_when_its_first_token_was_sampled(llama: LoadedModel, steps_per_call: list[int]) -> None:
    core = make_core(llama)
    add(core, "a", [5, 6, 7], GREEDY)
    core.step()  # the prompt
    first, second = core.step().deltas, core.step().deltas
    assert [len(delta.token_ids) for delta in (*first, *second)] == [4, 4]
    assert core._scheduler.requests[0].last_token is not None
    assert first[0].sampled_at is not None
    assert second[0].sampled_at is not None
    assert first[0].sampled_at < second[0].sampled_at < core._scheduler.requests[0].last_token
    assert core._scheduler.requests[0].last_gap > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("readers", "seconds", "steps"),
    [
        (64, 0.008, 4),
        (64, 0.0001, 5),  # not more, however short they are
        (64, 0.02, 2),
        (64, 0.04, 1),
        (16, 0.008, 2),
        (1, 0.002, 1),  # one that reads alone has each token as soon as it is there
        (64, None, 1),
        (0, 0.001, 1),
    ],
)
def test_no_step_is_added_that_text_would_not_wait_for_anyway(readers: int, seconds: float | None, steps: int) -> None:
    running = [SimpleNamespace(forks=[], is_beam=False) for _ in range(readers)]
    scheduler: Any = SimpleNamespace(running=running, num_running=readers)
    runner: Any = SimpleNamespace(max_native_tokens=1000)
    sampler: Any = SimpleNamespace(sampling_row=lambda _request: SimpleNamespace(needs_python=False))
    times: Any = SimpleNamespace(decode_seconds=lambda decodes: seconds)
    assert MultiSteps(scheduler, runner, sampler, times).max_steps() == steps


@needs_compiler
def test_where_c_does_only_short_steps_longer_ones_stay_single(
    llama: LoadedModel, steps_per_call: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(llama)
    monkeypatch.setattr(Runner, "max_native_tokens", 2)
    for name in "abc":
        add(core, name, [5, 6, 7], GREEDY)
    record = finish(core)
    assert {tuple(record.tokens[name, 0]) for name in "abc"} == {tuple(alone(llama, [5, 6, 7], GREEDY).tokens["r", 0])}
    assert steps_per_call == []
