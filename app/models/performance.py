"""What to expect of a model on this machine: whether its weights fit into memory, and how fast one chat can be."""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np

from app.models.local_model import LocalModel
from engine import EngineSettings, ModelInfo, available_host_memory

GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd")
"""Device files of GPUs that PyTorch can use: NVIDIA's, in WSL, on Jetson boards, and AMD's."""

RESERVE = 1.2
"""Memory that must be free, as a multiple of the weights: the engine's own limit for loading a model."""
#: Memory of plain weights once the engine has quantized them, as a share of bfloat16's; embeddings stay as they are.
#: ``auto`` takes the smallest if it must.
_QUANTIZED = {"int8": 0.55, "fp8": 0.55, "int4": 0.4, "auto": 0.4}
_PLAIN = ("BF16", "F16", "F32")
_CACHED_BYTES = 64 * 2**20
_BUFFER_BYTES = 64 * 2**20  # per thread: far more than a share of the last cache
_PASSES = 4


def fits(model: LocalModel, settings: EngineSettings, released: LocalModel | None = None) -> bool | None:
    """Whether the weights fit into memory; None if that is not known: on a GPU, or of a model that cannot be read.

    Args:
        settings: with which it would be loaded.
        released: the loaded model, which makes room if there is not enough for both.
    """
    needed = needed_bytes(model, settings)
    return None if needed is None else RESERVE * needed < _room(settings, released)


def memory_problem(model: LocalModel, settings: EngineSettings, released: LocalModel | None = None) -> str | None:
    """Returns why the model cannot be loaded, with the numbers, if its weights alone exceed the memory; else None."""
    needed, room = needed_bytes(model, settings), _room(settings, released)
    if needed is None or needed <= room:
        return None
    return (
        f"{model.name} needs {needed / 1e9:,.1f} GB of memory for its weights, and {room / 1e9:,.1f} GB are free. "
        "Choose a smaller model or quantization, or close other programs."
    )


def needed_bytes(model: LocalModel, settings: EngineSettings) -> int | None:
    """Returns the bytes of the weights in memory; None if that is not known."""
    if model.weights is None or settings.device == "cuda" or may_have_gpu():
        return None
    share = _QUANTIZED.get(settings.quantization, 1.0) if model.weights.format in _PLAIN else 1.0
    return int(model.weights.memory_bytes * share)


def _room(settings: EngineSettings, released: LocalModel | None) -> int:
    freed = needed_bytes(released, settings) if released is not None else None
    return available_host_memory() + (freed or 0)


def may_have_gpu() -> bool:
    """Whether the system has a GPU's device file. Importing PyTorch to ask it takes seconds."""
    return platform.system() != "Linux" or any(Path(file).exists() for file in GPU_FILES)


def expected_tokens_per_second(model: LocalModel, settings: EngineSettings) -> float | None:
    """Returns the upper bound for one chat: the memory's bandwidth divided by the weights that one token reads.

    None if it is not known, and for a model so small that the processor's caches hold it.
    """
    read = _bytes_read(model, settings)
    return memory_bandwidth() / read if read else None


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """What bounds the speed of one chat: each token reads the weights, and the cache of the tokens before it."""

    bytes_per_second: float  #: that this machine's processors read from memory, as measured
    weight_bytes: float  #: read by each token
    cache_bytes: int  #: read by each token for each one before it


def decode_limit(model: LocalModel, info: ModelInfo, settings: EngineSettings) -> DecodeLimit | None:
    """Returns what bounds the speed of the loaded model; None where :func:`expected_tokens_per_second` knows nothing.

    Args:
        model: the loaded model's files.
        info: how it was loaded, which the settings may have left to the engine.
    """
    loaded = settings.model_copy(update={"quantization": info.quantization})
    read = _bytes_read(model, loaded)
    if not read or model.weights is None:
        return None
    if info.dtype == "float32" and model.weights.format in _PLAIN:
        read *= 2  # the headers' sizes are those of 16 bits
    return DecodeLimit(memory_bandwidth(), read, info.cache_bytes_per_token)


def _bytes_read(model: LocalModel, settings: EngineSettings) -> float | None:
    """Returns the bytes of the weights that a token reads from memory; None if that is not known, or if the caches
    of the processor hold them."""
    needed = needed_bytes(model, settings)
    if model.weights is None or needed is None or needed < _CACHED_BYTES:
        return None
    return model.weights.bytes_per_token * needed / model.weights.memory_bytes


@cache
def memory_bandwidth() -> float:
    """Measures how many bytes per second all processors together read; takes a fifth of a second, once."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(threads, 16)
    buffers = [np.ones(_BUFFER_BYTES // 4, dtype=np.float32) for _ in range(threads)]
    start = threading.Barrier(threads)
    seconds = [0.0] * threads

    def read(number: int) -> None:
        best = float("inf")
        for _ in range(_PASSES):
            start.wait()
            begin = perf_counter()
            buffers[number].sum()
            best = min(best, perf_counter() - begin)
        seconds[number] = best

    workers = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * _BUFFER_BYTES / max(seconds)
