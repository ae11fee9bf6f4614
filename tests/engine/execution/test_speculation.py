"""Speculation changes no reply, whatever is drafted and whatever happens around a request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import Engine, EngineSettings, FinishReason, SamplingParams
from engine.device.memory import populate_pages
from engine.errors import ModelLoadError
from engine.execution.load import load_model
from engine.execution.speculation.draft_loading import with_draft_model
from engine.execution.speculation.draft_model import DraftModel
from engine.execution.speculation.prompt_lookup import continuation
from engine.execution.steps.speculative import SpeculativeSteps
from engine.model.loaded_model import LoadedModel
from engine.outputs import TokenLogprobs
from engine.runtime.engine_core import EngineCore
from engine.scheduling.cache_layout import CacheLayout, blocks_for_sequence
from engine.scheduling.step_plan import Chunk, StepPlan
from testing.models import make_model
from testing.native import needs_compiler

MAX_LEN = 96
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=24)


@dataclass
class Reply:
    """All that a caller gets of one reply."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def begins(self, other: Reply) -> bool:
        return other.token_ids[: len(self.token_ids)] == self.token_ids and other.text.startswith(self.text)


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    params: SamplingParams


class ScriptedProposer:
    """Drafts from the replies that are known to come, and makes some draft tokens wrong."""

    def __init__(self, known: dict[str, Sequence[int]], is_wrong: Callable[[], bool], vocab_size: int) -> None:
        self._known = known
        self._is_wrong = is_wrong
        self._vocab_size = vocab_size

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        return [self._draft(chunk, count) for chunk, count in zip(plan.chunks, counts, strict=True)]

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            assert chunk.end - chunk.start == 1
            assert chunk.request.token_ids[chunk.start : chunk.end] == list(chunk.token_ids)

    def _draft(self, chunk: Chunk, count: int) -> tuple[int, ...]:
        request = chunk.request
        to_come = self._known[request.id][request.num_output_tokens :][:count]
        return tuple((token + 1) % self._vocab_size if self._is_wrong() else token for token in to_come)


def load(path: Path, *, native: bool = False) -> LoadedModel:
    return load_model(
        EngineSettings(model=str(path), dtype="float32", device="cpu", native=native), lambda _stage, _fraction: None
    )


#: The models that differ in what drafting depends on: windows everywhere, windows in some layers, and experts.
LONG = ("gemma2", "mistral-window", "qwen3-moe")


