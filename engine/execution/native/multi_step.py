"""Packs the replies of multi-step decoding for C++ (``multi_step.h``), and does Python's part of its steps."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.native.sampling import FILTERS_FORMAT, filter_values
from engine.sampling.penalties import TokenCounts
from engine.sampling.sampler import SamplingRow

ENDED = -1
"""Stands in place of a token for a reply that has ended."""

DECODE_REQUEST = struct.Struct(f"@{FILTERS_FORMAT}i4xQqqPqqPPPq")
"""``DecodeRequest`` of multi_step.h."""


class Host(Protocol):
    """Python's part of a call: the replies that C++ cannot sample by itself, given by their index.

    An error ends the call before the step that it occurs in.
    """

    @property
    def masks(self) -> Mapping[int, NDArray[np.uint8]]:
        """Replies that C++ samples, each by its mask: a bit for each token id, lowest first, set if it may follow."""
        ...

    def fill_mask(self, reply: int, previous_token: int | None) -> bool:
        """Fills in a reply's mask for its next token; False if it had ended with the token before.

        Args:
            previous_token: sampled for it in the step before; None in the call's first step.
        """
        ...

    def sample(self, replies: Sequence[int], logits: Tensor) -> Sequence[int]:
        """Samples for the replies that need Python and have no mask.

        Args:
            replies: those that are still active.
            logits: their scores, ``[n, vocab_size]``.

        Returns:
            A token for each; :data:`ENDED` for those that had ended with the token before.
        """
        ...


class MultiStepRow(NamedTuple):
    """A reply that a step samples a token for, and how far it may go."""

    sampling: SamplingRow
    stop_token_ids: frozenset[int]
    chunk: int  #: index of its chunk in the plan
    max_tokens: int  #: tokens that may be sampled, at least 1; all but the last have their blocks reserved
    is_scored: bool = False  #: whether the logits of its tokens are kept, for their log-probabilities


class MultiStepOutput(NamedTuple):
    """Results of several steps; fewer than ``max_steps`` if all replies ended or a step's logits were unusable."""

    tokens: list[list[int]]  #: for each step, one token per reply; :data:`ENDED` for replies that had ended
    seconds: list[float]  #: for each step, seconds from the start of the first step until its tokens were known
    logits: Tensor  #: the first step's logits if even those were unusable, otherwise not to be read
    #: the logits that the replies with ``is_scored`` were sampled from, in their order: ``[n, max_steps, vocab_size]``
    scored: Tensor | None = None
    error: Exception | None = None  #: of the host, which ended the call


class _Adjustments(ctypes.Structure):
    """``Adjustments`` of score_adjustments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("bias_ids", "bias_values", "counted_ids", "num_in_reply", "stop_ids")),
        *((name, ctypes.c_int64) for name in ("num_bias", "num_counted", "num_stop_ids", "min_tokens", "is_penalized")),
        ("presence_penalty", ctypes.c_double),
        ("repetition_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
    )


_NO_COUNTS = TokenCounts()
_HostFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))


class PackedRequests:
    """The ``DecodeRequest`` structures of a call, with the memory that they point to.

    Args:
        replies: one for each row of logits.
        scored: receives the logits of the scored ones, ``[n, max_steps, vocab_size]``.
        masks: of :class:`Host`.
    """

    def __init__(
        self, replies: Sequence[MultiStepRow], scored: Tensor | None, masks: Mapping[int, NDArray[np.uint8]]
    ) -> None:
        self._held: list[Any] = [scored, masks]
        self._stops: dict[frozenset[int], array[int]] = {}
        places = iter(()) if scored is None else iter(scored)
        self.data = b"".join(
            [
                self._pack(reply, next(places).data_ptr() if reply.is_scored else None, masks.get(index))
                for index, reply in enumerate(replies)
            ]
        )

    def _pack(self, reply: MultiStepRow, raw_scores: int | None, mask: NDArray[np.uint8] | None) -> bytes:
        row = reply.sampling
        stops = self._stops.get(reply.stop_token_ids)
        if stops is None:
            stops = self._stops[reply.stop_token_ids] = array("q", reply.stop_token_ids)
        is_sampled_by_host = row.needs_python and mask is None
        adjusts = row.adjusts_logits and not is_sampled_by_host
        return DECODE_REQUEST.pack(
            *filter_values(row),
            *(0.0, 0.0),  # the uniform number and the highest score, set in each step
            row.is_greedy,
            row.seed,
            row.position,
            reply.max_tokens,
            stops.buffer_info()[0],
            len(stops),
            reply.chunk,
            self._adjustments(row) if adjusts else 0,
            raw_scores or 0,
            0 if mask is None else mask.ctypes.data,
            is_sampled_by_host,
        )

    def _adjustments(self, row: SamplingRow) -> int:
        """Returns the address of a row's adjustments."""
        counts = row.counts
        counted = _NO_COUNTS if counts is None else counts
        stop_ids = row.stop_ids
        ids, in_reply = counted.ids, counted.in_reply
        adjustments = _Adjustments(
            *(values.ctypes.data for values in (row.bias_ids, row.bias_values, ids, in_reply, stop_ids)),
            *(len(row.bias_ids), len(ids), len(stop_ids), row.min_tokens),
            counts is not None,
            *(row.presence_penalty, row.repetition_penalty, row.frequency_penalty),
        )
        self._held += (adjustments, ids, in_reply, stop_ids)
        return ctypes.addressof(adjustments)


class HostCallback:
    """Lets C++ call the host in each step.

    Args:
        host: of the call.
        replies: of the call.
        logits: of each step, overwritten by the next.
        tokens: of all steps, ``[max_steps * len(replies)]``; receives those that the host samples.
    """

    def __init__(self, host: Host, replies: Sequence[MultiStepRow], logits: Tensor, tokens: Any) -> None:
        self._host, self._logits, self._tokens, self._num_replies = host, logits, tokens, len(replies)
        self._masked = tuple(host.masks)
        self._sampled = [
            index for index, reply in enumerate(replies) if reply.sampling.needs_python and index not in host.masks
        ]
        self.error: Exception | None = None  #: why the call ended early
        self.function = _HostFunction(self._step)  #: a ``HostStep`` of multi_step.h

    def _step(self, num_done: int, rows: Any) -> int:
        try:
            first = num_done * self._num_replies  # of the step's tokens
            for reply in self._masked:
                if rows[reply] >= 0:
                    previous = self._tokens[first - self._num_replies + reply] if num_done else None
                    if not self._host.fill_mask(reply, previous):
                        rows[reply] = ENDED
            active = [reply for reply in self._sampled if rows[reply] >= 0]
            if active:
                sampled = self._host.sample(active, self._logits[[rows[reply] for reply in active]])
                for reply, token in zip(active, sampled, strict=True):
                    self._tokens[first + reply] = token
        except Exception as error:  # nothing may leave through C++
            self.error = error
            return 0
        return 1
