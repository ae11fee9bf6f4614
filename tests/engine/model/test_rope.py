"""Rotary embeddings of every kind, past the length the model was first made for, beside shorter requests."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineSettings, SamplingParams
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.models import make_model
from testing.reference import Comparison, Reference, ReferenceReply

ORIGINAL = 40
HALF_HEAD_DIM = 8
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear"},
    "dynamic": {"rope_type": "dynamic"},
    "yarn": {"rope_type": "yarn", "original_max_position_embeddings": ORIGINAL},
    "llama3": {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0 + 0.05 * index for index in range(HALF_HEAD_DIM)],
        "long_factor": [1.5 + 0.4 * index for index in range(HALF_HEAD_DIM)],
    },
}


def make(path: Path, kind: str, family: str = "llama") -> tuple[LoadedModel, Reference]:
    rope = {"rope_theta": 10_000.0, "factor": 4.0, **KINDS[kind]}
    # How config.json states the window: before it is stretched, or after.
    window = ORIGINAL if kind in ("dynamic", "yarn") else 4 * ORIGINAL
    config = {"rope_parameters": rope, **({"sliding_window": None} if family == "phi3" else {})}
    make_model(path, family, seed=3, eos=False, max_position_embeddings=window, config=config)
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu")
    return load_model(settings, lambda _stage, _fraction: None), Reference(path)


def alone(reference: Reference, prompt: list[int], max_tokens: int) -> ReferenceReply:
    """What transformers says of a model that has seen nothing before: ``dynamic`` remembers the longest sequence."""
    return _alone(reference.path, tuple(prompt), max_tokens)


@cache
def _alone(path: Path, prompt: tuple[int, ...], max_tokens: int) -> ReferenceReply:
    return Reference(path).greedy(prompt, max_tokens)


def make_core(model: LoadedModel, **settings: Any) -> EngineCore:
    return EngineCore(model, EngineSettings(max_model_len=96, num_kv_blocks=200, kv_block_size=4, **settings))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 390), k=length)


def together(core: EngineCore, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    for index, prompt in enumerate(prompts):
        core.add(core.request_processor.process(str(index), prompt, core.request_processor.resolve(prompt, params)))
    replies: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        for delta in core.step().deltas:
            replies[int(delta.request_id)] += delta.token_ids
    return replies


@pytest.fixture(scope="module", params=[*KINDS, "longrope-phi3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Reference]:
    kind, _, family = request.param.partition("-")
    return make(tmp_path_factory.mktemp("models") / request.param, kind, family or "llama")


def test_the_window_is_the_stretched_one(pair: tuple[LoadedModel, Reference]) -> None:
    assert pair[0].max_position_embeddings == 4 * ORIGINAL


@pytest.mark.slow
@pytest.mark.parametrize("budget", [300, 11])
def test_short_and_long_side_by_side(pair: tuple[LoadedModel, Reference], budget: int) -> None:
    """Below the original length, across it while replying, and beyond it, in one batch and in chunks."""
    model, reference = pair
    core = make_core(model, max_batched_tokens=budget, max_num_seqs=6)
    prompts = [prompt_of(length, seed=length) for length in (7, 30, 60, 45, 12)]
    comparison = Comparison()
    for _again in range(2):  # the second time mostly from the prefix cache
        for prompt, reply in zip(prompts, together(core, prompts, 20), strict=True):
            comparison.check(reply, alone(reference, prompt, 20), context=f"{len(prompt)} tokens of prompt")
    assert core.stats().cached_prompt_tokens > 100
    assert comparison.ties <= 1


def test_a_conversation_that_outgrows_the_original_length(pair: tuple[LoadedModel, Reference]) -> None:
    """What the cache holds of the shorter turns was turned otherwise, and must not be taken."""
    model, reference = pair
    core = make_core(model)
    prompt = prompt_of(20)
    for _turn in range(4):
        (reply,) = together(core, [prompt], 8)
        Comparison().check(reply, alone(reference, prompt, 8), context=f"{len(prompt)} tokens of prompt")
        prompt = [*prompt, *reply, *prompt_of(5, seed=len(prompt))]
    assert len(prompt) > ORIGINAL


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_what_depends_on_the_length_is_really_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = make(tmp_path / "model", kind)
    untyped: Any = LoadedModel.logits

    def untold(self: LoadedModel, *step: Any) -> torch.Tensor:
        return untyped(self, *step[:4], torch.full_like(step[4], 80))

    monkeypatch.setattr(LoadedModel, "logits", untold)
    (reply,) = together(make_core(model), [prompt_of(12)], 12)
    with pytest.raises(AssertionError, match="which leads by"):
        Comparison().check(reply, reference.greedy(prompt_of(12), 12))
