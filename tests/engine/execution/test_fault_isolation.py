"""What a request's own parameters make fail ends that request alone; the step goes on with the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine import Delta, Engine, EngineSettings, InvalidRequestError, SamplingParams
from engine.execution.fault_isolation import find_failing_rows
from engine.execution.load import load_model
from engine.runtime.engine_core import EngineCore
from engine.sampling.sampler import SamplingRow
from engine.text.detokenizer import DetokenizedText, Detokenizer
from testing.delayed_device import DelayedDevice
from testing.models import make_model

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
SAMPLED = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1, top_k=7, seed=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", eos=False)


def settings(path: Path, *, native: bool) -> EngineSettings:
    return EngineSettings(model=str(path), dtype="float32", native=native, max_num_seqs=4, max_batched_tokens=64)


def beyond_64_bits(row: SamplingRow) -> None:
    row.top_k = 2**63
    row.is_greedy = False


def no_bias(row: SamplingRow) -> None:
    row.adjusts_logits = True
    row.bias_ids, row.bias_values = np.array([2**40]), np.array([1.0], dtype=np.float32)


def broken_ban(row: SamplingRow) -> None:
    class Ban:
        def banned(self, token_ids: object, num_prompt_tokens: int) -> NDArray[np.int64]:
            raise RuntimeError("the grammar is broken")

    row.adjusts_logits = True
    row._bans = (Ban(),)


def no_temperature(row: SamplingRow) -> None:
    row.temperature = "hot"  # type: ignore[assignment]
    row.is_greedy = False


def run(core: EngineCore, attack: Any = None) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens of two bystanders and an attacker, and the errors."""
    asked = {"greedy": ([5, 6, 7], GREEDY), "attacker": ([9, 8], SAMPLED), "sampled": ([20, 21], SAMPLED)}
    for id_, (prompt, params) in asked.items():
        submission = core.request_processor.process(id_, prompt, core.request_processor.resolve(prompt, params))
        if id_ == "attacker" and attack is not None:
            attack(submission.sampling)
        core.add(submission)
    tokens: dict[str, list[int]] = {id_: [] for id_ in asked}
    errors: dict[str, str] = {}
    while core.has_work:
        result = core.step()
        for delta in result.deltas:
            tokens[delta.request_id] += delta.token_ids
        errors |= {id_: str(error) for id_, error in result.failures}
    core.check()
    return tokens, errors


@pytest.mark.parametrize("device", ["numpy", "native", "overlapped"])
@pytest.mark.parametrize("attack", [beyond_64_bits, no_bias, broken_ban, no_temperature])
def test_parameters_that_cannot_be_computed_end_their_request_alone(path: Path, device: str, attack: Any) -> None:
    chosen = settings(path, native=device == "native")
    model = load_model(chosen, lambda stage, fraction: None)

    def core() -> EngineCore:
        return EngineCore(model, chosen, readback=DelayedDevice() if device == "overlapped" else None)

    expected, errors = run(core())
    assert not errors
    tokens, errors = run(core(), attack)
    if device != "native" and attack is beyond_64_bits and not errors:
        assert len(tokens["attacker"]) == 12  # Python's own integers hold it
    else:
        assert list(errors) == ["attacker"]
        assert "Change them and send the message again." in errors["attacker"]
        assert not tokens["attacker"]
    assert (tokens["greedy"], tokens["sampled"]) == (expected["greedy"], expected["sampled"])


def test_text_that_cannot_be_made_ends_its_request_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(path, native=False)
    core = EngineCore(load_model(chosen, lambda stage, fraction: None), chosen)
    expected, _errors = run(core)
    made = iter(range(3))
    plain = core.request_processor.replies.make_detokenizer

    class Broken(Detokenizer):
        def push(self, *args: Any) -> Any:
            raise RuntimeError("no text")

        def finish(self) -> DetokenizedText:
            raise RuntimeError("no text at the end either")

    def text_stream(*args: Any) -> Detokenizer:
        stream = plain(*args)
        if next(made) == 1:
            stream.__class__ = Broken
        return stream

    monkeypatch.setattr(core.request_processor.replies, "make_detokenizer", text_stream)
    tokens, errors = run(core)
    assert list(errors) == ["attacker"]
    assert (tokens["greedy"], tokens["sampled"]) == (expected["greedy"], expected["sampled"])


def test_a_text_that_fails_at_its_end_fails_no_step(path: Path) -> None:
    chosen = settings(path, native=False)
    core = EngineCore(load_model(chosen, lambda stage, fraction: None), chosen)
    submission = core.request_processor.process("attacker", [9, 8], core.request_processor.resolve([9, 8], SAMPLED))

    def fail() -> DetokenizedText:
        raise RuntimeError("no text")

    submission.detokenizer.finish = fail  # type: ignore[method-assign]
    core.add(submission)
    core.step()
    assert core.abort("attacker")
    assert not core.has_work
    core.check()


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("the device fell off")])
def test_where_no_row_fails_alone_the_step_has_failed(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        find_failing_rows(error, torch.zeros(3, 5), lambda index: None)


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[Engine]:
    async with Engine(settings(path, native=False)) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ([5, 6], {"priority": 10**400}, "priority must be between -1000 and 1000"),
        ([5, 6], {"priority": float("nan")}, "priority must be a whole number"),
        ([5, 6], {"deadline": 10**400}, "deadline must be a number of seconds greater than 0"),
        ([5, 2**64], {}, "The prompt holds token id 18446744073709551616"),
        ([5, 6.5], {}, "whole numbers"),
        ([5, None], {}, "whole numbers"),
    ],
)
async def test_the_engine_itself_refuses_what_its_step_cannot_hold(
    engine: Engine, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    bystander = asyncio.create_task(read(engine.complete([7, 8, 9], GREEDY)))
    with pytest.raises(InvalidRequestError, match=sentence):
        await read(engine.complete(prompt, GREEDY, **options))
    assert sum(len(delta.token_ids) for delta in await bystander) == 12
    assert engine.status.num_restarts == 0
