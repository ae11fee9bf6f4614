"""``deskmate quantize``: writes a quantized copy of a model, and measures what it costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Literal

from app.cli.console import StageProgress
from app.errors import InvalidInput
from engine import PROJECT_ROOT, Engine, EngineSettings, SamplingParams, quantize_checkpoint

DOCS = PROJECT_ROOT / "docs"
WINDOW_CHARACTERS = 2000
"""Characters of text whose tokens are scored together; the first token of each window is not scored."""
MAX_WINDOWS = 24
KV_CACHE_GIB = 0.5


def quantize(model: str, to: Literal["int4", "int8"], out: Path, text: str | None) -> Iterator[str]:
    """Quantizes ``model`` into the folder ``out``; yields lines of a report.

    Args:
        text: to measure perplexity on, before and after; None to measure none.

    Raises:
        EngineError: the model cannot be quantized, or the folder cannot be written.
    """
    with StageProgress() as progress:
        written = quantize_checkpoint(model, to, out, progress)
        yield (
            f"{written.folder} holds {model} in {to}: {_gb(written.bytes_after)} instead of "
            f"{_gb(written.bytes_before)}, {written.num_quantized} weights quantized."
        )
        if written.kept:
            yield f"Not quantized: {', '.join(written.kept[:4])}{' and others' if len(written.kept) > 4 else ''}."
        if text is not None:
            before = asyncio.run(_perplexity(model, text, progress, "before"))
            after = asyncio.run(_perplexity(str(written.folder), text, progress, "after"))
            yield f"Perplexity on {before[1]:,} tokens: {before[0]:.4f} before, {after[0]:.4f} after."
        yield f"Serve it with: deskmate serve --model {written.folder}"


def read_text(file: Path | None) -> str:
    """Returns the text to measure on: a file's, or Deskmate's own documentation.

    Raises:
        InvalidInput: the file cannot be read, or there is no documentation here.
    """
    files = [file] if file is not None else sorted(DOCS.glob("*.md"))
    if not files:
        raise InvalidInput("Deskmate's documentation is not here. Give a text with --text, or --no-perplexity.")
    try:
        text = "\n".join(each.read_text(encoding="utf-8") for each in files)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{files[0]} cannot be read as text: {error}.") from error
    if len(text) < 100:
        raise InvalidInput(f"{files[0]} is too short to measure on: it has {len(text)} characters.")
    return text


async def _perplexity(model: str, text: str, progress: StageProgress, when: str) -> tuple[float, int]:
    """Returns the perplexity of a text, and the number of tokens scored."""
    settings = EngineSettings(model=model, max_num_seqs=1, kv_cache_memory=KV_CACHE_GIB, enable_prefix_caching=False)
    async with Engine(settings, progress=progress) as engine:
        scores = [score async for score in _scores(engine, text, progress, f"Perplexity {when}")]
    return math.exp(-sum(scores) / len(scores)), len(scores)


async def _scores(engine: Engine, text: str, progress: StageProgress, stage: str) -> AsyncIterator[float]:
    """Yields the log-probability of each token of the text's first windows, given those before it in its window."""
    windows = [text[start : start + WINDOW_CHARACTERS] for start in range(0, len(text), WINDOW_CHARACTERS)]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    for number, window in enumerate(windows[:MAX_WINDOWS]):
        progress(stage, number / min(len(windows), MAX_WINDOWS))
        tokens = (await engine.tokenize(window))[: engine.info.max_model_len - 1]
        async with aclosing(engine.complete(tokens, params)) as deltas:
            async for delta in deltas:
                for scored in delta.prompt_logprobs:
                    if scored.token.logprob is not None:
                        yield scored.token.logprob
    progress(stage, 1.0)


def _gb(size: int) -> str:
    return f"{size / 10**9:.2f} GB" if size >= 10**9 else f"{size / 10**6:.1f} MB"
