"""Sampling in C++, all rows of a step in one call.

Computes what :mod:`engine.sampling.cpu` computes, with the same noise. NumPy releases the GIL in each of the dozens of
small calls of a step; if other threads compete for it, such as those that serve pages, the step waits for them each
time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.execution.native.build import load_library
from engine.parameter_table import PARAMETERS, Kind
from engine.sampling import cpu
from engine.sampling.cpu import Floats

if TYPE_CHECKING:
    from engine.sampling.grammar import TokenMask
    from engine.sampling.sampler import SamplingRow

_PACKED = [parameter for parameter in PARAMETERS.values() if parameter.is_native]
_CODES = {Kind.NUMBER: "d", Kind.WHOLE: "q"}
FILTERS_FORMAT = f"{''.join([_CODES[parameter.kind] for parameter in _PACKED])}df4x"
"""``Filters`` of sampling.h in the notation of :mod:`struct`: the parameters in the table's order, the uniform number,
the highest score."""
_FILTERS = struct.Struct(f"@{FILTERS_FORMAT}")

filter_values: Callable[[SamplingRow], tuple[float, ...]] = attrgetter(*[parameter.name for parameter in _PACKED])
"""Returns the row's values of the packed parameters, in their order."""


def check_size(packed: struct.Struct, size: int) -> None:
    """Fails where a packed structure is not as long as the C++ one: its fields do not match."""
    if packed.size != size:
        raise AssertionError(f"{packed.format} has {packed.size} bytes, the C++ structure {size}")


class NativeSampling:
    """An :class:`engine.sampling.sampler.SamplingBackend`.

    Its tokens are those of the NumPy backend, except where the last bit of a weight decides.

    Raises:
        NotCompiled: the C++ code cannot be compiled here.
    """

    def __init__(self) -> None:
        code = load_library()
        check_size(_FILTERS, code.deskmate_filters_size())
        self._argmax, self._draw, self._mask = code.deskmate_argmax, code.deskmate_draw, code.deskmate_mask
        sizes = [ctypes.c_int64] * 3
        self._mask.argtypes = [ctypes.c_void_p, *sizes, ctypes.c_void_p, ctypes.c_void_p]
        self._argmax.argtypes = [ctypes.c_void_p, *sizes, ctypes.c_void_p, ctypes.c_void_p]
        self._draw.argtypes = [ctypes.c_void_p, *sizes, ctypes.c_char_p, ctypes.c_void_p]
        self._argmax.restype = self._draw.restype = self._mask.restype = None
        self._adjusted: Floats = np.empty(0, np.float32)  # of the last step

    def adjust(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Floats:
        """Implements :meth:`engine.sampling.sampler.SamplingBackend.adjust`. The next call overwrites its result."""
        scores: Floats = np.ascontiguousarray(logits.float().numpy())
        adjusting = [index for index, row in enumerate(rows) if row.adjusts_logits]
        if not adjusting:
            return scores
        bans = [(index, *rows[index].bans()) for index in adjusting]
        scores = self._masked(scores, {index: mask for index, _banned, mask in bans if mask is not None})
        for index, banned, _mask in bans:
            cpu.adjust_row(scores[index], rows[index], banned)
        return scores

    def _masked(self, scores: Floats, masks: Mapping[int, TokenMask]) -> Floats:
        """Copies scores, with -inf for the tokens that a row's mask leaves out. ``masks``: by row."""
        count, vocab_size = scores.shape
        if self._adjusted.size < scores.size:
            self._adjusted = np.empty(scores.size, np.float32)
        masked = self._adjusted[: scores.size].reshape(scores.shape)
        addresses = (ctypes.c_void_p * count)()
        for index, mask in masks.items():
            if mask.vocab_size < vocab_size:
                raise ValueError(f"a mask of {mask.vocab_size} tokens cannot hold for {vocab_size}")
            addresses[index] = mask.bits.ctypes.data
        self._mask(*self._sizes(scores), addresses, masked.ctypes.data)
        return masked

    def likeliest(self, scores: Floats) -> tuple[list[int], list[float]]:
        count = len(scores)
        tokens, highest = (ctypes.c_int64 * count)(), (ctypes.c_float * count)()
        self._argmax(*self._sizes(scores), tokens, highest)
        return list(tokens), list(highest)

    def draw(
        self, scores: Floats, highest: Sequence[float], rows: Sequence[SamplingRow], uniform_numbers: Sequence[float]
    ) -> list[int]:
        filters = b"".join(
            [
                _FILTERS.pack(*filter_values(row), number, top)
                for row, number, top in zip(rows, uniform_numbers, highest, strict=True)
            ]
        )
        drawn = (ctypes.c_int64 * len(rows))()
        self._draw(*self._sizes(scores), filters, drawn)
        tokens = list(drawn)
        unlike = [index for index, row in enumerate(rows) if not row.is_native]  # rare
        if unlike:
            chosen = cpu.draw(
                scores[unlike],
                [highest[index] for index in unlike],
                [rows[index] for index in unlike],
                [uniform_numbers[index] for index in unlike],
            )
            for index, token in zip(unlike, chosen, strict=True):
                tokens[index] = token
        return tokens

    @staticmethod
    def _sizes(scores: Floats) -> tuple[int, int, int, int]:
        """Returns the scores' address, their number of rows, the row length, and the number of threads to use."""
        assert scores.flags.c_contiguous
        return scores.ctypes.data, *scores.shape, torch.get_num_threads()
