"""SmolLM2, a real model in a real file, reads text and computes logits as llama.cpp does with the same file.

``data/smollm2.json`` holds what llama.cpp said (llama-cpp-python 0.3.36). It quantizes activations to 8 bits, so its
logits are near ours and not equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineSettings, SamplingParams
from engine.execution.attention.hf_attention import register
from engine.model.checkpoint import Checkpoint
from engine.model.filled_module import fill_module
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.outputs import TokenLogprobs
from testing.smollm2 import smollm2

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
END = 2  #: ``<|im_end|>``
WITNESS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text())


def ignore(_stage: str, _share: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def path() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> Checkpoint:
    return open_gguf_checkpoint(path, EngineSettings(model=str(path)), ignore)


@pytest.mark.parametrize("case", WITNESS["texts"], ids=lambda case: repr(case["text"][:12]))
def test_text_has_the_token_ids_of_llama_cpp(checkpoint: Checkpoint, case: dict[str, Any]) -> None:
    assert checkpoint.tokenizer.encode(case["text"]) == case["ids"]
    assert checkpoint.tokenizer.decode(case["ids"]) == case["text"]


def test_the_chat_template_makes_the_prompt(checkpoint: Checkpoint) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = checkpoint.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == WITNESS["replies"][0]["prompt"]


def test_logits_are_near_those_of_llama_cpp(checkpoint: Checkpoint) -> None:
    register()
    module = fill_module(checkpoint, "SmolLM2", torch.float32, torch.device("cpu"), ignore)
    module.set_attn_implementation("eager")
    for reply in WITNESS["replies"]:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([reply["ids"]]), use_cache=False).logits[0, -1]
        ids, values = zip(*reply["top"], strict=True)
        torch.testing.assert_close(logits[list(ids)], torch.tensor(values), rtol=0, atol=1.5)
        assert set(ids[:3]) <= set(logits.topk(5).indices.tolist())


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
async def test_the_engine_agrees_with_the_replies_of_llama_cpp(path: Path, dtype: str) -> None:
    """``auto`` computes the file's blocks where the processor can, the others their numbers.

    The likeliest tokens of this model are often within 0.1 of each other, so greedy replies part where the rounding
    differs; every token that llama.cpp chose is nearly the likeliest here, too.
    """
    settings = EngineSettings(model=str(path), dtype=dtype, device="cpu")
    async with Engine(settings) as engine:
        assert engine.info.name == "SmolLM2-135M-Instruct.Q4_1"
        assert engine.info.max_model_len == 8192
        assert "Q4_1" in engine.info.dtype
        for reply in WITNESS["replies"]:
            chosen = reply["greedy"][: reply["greedy"].index(END) + 1] if END in reply["greedy"] else reply["greedy"]
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
            deltas = [delta async for delta in engine.complete([*reply["ids"], *chosen], params)]
            known = [logprobs for delta in deltas for logprobs in delta.prompt_logprobs][-len(chosen) :]
            assert [logprobs.token.token_id for logprobs in known] == chosen
            assert max(_gap(logprobs) for logprobs in known) < 0.6
            if chosen[-1] == END:
                assert known[-1].rank == 1


def _gap(logprobs: TokenLogprobs) -> float:
    """Returns by how much the likeliest token is likelier, as a difference of logarithms."""
    best, token = logprobs.top[0].logprob, logprobs.token.logprob
    assert best is not None
    assert token is not None
    return best - token
