"""Computes a step's grammar masks beside its forward pass: in a thread, all rows in one call that holds no GIL."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from engine.sampling.grammar import GrammarMatcher, compute_masks
from engine.sampling.sampler import SamplingRow

if TYPE_CHECKING:
    from llguidance import LLExecutor

log = logging.getLogger(__name__)

_MAX_THREADS = 16


class GrammarMasks:
    """Computes masks while a block of code runs. Threads start with the first grammar, and end with this object."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")

    @contextmanager
    def computed_beside(self, rows: Sequence[SamplingRow]) -> Iterator[None]:
        """Computes what may follow in rows that have a grammar, while the block under ``with`` runs.

        Both have ended where it is left, so nothing else ever meets a matcher at work: neither the end of a reply, nor
        a preemption, nor a draft. An error is left to :meth:`SamplingRow.bans`, which raises it for its row alone.
        """
        wait = self.begin(rows)
        try:
            yield
        finally:
            wait()

    def begin(self, rows: Sequence[SamplingRow]) -> Callable[[], None]:
        """Begins to compute what may follow; returns a function that waits for it, to be called before anything else
        meets these rows' matchers. Errors as in :meth:`computed_beside`.
        """
        matchers = _matchers(rows)
        if not matchers:
            return lambda: None
        computing = self._thread.submit(self._compute, matchers)

        def wait() -> None:
            error = computing.exception()
            if error is not None:
                log.error("grammar masks are computed row by row: together they failed", exc_info=error)

        return wait

    def _compute(self, matchers: Sequence[GrammarMatcher]) -> None:
        compute_masks(matchers, self._executor)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        # The forward pass needs the cores as well; on a GPU's machine it leaves most of them idle.
        return LLExecutor(min(_MAX_THREADS, max(1, (os.cpu_count() or 1) // 4)))


def _matchers(rows: Sequence[SamplingRow]) -> list[GrammarMatcher]:
    matchers = []
    for row in rows:
        try:
            matcher = row.matcher
        except Exception:  # sampling follows the same tokens, raises it again, and ends this reply alone
            continue
        if matcher is not None:
            matchers.append(matcher)
    return matchers
