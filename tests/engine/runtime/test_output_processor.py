"""What a call of the runner gives: the deltas of several steps, with a strategy that follows a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from engine import EngineSettings, SamplingParams
from engine.errors import EngineError, LogitsError
from engine.execution.load import load_model
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.outputs import FinishReason
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_processor import StepOutput
from testing.models import make_model

STOP = 60
Step = Mapping[str, int] | EngineError  # the token of each request; or why the reply fails


class ScriptedSteps(StepStrategy):
    """Makes all steps of the script in one call."""

    def __init__(self, core: EngineCore, *steps: Step) -> None:
        super().__init__(core.strategy.scheduler, core.strategy.runner, core.strategy.sampler)
        self._steps = steps

    def advance(self) -> Iterator[ComputedStep]:
        for number, step in enumerate(self._steps):
            failures = {"r": step} if isinstance(step, EngineError) else {}
            tokens = {} if isinstance(step, EngineError) else step
            yield ComputedStep(self.plan(), tokens, 0.0, failures=failures, is_continuation=number > 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", "llama", seed=3, eos=False)


def run(path: Path, params: SamplingParams, *steps: Step) -> StepOutput:
    settings = EngineSettings(model=str(path), dtype="float32", max_model_len=96, num_kv_blocks=200, kv_block_size=4)
    core = EngineCore(load_model(settings, lambda _stage, _fraction: None), settings)
    prompt = list(range(40, 51))
    core.add(core.request_processor.process("r", prompt, core.request_processor.resolve(prompt, params)))
    core._strategy = ScriptedSteps(core, *steps)
    return core.step()


def test_the_delta_that_ends_a_call_comes_last_whatever_reply_began_first(path: Path) -> None:
    params = SamplingParams(n=2, max_tokens=3, stop_token_ids=[STOP])
    output = run(path, params, {"r": 41, "r/1": 42}, {"r": 43, "r/1": STOP}, {"r": 44})
    assert [(delta.index, delta.token_ids, delta.finish_reason, delta.is_last) for delta in output.deltas] == [
        (1, (42, STOP), FinishReason.STOP, False),
        (0, (41, 43, 44), FinishReason.LENGTH, True),
    ]


def test_a_reply_that_fails_in_a_later_step_keeps_the_text_of_those_before(path: Path) -> None:
    failure = LogitsError("its scores are not numbers", request_ids=("r",))
    output = run(path, SamplingParams(max_tokens=9), {"r": 41}, {"r": 43}, failure)
    [delta] = output.deltas
    assert (delta.token_ids, delta.prompt_tokens) == ((41, 43), 11)
    assert delta.text
    assert output.failures == [("r", failure)]
