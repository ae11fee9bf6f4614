"""A step computes its grammars' masks while its forward pass runs, for replies with a form and without one together."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import EngineSettings, SamplingParams, StructuredOutput, StructureKind
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.execution.steps import host_replies, multi_step
from engine.execution.steps.host_replies import HostReplies
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.sampling import grammar_masks
from engine.sampling.grammar import GrammarMatcher, TokenMask, compute_masks
from engine.scheduling.step_plan import StepPlan
from testing.core_requests import GREEDY, SAMPLED, ReaderRecord, add, are_close, compute_sequentially, finish
from testing.models import make_model
from testing.native import needs_compiler

pytestmark = pytest.mark.usefixtures("one_thread")

FORM = StructuredOutput(StructureKind.REGEX, "[a-m]{90,120}")
RECORD = StructuredOutput(StructureKind.REGEX, "(a long text that is dictated: [0-9]{2,3}[.] ){1,5}")
WORD = StructuredOutput(StructureKind.REGEX, "[a-c]{3,9}")
PROMPT = [5, 6, 7, 8]
ASKED = {
    "form": replace(GREEDY, structured=FORM),
    "record": replace(SAMPLED, structured=RECORD),
    "several": replace(SAMPLED, structured=FORM, n=2),
    "free": GREEDY,
    "penalized": replace(SAMPLED, presence_penalty=0.5),
}


@pytest.fixture(scope="module", params=[True, False], ids=["native", "torch"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_model(tmp_path_factory.mktemp("models") / "qwen2", "qwen2", seed=3)
    settings = EngineSettings(_env_file=None, model=str(path), dtype="float32", device="cpu", native=request.param)
    return load_model(settings, lambda _stage, _fraction: None)


def make_core(model: LoadedModel, **chosen: Any) -> EngineCore:
    given: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 12, "max_batched_tokens": 64, "num_kv_blocks": 200}
    return EngineCore(model, EngineSettings(_env_file=None, **{**given, "kv_block_size": 4, "device": "cpu", **chosen}))


class WatchedSteps:
    """Lets a step's forward pass end only after its masks are computed, and records what ran meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []  #: matchers whose masks were computed, of each step
        self.plans: list[list[str]] = []  #: requests of each step
        self.is_working = False
        self._has_begun, self._computed = threading.Event(), threading.Event()
        self._is_expected = False
        execute, beside = Runner.execute, grammar_masks._matchers

        def compute(matchers: Sequence[GrammarMatcher], executor: Any) -> None:
            assert self._has_begun.wait(timeout=20), "the forward pass waits for the masks"
            self.is_working = True
            compute_masks(matchers, executor)
            self.batches.append(len(matchers))
            self._computed.set()
            threading.Event().wait(0.002)  # the forward pass may end first
            self.is_working = False

        def expect(rows: Any) -> list[GrammarMatcher]:
            matchers = beside(rows)
            self._is_expected = bool(matchers)
            self._has_begun.clear()
            self._computed.clear()
            return matchers

        def forward(runner: Runner, plan: StepPlan, *args: Any) -> torch.Tensor:
            self.plans.append([chunk.request.id for chunk in plan.chunks])
            self._has_begun.set()
            logits = execute(runner, plan, *args)
            if self._is_expected:
                assert self._computed.wait(timeout=20), "no mask was computed beside the forward pass"
            return logits

        monkeypatch.setattr(multi_step, "MAX_STEPS", 1)
        monkeypatch.setattr(grammar_masks, "compute_masks", compute)
        monkeypatch.setattr(grammar_masks, "_matchers", expect)
        monkeypatch.setattr(Runner, "execute", forward)


