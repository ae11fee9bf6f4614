"""Weights as codes with a scale and a zero point for each group of inputs: AWQ, GPTQ and integer compressed-tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_NUMBERS_AT_ONCE = 2**24
"""Weights dequantized at once, so that the float32 numbers take 64 MiB."""


@dataclass(frozen=True, slots=True)
class AffineWeight:
    """A weight that is ``scale * (code - zero point)``."""

    codes: Tensor  #: int8 or uint8 ``[outputs, inputs]``
    scales: Tensor  #: ``[outputs, groups]``
    zero_points: Tensor | None  #: int8, uint8 or int16 ``[outputs, groups]``; None for 0
    bits: int  #: of a code
    group_of_input: Tensor | None = None  #: int64 ``[inputs]``; None if groups are successive inputs

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight, ``[outputs, inputs]``, computed in float32 and rounded once."""
        outputs, inputs = self.codes.shape
        dense = torch.empty(outputs, inputs, dtype=dtype)
        rows = max(1, _NUMBERS_AT_ONCE // max(inputs, 1))
        for start in range(0, outputs, rows):
            end = start + rows
            numbers = self.codes[start:end].float()
            scales = self.scales[start:end].float()
            zeros = None if self.zero_points is None else self.zero_points[start:end].float()
            if self.group_of_input is not None:
                if zeros is not None:
                    numbers -= zeros[:, self.group_of_input]
                numbers *= scales[:, self.group_of_input]
            else:
                groups = numbers.view(len(numbers), scales.shape[1], -1)
                if zeros is not None:
                    groups -= zeros.unsqueeze(2)
                groups *= scales.unsqueeze(2)
            dense[start:end] = numbers
        return dense


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpacks unsigned codes from 32-bit words, lowest bits first.

    Args:
        words: int32 ``[n, m]``.
        bits: of a code: 4 or 8.

    Returns:
        uint8 ``[n, m * 32 / bits]``.
    """
    octets = words.reshape(-1).view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return octets
    return torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)