@pytest.fixture(
    scope="module",
    params=[
        "llama",
        pytest.param("native", marks=needs_compiler),
        *(pytest.param(name, marks=pytest.mark.full) for name in LONG),
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    native = request.param == "native"
    family = "llama" if native else request.param
    path = make_model(
        tmp_path_factory.mktemp("models") / request.param, family, seed=1, vocab_size=397 if native else 400
    )
    loaded = load(path, native=native)
    assert (loaded.decoder is not None) is native
    return loaded


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_model(tmp_path_factory.mktemp("models") / "llama", "llama", seed=1))


def make_core(model: LoadedModel, **settings: Any) -> EngineCore:
    chosen = {"max_model_len": MAX_LEN, "num_kv_blocks": 4 * MAX_LEN // 4, "kv_block_size": 4, **settings}
    return EngineCore(model, EngineSettings(**chosen))


def submit(core: EngineCore, name: str, asked: Asked) -> None:
    core.add(
        core.request_processor.process(name, asked.prompt, core.request_processor.resolve(asked.prompt, asked.params))
    )


def step(core: EngineCore, replies: dict[str, Reply]) -> None:
    """One step, its deltas added to the replies; those of siblings have names as requests have."""
    result = core.step()
    assert not result.failures
    assert len({(delta.request_id, delta.index) for delta in result.deltas}) == len(result.deltas)
    for delta in result.deltas:
        name = delta.request_id if delta.index == 0 else f"{delta.request_id}/{delta.index}"
        reply = replies.setdefault(name, Reply())
        assert reply.finish_reason is None
        assert not delta.logprobs or len(delta.logprobs) == len(delta.token_ids)
        reply.token_ids += delta.token_ids
        reply.text += delta.text
        reply.logprobs += delta.logprobs
        reply.finish_reason, reply.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.timings is not None:
            assert delta.timings.completion_tokens == len(reply.token_ids)
            assert delta.timings.accepted_draft_tokens <= delta.timings.draft_tokens
    core.check()


def run(core: EngineCore, asked: dict[str, Asked]) -> dict[str, Reply]:
    replies: dict[str, Reply] = {}
    for name, one in asked.items():
        submit(core, name, one)
    while core.has_work:
        step(core, replies)
    assert core.stats().kv_cache_usage == 0
    return replies


def alone(model: LoadedModel, asked: dict[str, Asked]) -> dict[str, Reply]:
    """What each says without speculation and without company."""
    replies: dict[str, Reply] = {}
    for name, one in asked.items():
        replies |= run(make_core(model, num_kv_blocks=4 * MAX_LEN), {name: one})
    return replies


def speculate(core: EngineCore, known: dict[str, Reply], is_wrong: Callable[[], bool], num_tokens: int) -> None:
    proposer = ScriptedProposer(
        {name: reply.token_ids for name, reply in known.items()}, is_wrong, core.model.vocab_size
    )
    made = core.strategy
    core._strategy = SpeculativeSteps(made.scheduler, made.runner, made.sampler, proposer, num_tokens)


def same(got: Reply, expected: Reply) -> bool:
    """But for the rounding of log-probabilities, which follows the shape of a step."""
    scores: Any = [[one.token.logprob for one in reply.logprobs] for reply in (got, expected)]
    names = [[(one.token.token_id, one.rank) for one in reply.logprobs] for reply in (got, expected)]
    return (
        replace(got, logprobs=[]) == replace(expected, logprobs=[])
        and names[0] == names[1]
        and np.allclose(scores[0], scores[1], atol=1e-3)
    )


def requests(model: LoadedModel, rng: random.Random, count: int) -> dict[str, Asked]:
    """Prompts that begin alike, each with some of what a reply depends on."""
    stem = [rng.randrange(model.vocab_size) for _ in range(30)]
    asked = {}
    for index in range(count):
        prompt = stem[: rng.randint(1, 30)] + [rng.randrange(model.vocab_size) for _ in range(rng.randint(0, 8))]
        params = SamplingParams(temperature=rng.choice([0.0, 0.7, 1.5]), seed=rng.randrange(99), max_tokens=24)
        kind = index % 8
        if kind == 0:
            params = replace(params, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.1)
        elif kind == 1:
            params = replace(params, ignore_eos=True, max_tokens=rng.randint(1, 24))
        elif kind == 2:
            plain = alone(model, {"plain": Asked(prompt, replace(params, ignore_eos=True))})["plain"]
            ids, text = plain.token_ids, plain.text
            middle = rng.randrange(len(text))
            params = replace(params, ignore_eos=True, stop=(text[middle : middle + 2], text[-2:]), min_tokens=3)
            params = replace(params, stop_token_ids=(ids[rng.randrange(4, len(ids))],))
        elif kind == 3:
            params = replace(params, logprobs=2, top_p=0.8)
        elif kind == 4:
            params = replace(params, n=3, temperature=1.0)
        elif kind == 5:
            params = replace(params, forbidden_words=("a", "the", "he"), bad_words=("e", "s"), ignore_eos=True)
        elif kind == 6:
            params = replace(params, prompt_logprobs=1, logprobs=0, logit_bias={7: 2.0, 9: -5.0}, ignore_eos=True)
        else:
            params = replace(params, min_tokens=12, top_k=20)
        asked[f"r{index}"] = Asked(prompt, params)
    return asked


def run_scenario(model: LoadedModel, seed: int, wrong_share: float | None, *, greedy: bool = False) -> Counter[str]:
    """Requests arrive, run together, are aborted, and are put out by each other; then some chats go on.

    Args:
        wrong_share: share of draft tokens that are wrong; None for those of the model's draft model.
    """
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    max_num_seqs = rng.randint(1, 6)
    budget = max_num_seqs + rng.choice([0, 4, 20, 300])
    windows = CacheLayout.of(model.layers).windows
    core = make_core(
        model,
        kv_block_size=block_size,
        num_kv_blocks=blocks_for_sequence(windows, MAX_LEN, budget, block_size) + 1 + rng.choice([0, 3, 20]),
        max_num_seqs=max_num_seqs,
        max_batched_tokens=budget,
        speculation="a draft model" if wrong_share is None else "off",
        speculative_tokens=rng.choice([1, 3, 8]),
    )
    asked = requests(model, rng, 8)
    if greedy:
        asked = {name: replace(one, params=GREEDY) for name, one in asked.items()}
    expected = alone(model, asked)
    if wrong_share is not None:
        speculate(core, expected, lambda: rng.random() < wrong_share, rng.choice([1, 3, 8]))
    replies: dict[str, Reply] = {}
    aborted: set[str] = set()
    to_come = list(asked)
    rng.shuffle(to_come)
    while to_come or core.has_work:
        while to_come and (not core.has_work or rng.random() < 0.4):
            name = to_come.pop()
            submit(core, name, asked[name])
        if core.has_work and rng.random() < 0.02:
            victim = rng.choice(core._scheduler.requests).id.split("/")[0]
            assert core.abort(victim)
            aborted.add(victim)
        step(core, replies)
    for name, reply in replies.items():
        if name.split("/")[0] in aborted and reply.finish_reason is None:
            assert reply.begins(expected[name]), f"seed {seed}, {name}"
        else:
            assert same(reply, expected[name]), f"seed {seed}, {name}: {reply}\n{expected[name]}"
    # What the cache holds now is of accepted tokens only.
    more = {
        f"more {name}": Asked(
            [*asked[name].prompt, *expected[name].token_ids[:-1], 5], SamplingParams(temperature=0.0, max_tokens=8)
        )
        for name in rng.sample(sorted(asked), 3)
    }
    expected = alone(model, more)
    if wrong_share is not None:
        speculate(core, expected, lambda: rng.random() < wrong_share, 3)
    for name, reply in run(core, more).items():
        assert same(reply, expected[name]), f"seed {seed}, {name}"
    stats = core.stats()
    return Counter(
        preemptions=stats.num_preemptions,
        hits=stats.cached_prompt_tokens,
        drafts=stats.draft_tokens,
        accepted=stats.accepted_draft_tokens,
        wrong=stats.draft_tokens - stats.accepted_draft_tokens,
        aborts=len(aborted),
    )


@pytest.mark.slow
@pytest.mark.parametrize("wrong_share", [0.0, 0.4, 1.0], ids=["right", "mixed", "wrong"])
def test_replies_are_the_same_whatever_is_drafted(model: LoadedModel, wrong_share: float) -> None:
    seen = run_scenario(model, 3, wrong_share)
    assert seen["drafts"] > 20
    assert (seen["accepted"] == 0) is (wrong_share == 1.0)
    assert seen["hits"]


@pytest.mark.full
@pytest.mark.parametrize("wrong_share", [0.0, 0.2, 0.6, 1.0])
def test_replies_are_the_same_whatever_is_drafted_at_length(model: LoadedModel, wrong_share: float) -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 112):
        seen += run_scenario(model, seed, wrong_share)
    assert seen["preemptions"]
    assert seen["aborts"]


def test_right_drafts_spare_steps(llama: LoadedModel) -> None:
    asked = {"r": Asked([5, 6, 7], SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=21))}
    known = alone(llama, asked)
    core = make_core(llama)
    speculate(core, known, lambda: False, num_tokens=4)
    assert run(core, asked) == known
    stats = core.stats()
    assert stats.num_steps == 5  # the prompt's, with one token, and four of five
    assert (stats.draft_tokens, stats.accepted_draft_tokens, stats.generation_tokens) == (16, 16, 21)


