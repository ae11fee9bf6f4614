"""A real encoder: its vectors are those of sentence-transformers' formula, and similar texts are near each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from engine.encoder.load import load_encoder
from engine.encoder.local_encoder import LocalEncoder
from testing.minilm import minilm
from testing.tokenizers import CORPUS

pytestmark = pytest.mark.full

TEXTS = ["How do I get my money back?", "Refunds are paid within five days.", "The cat sleeps.", *CORPUS, "long " * 400]


async def test_vectors_are_those_of_the_formula() -> None:
    """Mean pooling over the attention mask, then length 1: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2"""
    folder = minilm()
    encoder = LocalEncoder(load_encoder(str(folder), lambda _stage, _fraction: None), lambda: False)
    result = await encoder.embed(TEXTS)
    encoder.close()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None].float()
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1).numpy()
    np.testing.assert_allclose(result.vectors, expected, atol=2e-6)
    assert (encoder.info.dimensions, encoder.info.max_tokens) == (384, 256)
    assert result.truncated == (len(TEXTS) - 1,)
    near, far = result.vectors[0] @ result.vectors[1], result.vectors[0] @ result.vectors[2]
    assert near > far + 0.2
