"""Runs an encoder on a thread of its own, which lets replies go first."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from engine.embeddings import Embeddings, EncoderInfo, TextRole
from engine.encoder.encoder_model import EncoderModel, TokenizedText
from engine.errors import EngineError, EngineOverloadedError, EngineStoppedError, first_line

log = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 512
"""Padded tokens of a batch. A query waits for the batch before it, so one must not take long."""
MAX_BATCH_TEXTS = 32
TEXTS_AT_ONCE = 128
"""Texts that are tokenized, and sorted by length so that little is padding, at once."""
BUSY_POLL_SECONDS = 0.02
"""How often background work looks whether the engine has become idle."""
MAX_WAITING_TEXTS = 8192
"""Texts of calls that wait; a call that would exceed it is refused, unless it is the only one."""
MAX_BACKGROUND_WAIT_SECONDS = 5.0
"""Background work computes a batch after this time although the engine is busy: it must end some day."""
CLOSED = "The encoder is not running."


@dataclass(slots=True, eq=False)
class _Job:
    """The texts of one call."""

    texts: Sequence[str | Sequence[int]]
    role: TextRole | None
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Embeddings]
    vectors: NDArray[np.float32]
    num_tokens: list[int]
    truncated: list[int] = field(default_factory=list)
    is_cancelled: bool = False
    steps: Iterator[None] = field(default_factory=lambda: iter(()))

    def end(self, result: Embeddings | EngineError) -> None:
        def resolve() -> None:
            if self.outcome.done():
                return
            if isinstance(result, Embeddings):
                self.outcome.set_result(result)
            else:
                self.outcome.set_exception(result)

        with suppress(RuntimeError):  # the loop is closed: no caller is waiting
            self.loop.call_soon_threadsafe(resolve)


class LocalEncoder:
    """Implements :class:`engine.embeddings.Encoder` with a model in this process.

    Calls take turns, batch by batch, so that a short one does not wait for a long one; those in the background come
    after all others. The thread starts with the first call.

    Args:
        is_busy: whether the engine computes replies now.
    """

    def __init__(self, model: EncoderModel, is_busy: Callable[[], bool]) -> None:
        self.info: EncoderInfo = model.info
        self.num_bytes = model.num_bytes  #: memory of the weights
        self._model = model
        self._is_busy = is_busy
        self._jobs: deque[_Job] = deque()
        self._background: deque[_Job] = deque()
        self._changed = threading.Condition()  # guards the two queues and the fields below
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._last_background = monotonic()

    async def describe(self) -> EncoderInfo:
        return self.info

    async def embed(
        self, texts: Sequence[str | Sequence[int]], *, role: TextRole | None = None, background: bool = False
    ) -> Embeddings:
        """See :meth:`engine.embeddings.Encoder.embed`."""
        loop = asyncio.get_running_loop()
        vectors = np.empty((len(texts), self.info.dimensions), np.float32)
        job = _Job(texts, role, loop, loop.create_future(), vectors, [0] * len(texts))
        job.steps = self._steps_of(job)
        with self._changed:
            if self._is_closed:
                raise EngineStoppedError(CLOSED)
            num_waiting = sum(len(one.texts) for one in self._jobs)
            if not background and num_waiting and num_waiting + len(texts) > MAX_WAITING_TEXTS:
                raise EngineOverloadedError(
                    f"The encoder is full: {num_waiting:,} texts are waiting, of at most {MAX_WAITING_TEXTS:,}. "
                    "Try again in a moment."
                )
            (self._background if background else self._jobs).append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deskmate-encoder", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            return await job.outcome
        finally:
            job.is_cancelled = True  # no effect on one that is done

    def close(self) -> None:
        """Ends the thread, after its current batch. Calls in flight end with :class:`EngineStoppedError`."""
        with self._changed:
            self._is_closed = True
            waiting = [*self._jobs, *self._background]
            self._jobs.clear()
            self._background.clear()
            self._changed.notify()
        for job in waiting:
            job.end(EngineStoppedError(CLOSED))
        if self._thread is not None:
            self._thread.join()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (queue := self._wait_for_work()) is not None:
            job = queue[0]
            is_done = job.is_cancelled or self._advance(job)
            with self._changed:
                if queue and queue[0] is job:  # close() may have emptied it
                    queue.popleft()
                    if not is_done:
                        queue.append(job)

    def _wait_for_work(self) -> deque[_Job] | None:
        """Returns the queue whose first job is computed next; None once closed."""
        with self._changed:
            while not self._is_closed:
                if self._jobs:
                    return self._jobs
                if self._background:
                    now = monotonic()
                    if not self._is_busy() or now - self._last_background >= MAX_BACKGROUND_WAIT_SECONDS:
                        self._last_background = now
                        return self._background
                self._changed.wait(BUSY_POLL_SECONDS if self._background else None)
            return None

    def _advance(self, job: _Job) -> bool:
        """Computes one batch of a job; True when it has ended."""
        try:
            next(job.steps)
        except StopIteration:
            job.end(
                Embeddings(
                    vectors=job.vectors, num_tokens=tuple(job.num_tokens), truncated=tuple(sorted(job.truncated))
                )
            )
        except EngineError as error:
            job.end(error)
        except Exception as error:
            log.exception("the encoder failed")
            job.end(EngineError(f"The encoder failed: {first_line(error) or type(error).__name__}"))
        else:
            return False
        return True

    def _steps_of(self, job: _Job) -> Iterator[None]:
        """Computes a job in batches of texts of similar length."""
        for start in range(0, len(job.texts), TEXTS_AT_ONCE):
            texts = self._model.tokenize(job.texts[start : start + TEXTS_AT_ONCE], job.role)
            for batch in batches_by_length([len(text.ids) for text in texts]):
                rows = [texts[index] for index in batch]
                job.vectors[[start + index for index in batch]] = self._model.encode(rows)
                for index in batch:
                    self._count(job, start + index, texts[index])
                yield

    @staticmethod
    def _count(job: _Job, index: int, text: TokenizedText) -> None:
        job.num_tokens[index] = len(text.ids)
        if text.is_truncated:
            job.truncated.append(index)


def batches_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of texts in batches, shortest first, within the limits of a batch after padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == MAX_BATCH_TEXTS or (len(batch) + 1) * lengths[index] > MAX_BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