@pytest.mark.slow
def test_a_stop_string_amid_right_drafts_ends_the_reply_there(llama: LoadedModel) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=20)
    plain = alone(llama, {"r": Asked([5, 6, 7], params)})
    for middle in range(2, len(plain["r"].text) - 2):
        asked = {"r": Asked([5, 6, 7], replace(params, stop=(plain["r"].text[middle : middle + 2],)))}
        expected = alone(llama, asked)
        core = make_core(llama)
        speculate(core, plain, lambda: False, num_tokens=8)
        assert run(core, asked) == expected
        assert core.stats().generation_tokens == len(expected["r"].token_ids)


def test_nothing_is_drafted_behind_the_end(llama: LoadedModel) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8)
    known = alone(llama, {"r": Asked([5, 6, 7], params)})
    last = known["r"].token_ids[5]
    assert last not in known["r"].token_ids[:5]
    core = make_core(llama)
    speculate(core, known, lambda: False, num_tokens=16)
    got = run(core, {"r": Asked([5, 6, 7], replace(params, stop_token_ids=(last,)))})
    assert got["r"].token_ids == known["r"].token_ids[:6]
    assert core.stats().draft_tokens == 4  # behind the first token: the four before the one that ends it
    core = make_core(llama)
    speculate(core, known, lambda: False, num_tokens=16)
    assert run(core, {"r": Asked([5, 6, 7], params)}) == known
    assert (
        core.stats().draft_tokens == 6
    )  # of eight the first is the prompt's, and the last follows the last draft token


