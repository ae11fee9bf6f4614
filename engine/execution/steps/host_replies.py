"""Samples in Python, between the steps of one C++ call, the replies that C++ cannot sample: grammars and bans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from engine.errors import LogitsError
from engine.execution.native.multi_step import ENDED
from engine.execution.step_sampler import StepSampler
from engine.scheduling.request import Request


class HostReplies:
    """Follows such replies through one call; a context manager.

    Grammars, bans and penalties read a request's own tokens, so each sampled token is appended to them until the call
    ends. Then they are removed again: the steps are committed one by one, as any others. Between, masks are computed
    beside the next step's forward pass.

    Args:
        requests: all replies of the call, in its order.
        max_steps: of the call.
    """

    def __init__(self, requests: Sequence[Request], sampler: StepSampler, max_steps: int) -> None:
        self._requests = requests
        self._rows = [sampler.sampling_row(request) for request in requests]
        self._sampler = sampler
        self._num_left = max_steps
        self._lengths: dict[int, int] = {}  # of their tokens before the call
        self._wait: Callable[[], None] = lambda: None

    def __enter__(self) -> HostReplies:
        self._begin_masks([index for index, row in enumerate(self._rows) if row.needs_python])
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_for_masks()
        for index, length in self._lengths.items():
            del self._requests[index].token_ids[length:]

    def sample(self, replies: Sequence[int], logits: Tensor) -> list[int]:
        """Implements :data:`engine.execution.native.multi_step.SampleOnHost`."""
        self._wait_for_masks()
        active = [at for at, reply in enumerate(replies) if not self._is_complete(reply)]
        rows = [self._rows[replies[at]] for at in active]
        sampled = self._sampler.sampler.sample(logits if len(active) == len(replies) else logits[active], rows)
        tokens = [ENDED] * len(replies)
        for at, token in zip(active, sampled, strict=True):
            tokens[at] = token
            request = self._requests[replies[at]]
            self._lengths.setdefault(replies[at], len(request.token_ids))
            request.token_ids.append(token)
        self._num_left -= 1
        if self._num_left:
            self._begin_masks([replies[at] for at in active if not self._ends(replies[at])])
        return tokens

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
