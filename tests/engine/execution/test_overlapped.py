"""Steps that overlap give the replies of steps that do not, whatever happens meanwhile. Not run on a GPU.

Here the device is the processor, with results that nobody may read before they are waited for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.execution.capacity
from engine import BeamSearchParams, EngineSettings, FinishReason, SamplingParams
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_processor import StepOutput
from engine.sampling import async_sampler, gpu
from engine.sampling.sampler import Sampler
from engine.scheduling.cache_layout import CacheLayout, blocks_for_sequence
from engine.scheduling.in_flight import InFlight
from testing.core_requests import (
    GREEDY,
    MAX_LEN,
    MAX_REPLY_TOKENS,
    ON_HOST,
    SAMPLED,
    AdjustableClock,
    ReaderRecord,
    add,
    finish,
    run_scenario,
)
from testing.delayed_device import DelayedDevice, DelayedReading, ReadTooEarlyError
from testing.models import make_model
from testing.recorded_ops import OpRecorder
from tests.engine.execution.test_graphs import RecordableKernel

BLOCK = 4


@pytest.fixture(
    scope="module",
    params=["llama", *(pytest.param(family, marks=pytest.mark.full) for family in ("mistral-window", "gemma2"))],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_model(tmp_path_factory.mktemp("models") / request.param, request.param, seed=3, eos=False))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_model(tmp_path_factory.mktemp("models") / "llama", "llama", seed=3, eos=False))


def load(path: Path) -> LoadedModel:
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu", native=False)
    return load_model(settings, lambda _stage, _fraction: None)


BEAMS = replace(GREEDY, n=2, beam_search=BeamSearchParams(width=4))


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks nothing of the device, as those for GPUs."""
    monkeypatch.setattr(engine.execution.capacity, "select_kernel", lambda *_: (RecordableKernel(), BLOCK))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedDevice]:
    with DelayedDevice().guarded(monkeypatch) as device:
        yield device


def make_core(
    model: LoadedModel, device: DelayedDevice | None = None, recorder: OpRecorder | None = None, **chosen: Any
) -> EngineCore:
    settings = EngineSettings(
        **{
            "max_model_len": MAX_LEN,
            "max_num_seqs": 6,
            "max_batched_tokens": 16,
            "num_kv_blocks": 200,
            "cuda_graphs": recorder is not None,
            **chosen,
        }
    )
    core = EngineCore(model, settings, recorder, device)
    core.strategy.sampler.sampler = Sampler(gpu)  # what a GPU's tokens are drawn with
    return core


def alone(device: DelayedDevice, model: LoadedModel, prompt: Sequence[int], params: SamplingParams) -> ReaderRecord:
    """The reply of an engine whose steps do not overlap, to nobody else."""
    with device.reads_allowed():
        core = make_core(model)
        add(core, "r", prompt, params)
        return finish(core)


# -- everything at once -------------------------------------------------------------------------------------------


def run_one(
    model: LoadedModel, seed: int, device: DelayedDevice, clock: AdjustableClock, expected: dict[Any, ReaderRecord]
) -> Counter[str]:
    rng = random.Random(seed)
    max_num_seqs = rng.choice([1, 3, 6])
    recorder = OpRecorder() if seed % 3 == 0 else None
    budget = max_num_seqs + rng.choice([0, 3, 20])
    least = blocks_for_sequence(CacheLayout.of(model.layers).windows, MAX_LEN, budget, BLOCK) + 1
    core = make_core(
        model,
        device,
        recorder,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=budget,
        num_kv_blocks=least + rng.choice([0, 0, 6, 100]),
        enable_prefix_caching=rng.random() < 0.8,
    )
    seen = run_scenario(rng, core, clock, lambda prompt, params: expect(device, model, prompt, params, expected))
    assert device.unread == 0
    seen["repeats"] += recorder.num_repeats if recorder else 0
    return seen