def test_drafts_preempt_no_request(llama: LoadedModel) -> None:
    """Two that just fit: with drafts for both there are not blocks enough."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=MAX_LEN // 2 - 4)
    asked = {name: Asked([5, 6, number, 8], params) for number, name in enumerate("ab")}
    known = alone(llama, asked)
    core = make_core(llama, num_kv_blocks=1 + MAX_LEN // 4, max_num_seqs=2, max_batched_tokens=40)
    speculate(core, known, lambda: True, num_tokens=8)
    assert run(core, asked) == known
    assert core.stats().draft_tokens > 100
    assert core.stats().num_preemptions == 0


def test_drafts_take_only_what_the_budget_leaves(llama: LoadedModel) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=12)
    asked = {name: Asked([5, 6, number], params) for number, name in enumerate("abc")}
    known = alone(llama, asked)
    core = make_core(llama, max_num_seqs=3, max_batched_tokens=5)
    speculate(core, known, lambda: False, num_tokens=8)
    lengths = []
    runner: Any = core.strategy.runner
    execute = runner.execute
    runner.execute = lambda plan: (lengths.append(plan.num_tokens), execute(plan))[1]
    assert run(core, asked) == known
    assert max(lengths) == 5


def test_prompt_lookup_serves_through_the_settings(llama: LoadedModel) -> None:
    """A prompt that repeats itself, biased so that the reply does too."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=40, logit_bias={11: 30.0, 12: 29.0})
    asked = {"r": Asked([11, 12, 11, 12], params), "s": Asked([50, 60, 70], replace(params, logit_bias=None))}
    core = make_core(llama, speculation="prompt-lookup", speculative_tokens=3)
    assert run(core, asked) == alone(llama, asked)
    stats = core.stats()
    assert stats.accepted_draft_tokens > 20
    metrics = core.metrics.registry
    assert metrics.get_sample_value("deskmate_spec_decode_num_draft_tokens_total") == stats.draft_tokens
    assert metrics.get_sample_value("deskmate_spec_decode_num_accepted_tokens_total") == stats.accepted_draft_tokens


def test_with_batch_invariance_nothing_is_rounded_otherwise(tmp_path: Path) -> None:
    """In bfloat16, where the shape of a step would show in the last bits of a logarithm."""
    path = make_model(tmp_path / "llama", "llama", seed=1)
    settings = EngineSettings(model=str(path), dtype="bfloat16", device="cpu", batch_invariant=True)
    model = load_model(settings, lambda _stage, _fraction: None)
    params = SamplingParams(temperature=1.0, seed=4, logprobs=3, ignore_eos=True, max_tokens=24)
    asked = {name: Asked([5, 6, number, 8], params) for number, name in enumerate("ab")}
    known = run(make_core(model, batch_invariant=True), asked)
    rng = random.Random(0)
    for num_tokens in (1, 5):
        core = make_core(model, batch_invariant=True)
        speculate(core, known, lambda: rng.random() < 0.3, num_tokens)
        assert run(core, asked) == known
        assert core.stats().accepted_draft_tokens > 10


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 1], []),  # one token alone says little
        ([1, 2, 3, 4, 1, 2], [3, 4, 1]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 8, 1, 2], [4, 9, 8]),  # the latest of equals
        ([5, 1, 2, 3, 9, 1, 2, 4, 9, 5, 1, 2], [3, 9, 1]),  # the longest before the latest
        ([7, 8, 7, 8], [7, 8, 7]),  # goes on as it does
        ([4, 4, 4], [4, 4, 4]),
    ],
)
def test_prompt_lookup(text: list[int], draft: list[int]) -> None:
    assert continuation(np.array(text, dtype=np.int64), 3) == tuple(draft)


