"""Packs the replies of multi-step decoding for C++ (``multi_step.h``); some are sampled in Python between its steps."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from engine.execution.native.sampling import FILTERS_FORMAT, filter_values
from engine.sampling.penalties import TokenCounts
from engine.sampling.sampler import SamplingRow

ENDED = -1
"""Stands in place of a token for a reply that has ended."""

DECODE_REQUEST = struct.Struct(f"@{FILTERS_FORMAT}i4xQqqPqqPPq")
"""``DecodeRequest`` of multi_step.h."""

SampleOnHost = Callable[[Sequence[int], Tensor], Sequence[int]]
"""Samples for replies, given by index, from their scores ``[n, vocab_size]``; :data:`ENDED` for those that have ended.

An error ends the call before this step.
"""


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
    error: Exception | None = None  #: why sampling on the host ended the call


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
_HostCallback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))


class PackedRequests:
    """The ``DecodeRequest`` structures of a call, with the memory that they point to.

    Args:
        replies: one for each row of logits.
        scored: receives the logits of the scored ones, ``[n, max_steps, vocab_size]``.
    """

    def __init__(self, replies: Sequence[MultiStepRow], scored: Tensor | None) -> None:
        self._held: list[Any] = [scored]
        self._stops: dict[frozenset[int], array[int]] = {}
        places = iter(()) if scored is None else iter(scored)
        self.data = b"".join(
            [self._pack(reply, next(places).data_ptr() if reply.is_scored else None) for reply in replies]
        )

    def _pack(self, reply: MultiStepRow, raw_scores: int | None) -> bytes:
        row = reply.sampling
        stops = self._stops.get(reply.stop_token_ids)
        if stops is None:
            stops = self._stops[reply.stop_token_ids] = array("q", reply.stop_token_ids)
        adjusts = row.adjusts_logits and not row.needs_python
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
            row.needs_python,
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


class HostSampling:
    """Samples in Python, between the steps of a call, the tokens of replies that C++ cannot sample.

    Args:
        sample: samples them.
        logits: of each step, overwritten by the next.
        tokens: of all steps, ``[max_steps * num_replies]``, where the sampled ones are written.
        num_replies: replies of the call.
    """

    def __init__(self, sample: SampleOnHost, logits: Tensor, tokens: Any, num_replies: int) -> None:
        self._sample, self._logits, self._tokens, self._num_replies = sample, logits, tokens, num_replies
        self.error: Exception | None = None  #: why the call ended early
        self.callback = _HostCallback(self._sample_step)

    def _sample_step(self, num_done: int, rows: Any) -> int:
        try:
            of_replies = np.ctypeslib.as_array(rows, (self._num_replies,))
            replies = np.flatnonzero(of_replies >= 0).tolist()
            sampled = self._sample(replies, self._logits[of_replies[replies].tolist()]) if replies else ()
            for reply, token in zip(replies, sampled, strict=True):
                self._tokens[num_done * self._num_replies + reply] = token
        except Exception as error:  # nothing may leave through C++
            self.error = error
            return 0
        return 1
