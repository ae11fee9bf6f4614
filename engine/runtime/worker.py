"""The thread that owns the device: takes requests from any thread, runs the core, delivers deltas, and recovers."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import torch

from engine.device.memory import clear_error_frames, release_memory
from engine.errors import (
    EngineError,
    EngineFailedError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    first_line,
)
from engine.execution.fault_isolation import as_request_error
from engine.execution.submission import Submission
from engine.model.loaded_model import LoadedModel
from engine.outputs import EngineStats
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_batcher import OutputBatcher, OutputBatches
from engine.runtime.output_processor import StepOutput, deadline_error
from engine.runtime.quarantine import AdmissionGate, Quarantine
from engine.runtime.reader import Reader

log = logging.getLogger(__name__)

Rebuild = Callable[[LoadedModel | None], EngineCore]
"""Makes a new, warmed-up core from the given weights; None loads the weights again."""

BACKOFF_SECONDS = (0.0, 1.0, 5.0)
"""Pause before each restart attempt. The first attempt reuses the weights, the others load them again; after the last
one the engine stays down."""
MAX_FAILURES_PER_WINDOW = 5
FAILURE_WINDOW_SECONDS = 300.0
"""After ``MAX_FAILURES_PER_WINDOW`` failures within this time the engine stays down: restarting would hide a defect."""


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class _Stop:
    """Command that ends the thread."""


class Worker:
    """Runs a core on a thread of its own until it is closed.

    After a failed step, the requests in it end with :class:`EngineFailedError`. A new core serves the requests that
    only waited and those that arrive during the restart.

    Args:
        core: warmed up; owned by the worker from now on.
        rebuild: makes the next core when this one has failed.
        num_threads: CPU threads for the model.
        max_readers: maximum requests in flight; one more is refused.
    """

    def __init__(self, core: EngineCore, rebuild: Rebuild, *, num_threads: int, max_readers: int) -> None:
        # One field for the core and its predecessors' counters, so that stats() counts no core twice and skips none.
        self._cores: tuple[EngineCore | None, EngineStats] = (core, EngineStats.nothing())
        self.quarantine = Quarantine()
        self.restart_reason: str | None = None  #: why the core is being rebuilt, while it is
        self.failure: str | None = None  #: why the engine stays down, once it does
        self.num_restarts = 0
        self._rebuild = rebuild
        self._num_threads = num_threads
        self._max_readers = max_readers
        self._inbox: queue.SimpleQueue[Submission | _Abort | _Stop] = queue.SimpleQueue()
        self._gate = AdmissionGate(self.quarantine)
        self._failed_at: deque[float] = deque(maxlen=MAX_FAILURES_PER_WINDOW)
        self._closing = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()  # guards the three fields below
        self._batcher = OutputBatcher()
        self.readers: dict[str, Reader] = {}
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run, name="deskmate-engine", daemon=True)
        self._thread.start()

    @property
    def core(self) -> EngineCore:
        """The current core. Raises :class:`EngineStoppedError` once the worker is closed."""
        core = self._cores[0]
        if core is None:
            raise EngineStoppedError(self._refusal or "The engine is not started.")
        return core

    def stats(self) -> EngineStats:
        """Returns the counters of all its cores, and the gauges of the current one."""
        core, earlier = self._cores
        if core is None:
            return earlier
        now = core.stats().with_totals_of(earlier)
        return now if self.failure is None else now.without_gauges()  # a failed core's gauges are meaningless

    # -- called from any thread ---------------------------------------------------------------------------

    def submit(self, submission: Submission, reader: Reader) -> None:
        """Queues a request for its reader. Raises as :meth:`check_admission`."""
        self.quarantine.raise_if_poisoned(submission.request.prompt_token_ids)
        with self._lock:
            self._check_capacity()
            self.readers[reader.request_id] = reader
            self._idle.clear()
        self._inbox.put(submission)

    def check_admission(self, prompt: Sequence[int]) -> None:
        """Raises if a request with this prompt would be refused now.

        Raises:
            PoisonedPromptError: the prompt made the engine fail before.
            EngineStoppedError: the engine takes no requests; says why.
            EngineOverloadedError: too many requests are in flight.
        """
        self.quarantine.raise_if_poisoned(prompt)
        with self._lock:
            self._check_capacity()

    def abort(self, request_id: str) -> None:
        """Aborts a request whose reader left."""
        self._inbox.put(_Abort(request_id))

    def stop_admission(self, sentence: str) -> None:
        """Refuses new requests with ``sentence``; those in flight go on."""
        with self._lock:
            self._refusal = self._refusal or sentence

    @property
    def refusal(self) -> str | None:
        return self._refusal

    def wait_idle(self, timeout: float) -> bool:
        """Waits until no request is in flight, ``timeout`` seconds at most; True when that is so."""
        return self._idle.wait(timeout)

    def close(self, error: EngineError) -> EngineCore | None:
        """Ends the thread; requests still in flight end with ``error``.

        Returns the core, with no request in flight, or None if it has failed. The worker drops its reference, so that
        a reader that still holds the worker does not keep the model in memory.
        """
        self.stop_admission(str(error))
        self._closing.set()
        self._end_readers(error)
        self._inbox.put(_Stop())
        self._thread.join()
        core, stats = self._cores[0], self.stats().without_gauges()
        self._cores = (None, stats)
        return core if self.failure is None and self.restart_reason is None else None

    def _check_capacity(self) -> None:
        """Raises if no request can be taken. Called with the lock held."""
        if self._refusal is not None:
            raise EngineStoppedError(self._refusal)
        if len(self.readers) >= self._max_readers:
            raise EngineOverloadedError(
                f"The engine is full: {len(self.readers)} requests are running or waiting, of at most "
                f"{self._max_readers}. Try again in a moment."
            )

    # -- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # OpenMP keeps the number for each thread that calls it
        while True:
            try:
                while self._take_commands():
                    self._step()
                    if not self.core.has_work:
                        self.core.check()
                self.core.abort_all()
                return
            except Exception as error:
                log.exception("the engine failed")
                reason = _describe(error)
                clear_error_frames(error)
            if not self._recover(reason):
                return

    def _step(self) -> None:
        """Runs a step and delivers its output; if it fails, the output that was ready before."""
        output = StepOutput()
        try:
            self.core.step(output)
        finally:
            self._deliver(output)

    def _take_commands(self) -> bool:
        """Applies the commands in the inbox. Blocks only when there is nothing to compute. False ends the thread."""
        while True:
            self._add_admitted()
            try:
                command = self._inbox.get(block=not self.core.has_work and not self._closing.is_set())
            except queue.Empty:
                return not self._closing.is_set()
            match command:
                case Submission():
                    self._gate.enqueue(command)
                case _Abort(request_id):
                    if not self._gate.discard(request_id):
                        self.core.abort(request_id)
                    self._remove_reader(request_id)
                    if not self.core.has_work:
                        self.core.check()
                case _Stop():
                    return False

    def _add_admitted(self) -> None:
        for overdue_one in self._gate.pop_expired():
            self._fail(overdue_one.stream_id, deadline_error(overdue_one.request))
        for submission in self._gate.admit(busy=self.core.has_work):
            try:
                self.core.add(submission)
            except Exception as error:
                self._gate.discard(submission.stream_id)
                refusal = InvalidRequestError(str(error)) if isinstance(error, ValueError) else None
                self._fail(submission.stream_id, refusal or as_request_error(submission.stream_id, error))

    def _deliver(self, output: StepOutput) -> None:
        """Delivers a step's deltas to their event loops, now or together with those of the next steps."""
        deltas = output.deltas
        with self._lock:
            for delta in deltas:
                reader = self.readers.get(delta.request_id)
                if reader is not None:
                    self._batcher.put(reader, delta)
            batches = self._batcher.pop_due(len(self.readers))
        for delta in deltas:
            if delta.is_last:
                self._remove_reader(delta.request_id)
        for request_id, error in output.failures:
            self._fail(request_id, error)
        self._hand_over(batches)

    def _hand_over(self, batches: OutputBatches) -> None:
        """Delivers batches, with one call for each event loop. Aborts the requests of closed loops."""
        for loop, handed in batches.items():
            if not Reader.deliver(loop, handed):
                for reader, _deltas in handed:
                    self.core.abort(reader.request_id)
                    self._remove_reader(reader.request_id)

    def _fail(self, request_id: str, error: EngineError) -> None:
        with self._lock:
            reader = self.readers.get(request_id)
            batches = self._batcher.pop(reader) if reader is not None else {}
        self._hand_over(batches)
        if reader is not None:
            reader.fail(error)
        self._remove_reader(request_id)

    def _remove_reader(self, request_id: str) -> None:
        with self._lock:
            reader = self.readers.pop(request_id, None)
            if reader is not None:
                self._batcher.pop(reader)  # its reader has left or has everything
            if not self.readers:
                self._idle.set()

    def _end_readers(self, error: EngineError) -> None:
        with self._lock:
            readers, self.readers = list(self.readers.values()), {}
            batches = self._batcher.pop_all()
            self._idle.set()
        for loop, handed in batches.items():
            Reader.deliver(loop, handed)
        for reader in readers:
            reader.fail(error)

    # -- after a failed step --------------------------------------------------------------------------------

    def _recover(self, reason: str) -> bool:
        """Replaces the core after a failed step, and requeues the requests that were not in it.

        Returns False when the thread must end: the worker is closing, or the engine stays down.
        """
        self.restart_reason = reason
        with self._lock:
            batches = self._batcher.pop_all()
        self._hand_over(batches)
        failed, waiting = self.core.evacuate()
        lengths = {tuple(one.request.prompt_token_ids): len(one.request.token_ids) for one in failed}
        for prompt, length in lengths.items():
            self.quarantine.record_failure(prompt, length)
        sentence = f"The engine failed while writing this reply ({reason}). It restarts by itself; try again."
        for one in failed:
            self._fail(one.stream_id, EngineFailedError(sentence))
        self._gate.requeue(waiting)
        del failed, waiting

        self._failed_at.append(monotonic())
        often = len(self._failed_at) == MAX_FAILURES_PER_WINDOW
        if often and self._failed_at[-1] - self._failed_at[0] < FAILURE_WINDOW_SECONDS:
            self._fail_permanently(
                f"The engine failed {MAX_FAILURES_PER_WINDOW} times within a few minutes and stays down: {reason}"
            )
            return False
        why = reason
        for attempt, pause in enumerate(BACKOFF_SECONDS):
            if self._closing.wait(pause):
                return False
            model = self.core.model if attempt == 0 else None
            release_memory()
            try:
                core = self._rebuild(model)
            except Exception as error:
                log.exception("the engine could not restart")
                why = _describe(error)
                clear_error_frames(error)
                continue
            self._cores = (core, self.stats().without_gauges())
            self.num_restarts += 1
            self.restart_reason = None
            log.warning("the engine restarted after a failed step: %s", reason)
            return True
        self._fail_permanently(
            f"The engine failed ({reason}) and could not restart: {why}. Wake it up to try once more, or restart the "
            "program."
        )
        return False

    def _fail_permanently(self, sentence: str) -> None:
        self.failure = sentence
        self.stop_admission(sentence)
        self.restart_reason = None
        self._end_readers(EngineStoppedError(sentence))


def _describe(error: Exception) -> str:
    """Returns the first line of an error's message, or its type where it has none; out of memory gets advice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "it ran out of memory; fewer requests at once (max_num_seqs) or a smaller cache would help"
    first = first_line(error).rstrip(".")
    return first or type(error).__name__
