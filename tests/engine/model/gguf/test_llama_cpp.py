"""llama.cpp, where it is installed, computes the same logits from the same files, in every architecture and format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType, LlamaFileType

from engine import EngineSettings
from engine.execution.attention.hf_attention import register
from engine.model.filled_module import fill_module
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.model.gguf.model_file import open_gguf
from engine.model.gguf.pre_tokenizers import PRE_TOKENIZERS
from engine.model.gguf.tokenizer import make_tokenizer
from testing import llama_cpp
from testing.gguf_files import CONVERSIONS, make_gguf, write_gguf
from testing.models import WINDOW

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
GUIDE = Path(__file__).resolve().parents[4] / "models" / "guide"
TEXTS = (
    "In 2024, 3.14159 apples  and\ttabs\n\n don't we'LL",
    "日本語のテキスト。 Привет, как дела? 12:30 😀 e\u0301",
    "def add(a, b):\n    return a**2  # comment\r\n",
    " leading and trailing  ",
)
FILE_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")
COMPARABLE: dict[str, dict[str, Any]] = {
    "phi3": {"sliding_window": 8 * WINDOW},  # it has none in this architecture
    "gpt-oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0}},  # it rounds YaRN's range
}
"""Configuration without what llama.cpp computes in another way than the model's own code."""


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    llama_cpp.require_llama_cpp()
    register()


def ignore(_stage: str, _share: float) -> None:
    """Progress that nobody watches."""


def our_logits(path: Path, ids: torch.Tensor) -> torch.Tensor:
    checkpoint = open_gguf_checkpoint(path, EngineSettings(model=str(path)), ignore)
    module: Any = fill_module(checkpoint, "model", torch.float32, torch.device("cpu"), ignore)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        logits: torch.Tensor = module(input_ids=ids[None], use_cache=False).logits[0]
    return logits


def similarity(path: Path, vocab_size: int = 390) -> float:
    """Returns the least cosine of the two logits over 40 positions of random tokens."""
    ids = torch.randint(3, vocab_size, (40,), generator=torch.Generator().manual_seed(1))
    theirs = torch.from_numpy(np.asarray(llama_cpp.logits(path, ids.tolist())))
    return float(torch.nn.functional.cosine_similarity(our_logits(path, ids), theirs).min())


@pytest.mark.parametrize("family", CONVERSIONS)
def test_architectures(family: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf", family, layers=6, std=0.1, config=COMPARABLE.get(family, {}))
    assert similarity(path) > 0.9999


@pytest.mark.parametrize("name", FILE_TYPES)
def test_formats_of_the_guide(name: str, tmp_path: Path) -> None:
    full, path = tmp_path / "full.gguf", tmp_path / "guide.gguf"
    write_gguf(GUIDE, full, CONVERSIONS["llama"], GGMLQuantizationType.F32)
    llama_cpp.quantize(full, path, LlamaFileType[f"MOSTLY_{name}"])
    assert open_gguf(path).number_format == name
    assert similarity(path, 3_000) > 0.98  # it quantizes activations


@pytest.mark.parametrize("pre", sorted({kind: name for name, kind in PRE_TOKENIZERS.items()}.values()))
def test_text_is_split_alike(pre: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf", "qwen2", pre=pre, vocab_size=1_500)
    assert [make_tokenizer(open_gguf(path)).encode(text) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS)


def test_sentencepiece_merges_alike(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf", "llama")
    texts = [*TEXTS, "</s> <s>[INST] hi [/INST]", "<unk> text"]
    assert [make_tokenizer(open_gguf(path)).encode(text) for text in texts] == llama_cpp.tokenize(path, texts)
