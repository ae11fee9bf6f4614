"""Available memory, and its release to the system: memory that Python has freed is not yet free for other programs."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from engine.device.host_memory import available_host_memory

log = logging.getLogger(__name__)

_MADV_DONTNEED = 4  #: on Linux
_MADV_POPULATE_WRITE = 23  #: on Linux 5.14 and later


def available_memory(device: torch.device) -> int:
    """Returns the bytes that can be allocated now without evicting or swapping anything."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    return available_host_memory()


def release_memory() -> None:
    """Collects garbage, and returns freed memory to the system and to the GPU's other processes."""
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:  # after some faults every CUDA call fails
            log.warning("cannot release the GPU's memory: %s", error)
    trim_heap()


def trim_heap() -> None:
    """Returns freed memory to the system."""
    if sys.platform == "linux":
        # glibc keeps freed memory for the next allocation; other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def release_mapped_pages(part: torch.Tensor) -> None:
    """Takes the pages of a tensor out of the process's memory; reading them again maps them from the file again.

    Args:
        part: contiguous, in a file that is mapped, and never written to: in other memory its numbers would be lost.
    """
    if sys.platform != "linux":
        return
    page = os.sysconf("SC_PAGE_SIZE")
    start = -(-part.data_ptr() // page) * page  # whole pages only: others may hold a neighbour that is in use
    length = (part.data_ptr() + part.nbytes) // page * page - start
    if length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED)


def populate_pages(parts: Sequence[torch.Tensor], num_threads: int) -> bool:
    """Gives tensors on the CPU their memory now, instead of page by page as they are first written.

    The first write to a page waits until the system has zeroed it: about 0.7 seconds for a GiB.

    Returns:
        Whether all of them have it: older kernels and other systems cannot do it, and do nothing.
    """
    if sys.platform != "linux":
        return False
    page = os.sysconf("SC_PAGE_SIZE")
    madvise = ctypes.CDLL(None).madvise

    def populate(part: torch.Tensor) -> bool:
        start = part.data_ptr() // page * page
        length = part.data_ptr() + part.nbytes - start
        return bool(madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE) == 0)

    with ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="populate") as pool:
        return all(pool.map(populate, parts))


def clear_error_frames(error: BaseException) -> None:
    """Clears an error's traceback frames, which hold the tensors of a failed step or a partly loaded model."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