# -- with a draft model -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(200, 204))])
def test_a_draft_model_like_the_model_is_always_right(model: LoadedModel, seed: int) -> None:
    """It has everything that the model has in its cache, whatever was shared, copied, preempted or drafted before."""
    seen = run_scenario(replace(model, draft=model), seed, None, greedy=True)
    assert seen["drafts"] > (20 if seed == 3 else 0)
    assert seen["wrong"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(300, 303))])
def test_replies_are_the_same_with_a_draft_model(model: LoadedModel, seed: int) -> None:
    """Its own opinion of the sampled ones, and of those with parameters."""
    seen = run_scenario(replace(model, draft=model), seed, None)
    assert seen["wrong"] > 0 or seed != 3


def draft_for(model: LoadedModel, path: Path, **options: Any) -> LoadedModel:
    settings = EngineSettings(
        model=model.name, dtype="float32", device="cpu", native=False, speculation=str(make_model(path, **options))
    )
    return with_draft_model(model, settings, lambda _stage, _fraction: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"seed": 9, "layers": 1}, marks=pytest.mark.full),
        {"config": {"vocab_size": 352}},
        pytest.param({"config": {"vocab_size": 512}}, marks=pytest.mark.full),
    ],
    ids=["another", "fewer tokens", "more tokens"],
)
def test_any_draft_model_will_do(llama: LoadedModel, tmp_path: Path, options: dict[str, Any]) -> None:
    drafted = draft_for(llama, tmp_path / "draft", **options)
    assert run_scenario(drafted, 3, None)["wrong"] > 0


def test_nothing_is_drafted_beyond_the_draft_model_s_context(llama: LoadedModel, tmp_path: Path) -> None:
    drafted = draft_for(llama, tmp_path / "draft", seed=1, max_position_embeddings=32)
    asked = {"long": Asked(list(range(40, 80)), GREEDY), "growing": Asked(list(range(40, 60)), GREEDY)}
    core = make_core(drafted, speculation="a draft model", enable_prefix_caching=False)
    assert run(core, asked) == alone(llama, asked)
    stats = core.stats()
    assert stats.accepted_draft_tokens == stats.draft_tokens
    assert 8 < stats.draft_tokens < 12


def test_a_draft_model_reads_the_last_draft_token_of_a_reply_too(llama: LoadedModel) -> None:
    params = replace(GREEDY, max_tokens=11)  # one from the prompt, and twice four draft tokens with one behind them
    core = make_core(replace(llama, draft=llama), speculation="a draft model", speculative_tokens=4)
    plans: list[StepPlan] = []
    runner: Any = core.strategy.runner
    execute = runner.execute
    runner.execute = lambda plan: (plans.append(plan), execute(plan))[1]
    run(core, {"r": Asked([5, 6, 7], params)})
    assert core.stats().accepted_draft_tokens == 8
    (chunk,) = plans[-1].chunks
    assert isinstance(core.strategy, SpeculativeSteps)
    assert isinstance(core.strategy._proposer, DraftModel)
    drafted = core.strategy._proposer._runner.layers
    for ours, theirs in zip(core.strategy.runner.layers, drafted, strict=True):
        read = [layer.keys[list(chunk.block_tables[0])].flatten(0, 1)[: chunk.computed_end] for layer in (ours, theirs)]
        assert bool((read[0] != 0).any(-1).all())
        torch.testing.assert_close(*read)


