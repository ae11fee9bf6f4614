"""Measures how long the GPU waits for the CPU while many chats decode."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_check.check import StageContext
from benchmarks.overlap import compare


def idle(check: StageContext) -> None:
    """Runs 128 chats on a small model, with overlapping and with sequential steps."""
    check.part("128 chats", lambda: overlap(check))


def overlap(check: StageContext) -> dict[str, Any]:
    chats, prompt, new, max_token_id, length = (4, 16, 8, 300, 256) if check.rehearse else (128, 128, 128, 15_000, 1024)
    settings = check.settings(check.model("qwen3-0.6b"), dtype="bfloat16", max_model_len=length)
    return compare(settings, chats=chats, prompt=prompt, new=new, vocab_size=max_token_id)
