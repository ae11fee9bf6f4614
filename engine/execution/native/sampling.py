"""Sampling in C++, all rows of a step in one call.

Computes what :mod:`engine.sampling.cpu` computes, with the same noise. NumPy releases the GIL in each of the dozens of
small calls of a step; if other threads compete for it, such as those that serve pages, the step waits for them each
time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.execution.native.build import load_library
from engine.sampling import cpu
from engine.sampling.cpu import Floats

if TYPE_CHECKING:
    from engine.sampling.sampler import SamplingRow

_FILTERS = struct.Struct("@ddddqf4x")
"""``Filters`` of sampling.h: temperature, top_p, min_p, the uniform number, top_k, the highest score."""


class NativeSampling:
    """An :class:`engine.sampling.sampler.SamplingBackend`.

    Its tokens are those of the NumPy backend, except where the last bit of a weight decides.

    Raises:
        NotCompiled: the C++ code cannot be compiled here.
    """

    def __init__(self) -> None:
        code = load_library()
        self._argmax, self._draw = code.deskmate_argmax, code.deskmate_draw
        sizes = [ctypes.c_int64] * 3
        self._argmax.argtypes = [ctypes.c_void_p, *sizes, ctypes.c_void_p, ctypes.c_void_p]
        self._draw.argtypes = [ctypes.c_void_p, *sizes, ctypes.c_char_p, ctypes.c_void_p]
        self._argmax.restype = self._draw.restype = None

    def adjust(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Floats:
        return np.ascontiguousarray(cpu.adjust(logits, rows))

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
                _FILTERS.pack(row.temperature, row.top_p, row.min_p, number, row.top_k, top)
                for row, number, top in zip(rows, uniform_numbers, highest, strict=True)
            ]
        )
        drawn = (ctypes.c_int64 * len(rows))()
        self._draw(*self._sizes(scores), filters, drawn)
        tokens = list(drawn)
        unlike = [index for index, row in enumerate(rows) if row.typical_p != 1]  # rare; not implemented in C++
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
