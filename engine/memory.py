"""Gives memory back to the system: to Python it is free long before other programs can have it."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import traceback

import torch

log = logging.getLogger(__name__)


def release_memory() -> None:
    """Collect what nobody refers to any more, and hand it back to the system and to the GPU's other users."""
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:  # after some faults the GPU answers nothing any more, this neither
            log.warning("the GPU's memory cannot be handed back: %s", error)
    if sys.platform == "linux":
        # glibc keeps freed memory for the next allocation; other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold: the tensors of a failed step, a model that is half there."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
