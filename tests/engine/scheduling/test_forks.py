"""Several replies to one prompt, which is computed once and then forked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import Delta, Engine, EngineSettings, SamplingParams
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.models import make_model
from testing.waiting import eventually

PROMPT = list(range(40, 51))  # two blocks of four, and three rows of another


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "gemma3", "gemma3", seed=3, eos=False)


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    return load_model(EngineSettings(model=str(path), dtype="float32"), lambda _stage, _fraction: None)


def make_core(model: LoadedModel, **settings: int) -> EngineCore:
    chosen = {"max_model_len": 96, "num_kv_blocks": 200, "kv_block_size": 4, **settings}
    return EngineCore(model, EngineSettings(**chosen))  # type: ignore[arg-type]


def run(core: EngineCore, params: SamplingParams, prompt: list[int] = PROMPT) -> dict[int, list[int]]:
    """The tokens of each reply."""
    core.add(core.request_processor.process("r", prompt, core.request_processor.resolve(prompt, params)))
    tokens: dict[int, list[int]] = {}
    unfinished = params.n
    while core.has_work:
        for delta in core.step().deltas:
            assert delta.request_id == "r"
            tokens.setdefault(delta.index, []).extend(delta.token_ids)
            unfinished -= delta.finish_reason is not None
            assert delta.is_last == (unfinished == 0)
        core.check()
    assert core.stats().kv_cache_usage == 0
    assert not core._submissions
    assert not core._output_processor._streams
    return tokens


def sampled(n: int, max_tokens: int = 12, seed: int = 5) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.0, seed=seed, max_tokens=max_tokens)


def test_greedy_replies_are_all_the_same_reply_and_the_prompt_is_computed_once(model: LoadedModel) -> None:
    alone = run(make_core(model), SamplingParams(temperature=0, max_tokens=12))
    core = make_core(model)
    together = run(core, SamplingParams(temperature=0, max_tokens=12, n=4))
    assert together == dict.fromkeys(range(4), alone[0])
    stats = core.stats()
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.generation_tokens == 4 * 12
    assert stats.requests_finished["length"] == 4


def test_each_reply_has_its_own_noise_and_the_first_that_of_the_seed(model: LoadedModel) -> None:
    replies = run(make_core(model), sampled(4))
    assert len({tuple(tokens) for tokens in replies.values()}) == 4
    assert run(make_core(model), sampled(1))[0] == replies[0]
    assert run(make_core(model), sampled(2)) == {0: replies[0], 1: replies[1]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"max_num_seqs": 2}, {"max_num_seqs": 1}, {"num_kv_blocks": 60}, {"max_batched_tokens": 5, "max_num_seqs": 5}],
    ids=["two seats", "one seat", "few blocks", "small steps"],
)
def test_replies_do_not_depend_on_seats_or_blocks(model: LoadedModel, settings: dict[str, int]) -> None:
    long = sampled(5, max_tokens=40)
    core = make_core(model, **settings)
    assert run(core, long) == run(make_core(model), long)
    if "num_kv_blocks" in settings:
        assert core.stats().num_preemptions > 0


def test_a_block_that_several_write_is_copied(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = run(make_core(model), sampled(3))
    copied = []
    monkeypatch.setattr(Runner, "_copy", lambda _runner, copies: copied.extend(copies))
    assert run(make_core(model), sampled(3)) != replies
    assert [copy.num_rows for copy in copied] == [3] * 4  # two of three replies, in both groups of layers


def test_replies_may_end_with_their_first_token(model: LoadedModel) -> None:
    assert {len(tokens) for tokens in run(make_core(model), sampled(3, max_tokens=1)).values()} == {1}


def test_prompt_scores_come_once(model: LoadedModel) -> None:
    core = make_core(model)
    params = SamplingParams(n=3, temperature=0, max_tokens=3, prompt_logprobs=1)
    core.add(core.request_processor.process("r", PROMPT, core.request_processor.resolve(PROMPT, params)))
    scored = []
    while core.has_work:
        scored += [len(delta.prompt_logprobs) for delta in core.step().deltas if delta.prompt_logprobs]
    assert scored == [len(PROMPT)]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_ends_all_of_them(model: LoadedModel, steps: int) -> None:
    core = make_core(model, max_num_seqs=2)
    core.add(core.request_processor.process("r", PROMPT, core.request_processor.resolve(PROMPT, sampled(4))))
    for _ in range(steps):
        core.step()
    assert core.abort("r")
    assert not core.abort("r")
    assert not core.has_work
    assert not core._submissions
    core.check()
    assert core.stats().requests_finished["abort"] == 4


async def test_through_the_engine(path: Path) -> None:
    async with Engine(EngineSettings(model=str(path), dtype="float32")) as engine:
        deltas: list[Delta] = [delta async for delta in engine.complete(PROMPT, sampled(3))]
        assert sorted(delta.index for delta in deltas if delta.finish_reason) == [0, 1, 2]
        async for _delta in engine.complete(PROMPT, sampled(3, max_tokens=80)):
            break  # closing the stream aborts all replies
        await eventually(lambda: engine.stats().requests_finished["abort"] == 3)
        assert engine.stats().num_requests_running == 0


def test_offline_replies_stand_behind_one_another(path: Path) -> None:
    engine = Engine(EngineSettings(model=str(path), dtype="float32"))
    completions = engine.generate([PROMPT, [7, 8]], [sampled(2), sampled(1)], show_progress=False)
    assert [(len(each.prompt_token_ids), each.index) for each in completions] == [(11, 0), (11, 1), (2, 0)]
    assert completions[0].token_ids != completions[1].token_ids
    asyncio.run(engine.stop())


def test_a_request_whose_replies_cannot_be_kept_leaves_nothing_behind(model: LoadedModel) -> None:
    core = make_core(model)
    submission = core.request_processor.process(
        "r", PROMPT, core.request_processor.resolve(PROMPT, SamplingParams(max_tokens=2, n=2))
    )
    forks, submission.forks = submission.forks, [submission.forks[0], None]  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        core.add(submission)
    assert not core.has_work
    assert not core.abort("r")
    submission.forks = forks
    core.add(submission)  # neither its id nor its stream is taken
    assert core.has_work