@needs_compiler
@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
def test_masks_are_computed_beside_the_forward_pass_of_all_replies(
    model: LoadedModel, speculation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_core(model)
    compute_sequentially(plain)
    for name, params in ASKED.items():
        add(plain, name, PROMPT, params)
    with monkeypatch.context() as patch:
        patch.setattr(grammar_masks, "_matchers", lambda rows: [])
        expected = finish(plain)
    steps, core = WatchedSteps(monkeypatch), make_core(model, speculation=speculation)
    for name, params in ASKED.items():
        add(core, name, PROMPT, params)
    found = finish(core)
    assert (found.tokens, found.reasons, found.failures) == (expected.tokens, expected.reasons, {})
    together = {"form", "record", "several", "several/1", "free", "penalized"}
    assert any(set(plan) >= together for plan in steps.plans)
    assert max(steps.batches) == 4


@needs_compiler
def test_every_step_with_a_form_has_its_masks(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, core = WatchedSteps(monkeypatch), make_core(model)
    for name in ("form", "several", "free"):
        add(core, name, PROMPT, ASKED[name])
    allowed, alone = GrammarMatcher.allowed, []

    def watch(matcher: GrammarMatcher) -> TokenMask:
        if matcher._allowed is None:
            alone.append(matcher)
        return allowed(matcher)

    monkeypatch.setattr(GrammarMatcher, "allowed", watch)
    assert not finish(core).failures
    assert steps.batches.count(3) >= 14
    assert not alone, "sampling had to compute masks"


@needs_compiler
def test_no_mask_is_being_computed_between_steps(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are aborted, preempted and ended there, and what follows a preemption is what would have followed."""
    params = {f"r{seed}": replace(SAMPLED, structured=FORM, seed=seed) for seed in range(6)}
    roomy = make_core(model)
    for name, one in params.items():
        add(roomy, name, PROMPT, one)
    expected = finish(roomy).tokens
    steps, core, record = WatchedSteps(monkeypatch), make_core(model, num_kv_blocks=18), ReaderRecord()
    for name, one in params.items():
        add(core, name, PROMPT, one)
    for number in itertools.count():
        record.add(core.step())
        assert not steps.is_working
        if number == 4:
            assert core.abort("r0")
        if not core.has_work:
            break
    assert core.stats().num_preemptions
    assert {key: tokens for key, tokens in record.tokens.items() if key != ("r0", 0)} == {
        key: tokens for key, tokens in expected.items() if key != ("r0", 0)
    }


HELD = {
    "form": replace(SAMPLED, structured=FORM),
    "record": replace(GREEDY, structured=RECORD, frequency_penalty=0.2, logprobs=2),
    "word": replace(SAMPLED, structured=WORD),
    "word whose end is ignored": replace(SAMPLED, structured=WORD),
    "words": replace(SAMPLED, forbidden_words=("a", "th")),
    "together": replace(
        SAMPLED,
        structured=WORD,
        bad_words=("ab",),
        logit_bias={7: 3.0, 70: -2.0},
        top_k=9,
        logprobs=1,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        min_tokens=3,
    ),
    "typical": replace(SAMPLED, structured=FORM, typical_p=0.7),
    "nothing left": replace(SAMPLED, structured=StructuredOutput(StructureKind.REGEX, "ab{9}"), bad_words=("bbbb",)),
}


@needs_compiler
@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("max_masked", [1 << 17, 0], ids=["masked", "sampled"])
@pytest.mark.parametrize("seed", range(3))
def test_replies_held_to_a_form_go_on_beside_plain_ones(
    model: LoadedModel, name: str, max_masked: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model.decoder is None:
        pytest.skip("several steps in a call need the C++ decoder")
    monkeypatch.setattr(multi_step, "max_hold_seconds", lambda _readers: 1000.0)
    monkeypatch.setattr(host_replies, "MAX_MASKED_TOKENS", max_masked)
    calls, ways = watch_calls(monkeypatch)
    held = HELD[name]
    params = replace(held, seed=seed, max_tokens=24, ignore_eos=name == "word whose end is ignored")
    plain = replace(SAMPLED, seed=seed, max_tokens=40)

    def run(core: EngineCore, **asked: SamplingParams) -> ReaderRecord:
        for one, own in asked.items():
            add(core, one, PROMPT, own)
        return finish(core)

    alone = make_core(model)
    compute_sequentially(alone)
    expected = run(alone, held=params)
    core = make_core(model)
    core._pacing.observe(1, 0, 0.001)
    found = run(core, plain=plain, held=params, other=replace(params, seed=seed + 9))
    assert max(calls) > 2
    assert ways == {"sample" if name == "typical" or (params.structured and not max_masked) else "fill_mask"}
    assert found.tokens["held", 0] == expected.tokens["held", 0]
    assert found.reasons.get(("held", 0)) == expected.reasons.get(("held", 0))
    assert are_close(found.logprobs["held", 0], expected.logprobs["held", 0])
    assert found.failures.get("held") == expected.failures.get("held")
    assert expected.failures == ({"held": "EveryTokenBannedError"} if name == "nothing left" else {})
    assert len(found.tokens["plain", 0]) == 40


@needs_compiler
def test_cpp_masks_replies_while_other_threads_sample(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    if model.decoder is None:
        pytest.skip("several steps in a call need the C++ decoder")
    monkeypatch.setattr(multi_step, "max_hold_seconds", lambda _readers: 1000.0)
    asked = {f"held{seed}": replace(SAMPLED, structured=FORM, seed=seed, max_tokens=24) for seed in range(3)}
    asked |= {f"plain{seed}": replace(SAMPLED, seed=seed, max_tokens=30) for seed in range(4)}
    asked["typical"] = replace(SAMPLED, structured=FORM, typical_p=0.7)
    alone = make_core(model)
    compute_sequentially(alone)
    core = make_core(model)
    core._pacing.observe(1, 0, 0.001)
    for name, params in asked.items():
        add(alone, name, PROMPT, params)
        add(core, name, PROMPT, params)
    expected = finish(alone)
    _calls, ways = watch_calls(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found = finish(core)
    assert ways == {"fill_mask", "sample"}
    assert (found.tokens, found.failures) == (expected.tokens, {})


@needs_compiler
@pytest.mark.parametrize("max_masked", [1 << 17, 0], ids=["masked", "sampled"])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_grammar_that_cannot_be_followed_ends_its_reply_alone(
    model: LoadedModel, max_masked: int, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model.decoder is None:
        pytest.skip("several steps in a call need the C++ decoder")
    monkeypatch.setattr(multi_step, "max_hold_seconds", lambda _readers: 1000.0)
    monkeypatch.setattr(host_replies, "MAX_MASKED_TOKENS", max_masked)
    asked = {
        "bad": replace(SAMPLED, structured=FORM),
        "good": replace(SAMPLED, structured=FORM, seed=8),
        "plain": replace(SAMPLED, max_tokens=24),
    }
    core, expected, record = make_core(model), make_core(model), ReaderRecord()
    core._pacing.observe(1, 0, 0.001)
    for name, params in asked.items():
        add(core, name, PROMPT, params)
        add(expected, name, PROMPT, params)
    for _ in range(num_steps):
        record.add(core.step())
    row = core.strategy.sampler.sampling_row(core._scheduler.requests[0])
    assert row.matcher is not None
    row.matcher._matcher.consume_tokens([PROMPT[0]])  # no letter: an error, in which it stays
    finish(core, record)
    compute_sequentially(expected)
    whole = finish(expected).tokens
    assert record.failures == {"bad": "LogitsError"}
    assert record.tokens["bad", 0] == whole["bad", 0][: len(record.tokens["bad", 0])]
    for name in ("good", "plain"):
        assert record.tokens[name, 0] == whole[name, 0]


def watch_calls(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], set[str]]:
    """Returns the number of steps in each call, and how the replies that need Python are sampled: both grow."""
    calls: list[int] = []
    ways: set[str] = set()
    execute = Runner.execute_steps

    def counted(runner: Runner, *args: Any) -> Any:
        output = execute(runner, *args)
        calls.append(len(output.tokens))
        return output

    def watch(way: str) -> None:
        original = getattr(HostReplies, way)

        def watched(host: HostReplies, *args: Any) -> Any:
            ways.add(way)
            return original(host, *args)

        monkeypatch.setattr(HostReplies, way, watched)

    monkeypatch.setattr(Runner, "execute_steps", counted)
    watch("fill_mask")
    watch("sample")
    return calls, ways
