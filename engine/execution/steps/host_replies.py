"""Python's part of a multi-step call: what may come next in replies with a grammar or bans, and filters C++ lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import LogitsError
from engine.execution.native.multi_step import ENDED
from engine.execution.step_sampler import StepSampler
from engine.scheduling.request import Request

MAX_MASKED_TOKENS = 1 << 17
"""Most token ids in the masks that the grammars of a call have in one step, for C++ to sample from them.

So many take less time than a hand-over to another thread. Above, a thread computes the masks beside the next step's
forward pass, and the reply is sampled in Python, which is little beside such a step.
"""


class HostReplies:
    """Follows the replies that need Python through one call, as a :class:`engine.execution.native.multi_step.Host`.

    A context manager. Grammars, bans and penalties read a request's own tokens, so each sampled token is appended to
    them until the call ends. Then they are removed again: the steps are committed one by one, as any others.

    Args:
        requests: all replies of the call, in its order.
        max_steps: of the call.
        vocab_size: length of a reply's scores.
    """

    def __init__(self, requests: Sequence[Request], sampler: StepSampler, max_steps: int, vocab_size: int) -> None:
        self._requests = requests
        self._rows = [sampler.sampling_row(request) for request in requests]
        self._sampler = sampler
        self._num_left = max_steps
        self._vocab_size = vocab_size
        self._lengths: dict[int, int] = {}  # of their tokens before the call
        self._wait: Callable[[], None] = lambda: None
        needing = [index for index, row in enumerate(self._rows) if row.needs_python]
        grammars = [index for index in needing if self._rows[index].grammar is not None]
        is_fast = len(grammars) * vocab_size <= MAX_MASKED_TOKENS
        masked = [
            index for index in needing if self._rows[index].is_native and (is_fast or self._rows[index].grammar is None)
        ]
        masks = np.empty((len(masked), -(-vocab_size // 8)), dtype=np.uint8)
        self.masks = dict(zip(masked, masks, strict=True))
        self._sampled = [index for index in needing if index not in self.masks]

    def __enter__(self) -> HostReplies:
        self._begin_masks(self._sampled)
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_for_masks()
        for index, length in self._lengths.items():
            del self._requests[index].token_ids[length:]

    def fill_mask(self, reply: int, previous_token: int | None) -> bool:
        """Implements :meth:`engine.execution.native.multi_step.Host.fill_mask`.

        Raises:
            LogitsError: the grammar became too complex to follow; names the request.
            ValueError: the grammar is of a smaller vocabulary.
        """
        row = self._rows[reply]
        if previous_token is not None:
            self._append(reply, previous_token)
        if row.is_complete:
            return False
        banned, mask = row.bans()
        bits = self.masks[reply]
        if mask is None:
            bits.fill(0xFF)
        elif mask.vocab_size < self._vocab_size:
            raise ValueError(f"a mask of {mask.vocab_size} tokens cannot hold for {self._vocab_size}")
        else:
            bits[:] = mask.bits[: len(bits)]
        if banned.size:
            _clear(bits, banned)
        return True

    def sample(self, replies: Sequence[int], logits: Tensor) -> list[int]:
        """Implements :meth:`engine.execution.native.multi_step.Host.sample`."""
        self._wait_for_masks()
        active = [at for at, reply in enumerate(replies) if not self._is_complete(reply)]
        rows = [self._rows[replies[at]] for at in active]
        sampled = self._sampler.sampler.sample(logits if len(active) == len(replies) else logits[active], rows)
        tokens = [ENDED] * len(replies)
        for at, token in zip(active, sampled, strict=True):
            tokens[at] = token
            self._append(replies[at], token)
        self._num_left -= 1
        if self._num_left:
            self._begin_masks([replies[at] for at in active if not self._ends(replies[at])])
        return tokens

    def _append(self, reply: int, token: int) -> None:
        token_ids = self._requests[reply].token_ids
        self._lengths.setdefault(reply, len(token_ids))
        token_ids.append(token)

    def _ends(self, reply: int) -> bool:
        request = self._requests[reply]
        return request.token_ids[-1] in request.stop_token_ids or self._is_complete(reply)

    def _is_complete(self, reply: int) -> bool:
        try:
            return self._rows[reply].is_complete
        except LogitsError:  # sampling raises it again, and ends this reply alone
            return False

    def _begin_masks(self, replies: Sequence[int]) -> None:
        self._wait = self._sampler.begin_masks([self._rows[reply] for reply in replies])

    def _wait_for_masks(self) -> None:
        self._wait()
        self._wait = lambda: None


def _clear(bits: NDArray[np.uint8], token_ids: NDArray[np.int64]) -> None:
    """Sets the bits of these tokens to 0; ids without a bit are ignored."""
    allowed = np.ones(8 * len(bits), dtype=np.bool_)
    allowed[token_ids[token_ids < len(allowed)]] = False
    bits &= np.packbits(allowed, bitorder="little")
