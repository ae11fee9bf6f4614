"""Every causal language model that transformers knows: its replies are transformers' own, or a sentence says why not.

One tiny random model of each type, loaded once and asked in every way that could change a reply: many requests at
once in a cache that is too small for them, prompts that begin alike, drafts from the prompt, steps in C++.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine import EngineSettings, SamplingParams
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.scheduling.cache_layout import CacheLayout, blocks_for_sequence
from testing.architectures import CAUSAL_TYPES, UNMAKEABLE, load_exactly, load_or_refuse, save_tiny_model
from testing.native import HAS_COMPILER
from testing.reference import Comparison, Reference

MAX_LEN = 48
REPLY = 12
BLOCK_SIZE = 4
BLOCKS = 16
BUDGET = 24  #: tokens of a step

#: What has an outcome of its own is asked in the short run too.
SHORT: Final = frozenset({"diffllama", "hrm_text", "nemotron", "doge"})

#: What runs in the C++ decoder, with its default configuration but for the sizes.
IN_CPP: Final = frozenset(
    {
        *(
            "cwm",
            "emu3",
            "ernie4_5",
            "exaone4",
            "flex_olmo",
            "flint",
            "gemma",
            "gemma2",
            "gemma3",
            "gemma3_text",
            "glm",
        ),
        *("glm4", "got_ocr2", "gpt_oss", "granite", "granitemoe", "granitemoeshared", "helium", "internlm3"),
        *("iquestcoder", "llama", "mellum", "ministral", "mistral", "mixtral", "moss_transcribe_diarize", "olmo2"),
        *("olmo3", "olmoe", "phi3", "qwen2", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "vaultgemma"),
    }
)

every_type = pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.full) for name in CAUSAL_TYPES],
)


# -- those that are served --------------------------------------------------------------------------------


def prompts(vocab_size: int) -> list[list[int]]:
    """Some begin alike, one repeats itself, one is short."""
    rng = random.Random(0)

    def noise(length: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(length)]

    stem = noise(20)
    return [stem + noise(5), stem[:11] + noise(2), noise(3), noise(4) * 6, stem + noise(9)]


def check_replies(
    model: LoadedModel, reference: Reference, comparison: Comparison, context: str, **changes: Any
) -> EngineCore:
    """All prompts at once, then each with its reply behind it as the next turn; in a cache that one sequence fills."""
    windows = CacheLayout.of(model.layers).windows
    core = EngineCore(
        model,
        EngineSettings(
            max_model_len=MAX_LEN,
            kv_block_size=BLOCK_SIZE,
            num_kv_blocks=max(BLOCKS, 1 + blocks_for_sequence(windows, MAX_LEN, BUDGET, BLOCK_SIZE)),
            max_num_seqs=4,
            max_batched_tokens=BUDGET,
            **changes,
        ),
    )
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=REPLY)
    asked = prompts(model.vocab_size)
    turns = [[*prompt, *reference.greedy(prompt, REPLY).token_ids, 7] for prompt in asked[:3]]
    for batch in (asked, turns):
        replies: dict[str, list[int]] = {str(number): [] for number in range(len(batch))}
        for number, prompt in enumerate(batch):
            core.add(
                core.request_processor.process(str(number), prompt, core.request_processor.resolve(prompt, params))
            )
        while core.has_work:
            result = core.step()
            assert not result.failures
            for delta in result.deltas:
                replies[delta.request_id] += delta.token_ids
        core.check()
        for number, prompt in enumerate(batch):
            expected = reference.greedy(prompt, min(REPLY, MAX_LEN - len(prompt)))
            comparison.check(replies[str(number)], expected, context=f"{context}, prompt {number}")
    return core


def check_served(model_type: str, model: LoadedModel, folder: Path) -> None:
    reference, comparison = Reference(folder), Comparison()
    stats = check_replies(model, reference, comparison, model_type).stats()
    assert stats.num_preemptions or model.needs.sliding_window  # a window gives blocks back
    assert stats.cached_prompt_tokens
    check_replies(model, reference, comparison, f"{model_type} with drafts", speculation="prompt-lookup")
    if HAS_COMPILER:
        native = load_exactly(folder, native=True)
        assert (native.decoder is not None) == (model_type in IN_CPP)
        if native.decoder is not None:
            check_replies(native, reference, comparison, f"{model_type} in C++")
    assert comparison.ties <= 2, comparison


# -- those that are not -----------------------------------------------------------------------------------


def keeps_other_state(sentence: str, config: Any, _folder: Path) -> bool:
    [kinds] = re.findall(r"layers of the kind ([\w, ]+);", sentence)
    known = {"full_attention", "sliding_attention"}
    return set(kinds.split(", ")) <= set(config.get_text_config().layer_types) - known


def has_no_hook(_sentence: str, config: Any, _folder: Path) -> bool:
    found = AutoModelForCausalLM._model_mapping[type(config)]
    architecture = found[0] if isinstance(found, tuple) else found
    return not architecture._supports_attention_backend


def reads_in_both_directions(_sentence: str, _config: Any, folder: Path) -> bool:
    """In transformers itself a later token changes what comes out at an earlier one."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]])
    with torch.inference_mode():
        first, second = model(input_ids=tokens, use_cache=False).logits[:, 0]
    return not torch.allclose(first, second, atol=1e-4)


#: Words of the sentence, and whether they are so, as it is seen without the engine.
TRUE_REASONS: Final[Mapping[str, Callable[[str, Any, Path], bool]]] = MappingProxyType(
    {
        "is an encoder-decoder model": lambda _, config, __: bool(config.is_encoder_decoder),
        "has layers of the kind": keeps_other_state,
        "has no hook for a custom attention": has_no_hook,
        "its tokens attend to later tokens": reads_in_both_directions,
        # What these two say stands in their code in transformers: DogeAttention.prepare_dynamic_mask,
        # NemotronDecoderLayer.forward. Another type would have to be looked at.
        "its attention uses a custom mask": lambda _, config, __: config.model_type == "doge",
        "does not pass keyword arguments on": lambda _, config, __: config.model_type == "nemotron",
        # A draft, whose layers all read what another model has stored.
        "types producing a cache is different": lambda _, config, __: config.model_type == "gemma4_assistant",
        "shared_kv_states cannot be None": lambda _, config, __: config.model_type.endswith("_assistant"),
        "requires the timm library": lambda _, __, ___: find_spec("timm") is None,
        "hold no weights": lambda _, config, __: config.model_type in UNMAKEABLE,  # its text part would be loaded
    }
)


def check_refused(sentence: str, folder: Path) -> None:
    assert "\n" not in sentence
    reasons = [is_so for words, is_so in TRUE_REASONS.items() if words in sentence]
    assert len(reasons) == 1, sentence
    assert reasons[0](sentence, AutoConfig.from_pretrained(folder), folder), sentence


@pytest.mark.slow
@every_type
def test_replies_are_transformers_replies_or_a_sentence_says_why_not(model_type: str, tmp_path: Path) -> None:
    outcome, folder = load_or_refuse(model_type, tmp_path)
    if isinstance(outcome, LoadedModel):
        check_served(model_type, outcome, folder)
    else:
        check_refused(outcome, folder)


def test_a_context_ends_where_the_cache_of_transformers_begins_to_forget(tmp_path: Path) -> None:
    """Moshi's cache has a window and its attention has none: beyond it, transformers' replies depend on chunks."""
    path = save_tiny_model("moshi", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "sliding_window": 24}))
    assert load_exactly(path).max_position_embeddings == 24
