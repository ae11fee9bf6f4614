"""Tokens that a grammar forces come several in a step, and the replies are those of one step for each token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from engine import EngineSettings, SamplingParams, StructuredOutput, StructureKind
from engine.execution.load import load_model
from engine.execution.steps import selection
from engine.execution.steps.multi_step import MultiSteps
from engine.execution.steps.speculative import SpeculativeSteps
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.sampling.grammar import GrammarMatcher
from testing.core_requests import GREEDY, SAMPLED, ReaderRecord, add, compute_sequentially, finish
from testing.models import make_model
from testing.native import needs_compiler

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEMA = {
    "type": "object",
    "properties": {
        "first_long_name": {"type": "string", "maxLength": 3},
        "second_long_name": {"enum": ["abcdefgh", "abcdefgx"]},
        "third": {"const": "exactly this text, and no other"},
    },
    "required": ["first_long_name", "second_long_name", "third"],
    "additionalProperties": False,
}
FORM = StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(SCHEMA))
HELD = replace(GREEDY, structured=FORM, max_tokens=150)
PROMPT = [5, 6, 7, 8]
ASKED: dict[str, SamplingParams] = {
    "greedy": HELD,
    "sampled": replace(SAMPLED, structured=FORM, max_tokens=150),
    "several": replace(SAMPLED, structured=FORM, max_tokens=150, n=3),
    "cut": replace(HELD, max_tokens=9),
    "stopped": replace(HELD, stop=("long_n",)),
    "scored": replace(HELD, logprobs=2),
    "free": replace(GREEDY, max_tokens=40),
}


@pytest.fixture(scope="module", params=[True, False], ids=["native", "torch"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_model(tmp_path_factory.mktemp("models") / "qwen2", "qwen2", seed=3)
    settings = EngineSettings(_env_file=None, model=str(path), dtype="float32", device="cpu", native=request.param)
    return load_model(settings, lambda _stage, _fraction: None)


def make_core(model: LoadedModel, **chosen: Any) -> EngineCore:
    given: dict[str, Any] = {"max_model_len": 200, "max_num_seqs": 12, "max_batched_tokens": 64, "num_kv_blocks": 700}
    return EngineCore(model, EngineSettings(_env_file=None, **{**given, "kv_block_size": 4, "device": "cpu", **chosen}))


def run(core: EngineCore, asked: dict[str, SamplingParams]) -> tuple[ReaderRecord, int]:
    """Returns what the readers received, and the number of steps that the model computed."""
    for name, params in asked.items():
        add(core, name, PROMPT, params)
    runner: Any = core.strategy.runner
    execute, plans = runner.execute, []
    runner.execute = lambda plan: (plans.append(plan), execute(plan))[1]
    return finish(core), len(plans)


@needs_compiler
@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
def test_replies_are_those_of_one_step_for_each_token(model: LoadedModel, speculation: str) -> None:
    core, plain = make_core(model, speculation=speculation), make_core(model)
    compute_sequentially(plain)
    expected, _steps = run(plain, ASKED)
    found, _steps = run(core, ASKED)
    assert found.tokens == expected.tokens
    assert found.reasons == expected.reasons
    assert not found.failures
    stats = core.stats()
    assert plain.stats().draft_tokens == 0
    assert stats.accepted_draft_tokens > 50
    if speculation == "off":  # what is forced is never wrong; a stop string ended one reply within
        assert stats.draft_tokens - stats.accepted_draft_tokens < 16


@needs_compiler
def test_forced_text_takes_few_steps(model: LoadedModel) -> None:
    core, plain = make_core(model), make_core(model)
    assert isinstance(core.strategy, MultiSteps | SpeculativeSteps)
    compute_sequentially(plain)
    (found, steps), (expected, single_steps) = run(core, {"r": HELD}), run(plain, {"r": HELD})
    assert found.tokens == expected.tokens
    assert steps < single_steps / 2


@needs_compiler
def test_the_rows_of_a_step_have_a_limit(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MIN_SAMPLED_ROWS", 5)
    core = make_core(model, max_num_seqs=3)
    runner: Any = core.strategy.runner
    execute, rows = runner.execute, []
    runner.execute = lambda plan: (rows.append(plan.num_sampled_rows), execute(plan))[1]
    for index in range(3):
        add(core, f"r{index}", PROMPT, replace(SAMPLED, structured=FORM, max_tokens=150, seed=index))
    finish(core)
    assert max(rows) == 5


@needs_compiler
def test_a_grammar_that_fails_ends_its_own_reply_alone(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = GrammarMatcher._follow

    def failing(matcher: GrammarMatcher, token_ids: list[int], num_prompt_tokens: int) -> None:
        follow(matcher, token_ids, num_prompt_tokens)
        if matcher._request_id == "broken" and len(token_ids) > 20:
            matcher._matcher.consume_tokens([0, 0, 0])
            matcher._check()

    healthy, _steps = run(make_core(model), {"greedy": HELD})
    monkeypatch.setattr(GrammarMatcher, "_follow", failing)
    plain = make_core(model)
    compute_sequentially(plain)
    expected, _steps = run(plain, {"greedy": HELD, "broken": HELD})
    found, _steps = run(make_core(model), {"greedy": HELD, "broken": HELD})
    assert found.failures == expected.failures
    assert found.failures.keys() == {"broken"}
    assert found.tokens["greedy", 0] == healthy.tokens["greedy", 0]