def expect(
    device: DelayedDevice,
    model: LoadedModel,
    prompt: list[int],
    params: SamplingParams,
    expected: dict[Any, ReaderRecord],
) -> ReaderRecord:
    key = tuple(prompt), repr(params)
    if key not in expected:
        expected[key] = alone(device, model, prompt, params)
    return expected[key]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(6), *(pytest.param(range(n, n + 20), marks=pytest.mark.full) for n in (10, 30, 50))]
)
def test_whatever_happens_the_replies_are_the_same(
    model: LoadedModel, seeds: range, device: DelayedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AdjustableClock()
    for module in (
        "execution.steps.strategy",
        "execution.steps.overlapped",
        "runtime.request_processor",
        "runtime.output_processor",
    ):
        monkeypatch.setattr(f"engine.{module}.monotonic", clock)
    monkeypatch.setattr(gpu, "FIRST_CANDIDATES", 3)  # so that draws turn out to be wrong
    expected: dict[Any, ReaderRecord] = {}
    seen = Counter[str]()
    for seed in seeds:
        seen += run_one(model, seed, device, clock, expected)
    for what in ("aborts", "deadlines", "stops", "preemptions", "prefix hits", "repeats"):
        assert seen[what] > 0, what
    assert device.num_overlapped > 100


# -- one thing at a time ------------------------------------------------------------------------------------------


def test_each_step_begins_before_the_one_before_it_is_read(llama: LoadedModel, device: DelayedDevice) -> None:
    core = make_core(llama, device)
    add(core, "a", list(range(5, 9)), GREEDY)
    add(core, "b", list(range(5, 39)), replace(SAMPLED, top_p=0.9))  # in chunks, beside the first
    record = finish(core)
    assert record.tokens["a", 0] == alone(device, llama, list(range(5, 9)), GREEDY).tokens["r", 0]
    assert device.num_overlapped == core.stats().num_steps - 1


def test_reading_too_early_would_be_seen(llama: LoadedModel, device: DelayedDevice) -> None:
    core = make_core(llama, device)
    add(core, "a", [5, 6], GREEDY)
    core.step()
    with pytest.raises(ReadTooEarlyError):
        torch.zeros(2).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("params", [*ON_HOST, BEAMS], ids=lambda params: repr(params)[-60:])
def test_who_needs_the_host_stops_the_overlap_only_while_it_writes(
    llama: LoadedModel, device: DelayedDevice, params: SamplingParams
) -> None:
    prompts = [list(range(5, 12)), list(range(40, 50))]
    core = make_core(llama, device)
    add(core, "a", prompts[0], replace(GREEDY, max_tokens=40))
    record = ReaderRecord()
    for _ in range(3):
        record.add(core.step())
    before = device.num_overlapped
    assert before > 0
    add(core, "b", prompts[1], params)
    while ("b", params.n - 1) not in record.reasons:
        record.add(core.step())
        core.check()
    between = device.num_overlapped
    finish(core, record)
    assert device.num_overlapped > between + 10
    assert record.tokens["a", 0] == alone(device, llama, prompts[0], replace(GREEDY, max_tokens=40)).tokens["r", 0]
    whole = alone(device, llama, prompts[1], params)
    for index in range(params.n):
        assert record.tokens["b", index] == whole.tokens["r", index]
    if params.n == 1 and params.prompt_logprobs is None:
        assert between == before  # every step of its reply was sampled on the host


@pytest.mark.parametrize("asked", [{"top_n_sigma": 0.5}, {"top_n_sigma": 2.0, "top_k": 9, "top_p": 0.9}])
def test_top_n_sigma_is_sampled_on_the_device(llama: LoadedModel, device: DelayedDevice, asked: dict[str, Any]) -> None:
    params = replace(SAMPLED, temperature=1.5, **asked)
    core = make_core(llama, device)
    add(core, "a", [5, 6, 7], params)
    record = finish(core)
    assert device.num_overlapped == core.stats().num_steps - 1
    assert record.tokens["a", 0] == alone(device, llama, [5, 6, 7], params).tokens["r", 0]


def test_draws_from_too_few_candidates_are_put_right(
    llama: LoadedModel, device: DelayedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "FIRST_CANDIDATES", 2)
    monkeypatch.setattr(async_sampler, "CANDIDATES_GROWTH", 1)  # they stay too few
    invalidations: list[str] = []
    void = InFlight.invalidate
    monkeypatch.setattr(
        InFlight, "invalidate", lambda self, chunk: invalidations.append(chunk.request.id) or void(self, chunk)
    )
    core = make_core(llama, device)
    asked = {f"r{seed}": replace(SAMPLED, seed=seed, temperature=1.5, top_p=0.95) for seed in range(4)}
    asked["greedy"] = GREEDY
    for name, params in asked.items():
        add(core, name, [9, 8, 7], params)
    record = finish(core)
    for name, params in asked.items():
        assert record.tokens[name, 0] == alone(device, llama, [9, 8, 7], params).tokens["r", 0]
    assert len(invalidations) > 10
    assert "greedy" not in invalidations


def test_candidates_grow_with_those_that_were_too_few(
    llama: LoadedModel, device: DelayedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "FIRST_CANDIDATES", 2)
    core = make_core(llama, device)
    add(core, "a", [9, 8, 7], replace(SAMPLED, temperature=1.5, top_p=0.95, max_tokens=40))
    record = finish(core)
    assert len(record.tokens["a", 0]) == 40
    assert core.stats().num_steps <= 40 + 4


# -- what a row too many may not do -------------------------------------------------------------------------------


def test_who_has_ended_keeps_its_blocks_until_its_last_row_is_computed(
    llama: LoadedModel, device: DelayedDevice
) -> None:
    whole = alone(device, llama, [5, 6, 7], GREEDY).tokens["r", 0]
    core = make_core(llama, device)
    add(core, "a", [5, 6, 7], replace(GREEDY, stop_token_ids=(whole[3],)))
    record = ReaderRecord()
    while ("a", 0) not in record.reasons:
        record.add(core.step())
    assert record.reasons["a", 0] is FinishReason.STOP
    assert core.stats().kv_cache_usage > 0
    assert core.has_work
    finish(core, record)
    assert record.tokens["a", 0] == whole[: whole.index(whole[3]) + 1]


def test_a_stop_string_ends_a_reply_that_has_gone_on(llama: LoadedModel, device: DelayedDevice) -> None:
    text = alone(device, llama, [5, 6, 7], GREEDY).text
    params = replace(GREEDY, stop=(text[6:9],))
    core = make_core(llama, device)
    add(core, "a", [5, 6, 7], params)
    record = finish(core)
    assert record.reasons["a", 0] is FinishReason.STOP
    assert record.text == text[: text.index(text[6:9])]
    assert record.tokens["a", 0] == alone(device, llama, [5, 6, 7], params).tokens["r", 0]


def test_the_last_token_that_fits_has_no_row_too_many(llama: LoadedModel, device: DelayedDevice) -> None:
    """Its length is known beforehand, and behind the context's end there is no block."""
    core = make_core(llama, device, num_kv_blocks=MAX_LEN // BLOCK + 1)
    add(core, "a", [5, 6, 7], replace(GREEDY, max_tokens=MAX_LEN))
    record = finish(core)
    assert len(record.tokens["a", 0]) == MAX_LEN - 3
    assert core.stats().num_steps == MAX_LEN - 3
    assert core.stats().num_preemptions == 0


def test_an_abort_in_the_middle_of_a_step(llama: LoadedModel, device: DelayedDevice) -> None:
    core = make_core(llama, device)
    add(core, "a", [5, 6, 7], GREEDY)
    add(core, "b", [8, 9], replace(GREEDY, max_tokens=30))
    record = ReaderRecord()
    for _ in range(4):
        record.add(core.step())
    heard = len(record.tokens["a", 0])
    assert core.abort("a")
    core.check()
    assert not core.abort("a")
    finish(core, record)
    assert len(record.tokens["a", 0]) == heard
    assert record.tokens["b", 0] == alone(device, llama, [8, 9], replace(GREEDY, max_tokens=30)).tokens["r", 0]


def test_ending_everything_waits_for_the_device(llama: LoadedModel, device: DelayedDevice) -> None:
    core = make_core(llama, device)
    for name in "abc":
        add(core, name, [5, 6, 7], GREEDY)
    for _ in range(3):
        core.step()
    assert device.unread == 1
    core.abort_all()
    assert device.unread == 0
    assert not core.has_work
    core.check()
    assert core.stats().kv_cache_usage == 0


# -- what breaks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, list[int], int, int]:
    """A model that computes NaN from one token; and a prompt behind which it says this token, at that place."""
    model = load(make_model(tmp_path_factory.mktemp("models") / "poisoned", "llama", seed=3, eos=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.execution.capacity, "select_kernel", lambda *_: (RecordableKernel(), BLOCK))
        whole = alone(DelayedDevice(), model, [5, 6, 7], GREEDY).tokens["r", 0]
    first_seen = (index for index in range(3, MAX_REPLY_TOKENS) if whole[index] not in {5, 6, 7, *whole[:index]})
    at = next(index for index in first_seen if (3 + index) % BLOCK > 1)  # behind rows that others write before
    with torch.inference_mode():
        module: Any = model.module
        module.get_input_embeddings().weight[whole[at]] = torch.nan
    return model, [5, 6, 7], whole[at], at


def harmless(device: DelayedDevice, model: LoadedModel, count: int) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts whose replies do not come upon the token that breaks it, and these replies."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for first in range(10, 200, 3):
        prompt = [first, first + 1, first + 2]
        record = alone(device, model, prompt, replace(GREEDY, max_tokens=24))
        if not record.failures:
            found[f"r{first}"] = prompt, record.tokens["r", 0]
        if len(found) == count:
            break
    return found


def test_unusable_scores_fail_their_own_request_only(
    poisoned: tuple[LoadedModel, list[int], int, int], device: DelayedDevice
) -> None:
    model, prompt, poison, at = poisoned
    core = make_core(model, device, num_kv_blocks=44)
    ((_, (other, expected)),) = harmless(device, model, 1).items()
    add(core, "bad", prompt, GREEDY)
    add(core, "good", other, replace(GREEDY, max_tokens=24))
    record = finish(core)
    assert record.failures == {"bad": "LogitsError"}
    assert record.tokens["bad", 0][-1] == poison
    assert len(record.tokens["bad", 0]) == at + 1
    assert record.tokens["good", 0] == expected


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["stops", "is aborted"])
def test_nan_in_a_row_too_many_harms_nobody(
    ends: str, poisoned: tuple[LoadedModel, list[int], int, int], device: DelayedDevice
) -> None:
    """A reply ends with the very token from which NaN is computed, and others get its blocks."""
    model, prompt, poison, at = poisoned
    params = replace(GREEDY, stop_token_ids=(poison,)) if ends == "stops" else GREEDY
    # Others wait until it has ended: then they get blocks that it has written to, and a graph reads whole blocks.
    core = make_core(model, device, OpRecorder(), num_kv_blocks=MAX_LEN // BLOCK + 1, max_num_seqs=1)
    others = harmless(device, model, 4)
    record = ReaderRecord()
    add(core, "bad", prompt, params)
    for name, (tokens, _expected) in others.items():
        add(core, name, tokens, replace(GREEDY, max_tokens=24))
    while len(record.tokens.get(("bad", 0), ())) <= at:
        record.add(core.step())
    if ends == "is aborted":
        assert core.abort("bad")
    finish(core, record)
    assert record.failures == {}
    for name, (_tokens, expected) in others.items():
        assert record.tokens[name, 0] == expected


@pytest.mark.parametrize("late", [False, True], ids=["while it is queued", "while it is computed"])
def test_a_failed_step_takes_those_that_were_computed_and_the_others_go_on(
    late: bool, llama: LoadedModel, device: DelayedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(llama, device, max_num_seqs=2)
    for name, first in (("a", 20), ("b", 30), ("c", 40)):
        add(core, name, [first, first + 1], GREEDY)
    for _ in range(4):
        core.step()

    def fail(*_: object) -> None:
        raise RuntimeError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(DelayedReading, "wait", fail) if late else patch.setattr(Runner, "execute", fail)
        with pytest.raises(RuntimeError, match="fell off"):
            core.step()
    failed, waiting = core.evacuate()
    assert {one.request.id for one in failed} == {"a", "b"}
    assert [one.request.id for one in waiting] == ["c"]
    device.unread = 0  # what it was given is lost
    other = make_core(llama, device)
    for submission in waiting:
        other.add(submission)
    assert finish(other).tokens["c", 0] == alone(device, llama, [40, 41], GREEDY).tokens["r", 0]


def test_what_completed_before_the_failure_is_output(
    llama: LoadedModel, device: DelayedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed step waited for the one before it, which had a reply's last token."""
    core, output = make_core(llama, device), StepOutput()
    add(core, "ends", [20, 21], replace(GREEDY, max_tokens=3))
    record = ReaderRecord()
    for _ in range(3):
        record.add(core.step())
    assert len(record.tokens["ends", 0]) == 2
    add(core, "fails", [30, 31], replace(GREEDY, logprobs=1))

    def fail(*_: object) -> None:
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(Runner, "execute", fail)
    with pytest.raises(RuntimeError, match="fell off"):
        core.step(output)
    record.add(output)
    assert record.reasons == {("ends", 0): FinishReason.LENGTH}
    assert len(record.tokens["ends", 0]) == 3
    failed, waiting = core.evacuate()
    assert ([one.stream_id for one in failed], waiting) == (["fails"], [])


def test_replies_that_are_taken_over_go_on_where_they_were(llama: LoadedModel, device: DelayedDevice) -> None:
    """What was on its way is forgotten, and computed again."""
    core = make_core(llama, device)
    asked = {"a": GREEDY, "b": replace(SAMPLED, top_k=9), "c": replace(GREEDY, max_tokens=4)}
    for name, params in asked.items():
        add(core, name, [20, 21, 22], params)
    record = ReaderRecord()
    for _ in range(4):
        record.add(core.step())
    core.strategy.request_ids = ()  # nobody is to blame
    failed, waiting = core.evacuate()
    device.unread = 0
    assert failed == []
    other = make_core(llama, device)
    for submission in waiting:
        other.add(submission)
    finish(other, record)
    for name, params in asked.items():
        assert record.tokens[name, 0] == alone(device, llama, [20, 21, 22], params).tokens["r", 0]


def test_it_can_be_turned_off(llama: LoadedModel, device: DelayedDevice) -> None:
    core = make_core(llama, device, overlap=False)
    add(core, "a", [5, 6, 7], GREEDY)
    finish(core)
    assert device.waits == []