def test_the_time_in_which_accepted_drafts_are_confirmed_counts_as_busy(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"r": Asked([5, 6, 7], replace(GREEDY, max_tokens=11))}
    known = alone(llama, asked)
    core, seconds = make_core(llama), [0.0]
    monkeypatch.setattr("engine.execution.steps.speculative.monotonic", lambda: seconds[0])
    monkeypatch.setattr("engine.execution.steps.strategy.monotonic", lambda: seconds[0])
    speculate(core, known, lambda: False, 4)
    assert isinstance(core.strategy, SpeculativeSteps)
    calls = []

    def confirm(chunks: object) -> None:
        calls.append(chunks)
        seconds[0] += 8.0

    monkeypatch.setattr(core.strategy._proposer, "confirm", confirm)
    assert run(core, asked) == known
    assert len(calls) == 2
    assert core.metrics.busy_seconds == 16.0
    stats = core.stats()
    assert stats.generation_tokens == 11
    assert stats.num_steps == 3


def test_a_draft_model_takes_its_share_of_the_memory(llama: LoadedModel) -> None:
    settings = {"num_kv_blocks": None, "kv_cache_memory": 0.0005, "max_model_len": 32}
    plain = make_core(llama, **settings).stats().num_kv_blocks
    drafted = make_core(replace(llama, draft=llama), speculation="a draft model", **settings).stats().num_kv_blocks
    assert plain // 2 - 1 <= drafted <= plain // 2


@pytest.mark.parametrize("memory", [0.0005, None])
def test_memory_that_was_asked_for_is_taken_at_the_start_for_the_draft_model_too(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, memory: float | None
) -> None:
    populated: set[int] = set()

    def populate(parts: Sequence[torch.Tensor], num_threads: int) -> bool:
        populated.update(part.data_ptr() for part in parts)
        return populate_pages(parts, num_threads)

    monkeypatch.setattr("engine.execution.runner.populate_pages", populate)
    settings = {"num_kv_blocks": None, "kv_cache_memory": memory, "max_model_len": 32}
    core = make_core(replace(llama, draft=llama), speculation="a draft model", **settings)
    assert isinstance(core.strategy, SpeculativeSteps)
    assert isinstance(core.strategy._proposer, DraftModel)
    caches = [*core.strategy.runner.layers, *core.strategy._proposer._runner.layers]
    assert populated == (set() if memory is None else {rows.data_ptr() for cache in caches for rows in cache.tensors})


class TestRefusals:
    def test_another_tokenizer(self, llama: LoadedModel, tmp_path: Path) -> None:
        with pytest.raises(
            ModelLoadError, match=r"draft cannot be the draft model of llama: their tokenizers differ \(token \d+ is"
        ):
            draft_for(llama, tmp_path / "draft", family="qwen3")

    def test_a_shorter_memory_than_the_draft_model_s(self, llama: LoadedModel, tmp_path: Path) -> None:
        window = load(make_model(tmp_path / "window", "mistral-window"))
        with pytest.raises(ModelLoadError, match="looks further back than the 16 tokens that are kept"):
            make_core(replace(window, draft=llama), speculation="a draft model")

    def test_a_name_that_is_none(self, llama: LoadedModel) -> None:
        settings = EngineSettings(model="models/guide", speculation="prompt_lookup")
        with pytest.raises(ModelLoadError, match="speculation=prompt_lookup cannot be the draft model: There is no"):
            with_draft_model(llama, settings, lambda _stage, _fraction: None)


@pytest.mark.slow
def test_the_engine_serves_with_a_draft_model_and_wakes_with_it(tmp_path: Path) -> None:
    path = make_model(tmp_path / "llama", "llama", seed=1)
    chosen: dict[str, Any] = {"model": str(path), "dtype": "float32", "max_model_len": MAX_LEN, "kv_cache_memory": 0.01}

    async def replies(**more: Any) -> list[tuple[int, ...]]:
        got = []
        async with Engine(EngineSettings(**chosen, **more)) as engine:
            for _ in range(2):
                tokens: list[int] = []
                async for delta in engine.complete([5, 6, 7], GREEDY):
                    tokens += delta.token_ids
                got.append(tuple(tokens))
                await engine.sleep()
                await engine.wake()
            assert (engine.stats().accepted_draft_tokens > 0) is bool(more)
        return got

    assert asyncio.run(replies(speculation=str(path))) == asyncio.run(replies())
