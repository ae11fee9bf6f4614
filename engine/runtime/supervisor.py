"""Manages the engine's lifecycle: loads and releases a model, sleeps, wakes, and swaps models.

Importing PyTorch and transformers takes seconds. Everything here that needs them is in ``model_loading``, which the
thread that loads the first model imports: the engine reports its state from the beginning.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import (
    EngineBusyError,
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    LoadCancelledError,
    ModelLoadError,
    ReplyInterruptedError,
)
from engine.model.folders import expected_info
from engine.outputs import EngineState, EngineStats, EngineStatus, ModelInfo
from engine.parameter_values import shown
from engine.runtime.metrics import EngineMetrics
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from engine.encoder.local_encoder import LocalEncoder
    from engine.model.loaded_model import LoadedModel
    from engine.model.progress import Progress
    from engine.runtime.engine_core import EngineCore
    from engine.runtime.worker import Worker

log = logging.getLogger(__name__)

_REFUSALS = {
    EngineState.STOPPED: "The engine is not started.",
    EngineState.STARTING: "The model is still being loaded. Try again in a moment.",
    EngineState.DRAINING: "The engine is stopping and takes no new requests.",
    EngineState.ASLEEP: "The model is asleep and its memory is released. Wake it up first.",
    EngineState.SWAPPING: "Another model is being loaded. Try again when it is ready.",
}
_STOPPED = "The engine was stopped before the reply was finished."
_ASLEEP = "The model was put to sleep before the reply was finished."
_SWAPPED = "Another model was loaded before the reply was finished."
_MODEL_LOADING = "engine.runtime.model_loading"
_VECTORS = "vectors of the encoder"


class Supervisor:
    """Owns the worker and what outlives it: settings, metrics, model info.

    Every method blocks. Those that load or unload a model exclude one another: a second one raises
    :class:`EngineBusyError`, except :meth:`stop`, which waits.

    Args:
        settings: of the first model.
        progress: called with the stage of loading and its progress, 0 to 1.
    """

    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        self.settings = settings
        self.worker: Worker | None = None
        self.encoder: LocalEncoder | None = None  #: loaded once, and kept while models sleep and swap
        self.info: ModelInfo | None = None
        self._expected: ModelInfo | None = None
        self.default_params: SamplingParams | None = None
        self.metrics = EngineMetrics(self.stats)
        self._progress = progress
        self._state = EngineState.STOPPED
        self._refusal = _REFUSALS[EngineState.STOPPED]  # of the last closed worker
        self._stage: tuple[str, float] | None = None
        self._totals = EngineStats.nothing()  # counters of closed workers
        self._restarts = 0
        self._exclusive = threading.Lock()
        self._cancelled = threading.Event()

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        worker = self.worker
        if worker is not None and self._state is EngineState.READY:
            if worker.failure is not None:
                return EngineState.FAILED
            if worker.restart_reason is not None:
                return EngineState.RESTARTING
        return self._state

    @property
    def known_info(self) -> ModelInfo | None:
        """The last loaded model; after :meth:`announce_start`, what is known of the first one; None before."""
        return self._expected if self.info is None and self._state is EngineState.STARTING else self.info

    @property
    def status(self) -> EngineStatus:
        state, worker, stage = self.state, self.worker, self._stage
        reason = _REFUSALS.get(state)
        if worker is not None and state is EngineState.FAILED:
            reason = worker.failure
        elif worker is not None and state is EngineState.RESTARTING:
            reason = f"The engine failed and is restarting: {worker.restart_reason}."
        return EngineStatus(
            state=state,
            model=self.settings.model,
            reason=reason,
            stage=stage[0] if stage else None,
            progress=stage[1] if stage else None,
            num_restarts=self._num_restarts,
        )

    def stats(self) -> EngineStats:
        """Returns current gauges, and counters from the first start, across restarts, sleeps and swaps."""
        worker = self.worker
        counted = self._totals if worker is None else worker.stats().with_totals_of(self._totals)
        return replace(
            counted, state=self.state, num_restarts=self._num_restarts, utilisation=self.metrics.meter.read()
        )

    @property
    def _num_restarts(self) -> int:
        worker = self.worker
        return self._restarts + (worker.num_restarts if worker is not None else 0)

    def running_worker(self) -> Worker:
        """Returns the worker, whether or not it takes requests.

        Raises:
            EngineStoppedError: there is none; says why.
        """
        worker = self.worker
        if worker is None:
            # The state may be READY all the same: still, when a worker was just closed, or again, after a quick wake.
            raise EngineStoppedError(_REFUSALS.get(self._state, self._refusal))
        return worker

    # -- commands ---------------------------------------------------------------------------------------------

    def announce_start(self) -> None:
        """Reports the engine as starting from now on. :meth:`start` must follow, in another thread."""
        if self.worker is None and self._state is EngineState.STOPPED:
            self._expected = expected_info(self.settings)
            self._state = EngineState.STARTING

    def start(self) -> None:
        """Loads the model and starts the worker.

        Raises:
            RuntimeError: the engine is already started.
            ModelLoadError: the model cannot be loaded or cannot run here.
            LoadCancelledError: :meth:`cancel` was called.
        """
        with self._exclusively(for_start=True):
            if self.worker is not None or self._state is EngineState.ASLEEP:
                raise RuntimeError("the engine is already started")
            self._load_and_start(with_encoder=True)

    def cancel(self) -> None:
        """Cancels a load in progress, at its next progress report."""
        self._cancelled.set()

    def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits; True when all in flight ended within ``timeout`` seconds."""
        worker = self.worker
        if worker is None:
            return True
        if self._state is EngineState.READY:
            self._state = EngineState.DRAINING
        worker.stop_admission(_REFUSALS[EngineState.DRAINING])
        return worker.wait_idle(timeout)

    def stop(self) -> None:
        """Closes the worker and releases the model. Requests in flight end with an error; a load is cancelled."""
        self.cancel()
        with self._exclusive:
            self._cancelled.clear()
            self._close_worker(0.0, _REFUSALS[EngineState.DRAINING], _STOPPED)
            self._state = EngineState.STOPPED
            self._close_encoder()
            if self.info is not None:
                self._release_memory()

    def sleep(self, timeout: float) -> None:
        """Releases weights and cache. Replies in flight get ``timeout`` seconds, then they are interrupted."""
        with self._exclusively():
            if self._state is EngineState.ASLEEP:
                return
            self.running_worker()
            self._close_worker(timeout, _REFUSALS[EngineState.ASLEEP], _ASLEEP)
            self._state = EngineState.ASLEEP
            self._release_memory()
            log.info("the model is asleep: weights and cache are released")

    def wake(self) -> None:
        """Loads the model again, after a sleep or a failure. Does nothing when it is already awake.

        Raises:
            EngineStoppedError: the engine is not started.
            ModelLoadError: the model cannot be loaded any more; the engine stays as it was.
        """
        with self._exclusively():
            if self._state is EngineState.ASLEEP:
                self._load_and_start()
                return
            if self.running_worker().failure is not None:
                self._close_worker(0.0, _REFUSALS[EngineState.STARTING], _STOPPED)
                self._state = EngineState.ASLEEP
                self._release_memory()
                self._load_and_start()

    def swap(self, settings: EngineSettings, timeout: float) -> None:
        """Replaces the served model. Replies in flight get ``timeout`` seconds, then they are interrupted.

        Loads the new weights beside the old ones where both fit into memory. After any failure, the old model serves
        again.

        Raises:
            EngineStoppedError: the engine is not started.
            ModelLoadError: the new model cannot be loaded or cannot run here.
        """
        with self._exclusively():
            before = self._state
            if before is not EngineState.ASLEEP:
                self.running_worker()
            needed = self._prepare(settings)  # the old model still serves
            self._state = EngineState.SWAPPING
            refusal = _REFUSALS[EngineState.SWAPPING]
            try:
                # No local variable for the core: it would keep the old model in memory.
                self._replace_core(self._close_worker(timeout, refusal, _SWAPPED), settings, needed)
            except BaseException as error:
                from engine.runtime.model_loading import as_load_error, clear_error_frames

                clear_error_frames(error)
                failure = error if isinstance(error, EngineError) else as_load_error(error, settings.model)
                if self.worker is None:
                    self._state = EngineState.ASLEEP
                    if before is not EngineState.ASLEEP and not self._cancelled.is_set():
                        self._restore_previous(failure)
                log.warning("could not load %s; keeping %s", settings.model, self.settings.model)
                raise failure from error

    def load_adapter(self, name: str, folder: Path) -> None:
        """Loads an adapter for the model while it serves. It is loaded again when the model is.

        Raises:
            EngineStoppedError: the engine is not started, or asleep.
            ModelLoadError: the name is taken, or the adapter cannot be loaded.
        """
        with self._exclusively():
            model = self.running_worker().core.model
            from engine.runtime.model_loading import add_adapter

            settings = self.settings.with_adapter(name, folder)
            add_adapter(model, settings, name, folder)
            self._set_adapters(settings, model)

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. Its replies in flight go on.

        Raises:
            EngineStoppedError: the engine is not started, or asleep.
            InvalidRequestError: there is none of this name.
        """
        with self._exclusively():
            model = self.running_worker().core.model
            if model.adapters.pop(name, None) is None:
                raise InvalidRequestError(f"No adapter is loaded under the name {shown(name)}.")
            self._set_adapters(self.settings.without_adapter(name), model)

    # -- internals --------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusively(self, *, for_start: bool = False) -> Iterator[None]:
        # An announced start may not hold the lock yet: a command that took it meanwhile would make the start fail.
        is_announced = self._state is EngineState.STARTING and not for_start
        if is_announced or not self._exclusive.acquire(blocking=False):
            raise EngineBusyError("The engine is busy loading or unloading a model. Try again when it is done.")
        try:
            yield
        finally:
            self._stage = None
            self._cancelled.clear()
            self._exclusive.release()

    def _prepare(self, settings: EngineSettings) -> int:
        from engine.runtime.model_loading import as_load_error, prepare

        try:
            return prepare(settings, self._report, self.worker.core if self.worker is not None else None)
        except EngineError:
            raise
        except Exception as error:
            raise as_load_error(error, settings.model) from error
        finally:
            self._stage = None

    def _replace_core(self, core: EngineCore | None, settings: EngineSettings, needed: int) -> None:
        """Replaces ``core``, the old model's, and starts a worker for the new model.

        On failure, the old model serves again where its weights were kept; else there is no worker.
        """
        from engine.runtime import model_loading

        if not model_loading.can_fit(needed, core):
            core = None
            self._release_memory()
        try:
            model = self._load(settings)
        except BaseException:
            if core is not None:
                self._start_worker(core)
            raise
        old = core.model if core is not None else None
        core = None  # frees the old cache before the new one is allocated
        self._release_memory()
        try:
            new = self._build_core(model, settings)
        except BaseException:
            del model
            if old is not None:
                self._start_worker(self._build_core(old, self.settings))
            raise
        del old
        self.settings = settings
        self._start_worker(new)
        self._release_memory()

    def _set_adapters(self, settings: EngineSettings, model: LoadedModel) -> None:
        assert self.info is not None, "the model is loaded"
        self.settings, self.info = settings, replace(self.info, adapters=tuple(model.adapters))

    def _restore_previous(self, failure: EngineError) -> None:
        try:
            self._load_and_start()
        except Exception as error:
            raise ModelLoadError(f"{failure} Then {self.settings.model} could not be loaded again: {error}") from error

    def _load_and_start(self, *, with_encoder: bool = False) -> None:
        before = EngineState.STOPPED if self._state is EngineState.STARTING else self._state
        self._state = EngineState.STARTING
        try:
            self._import_model_loading()
            if with_encoder and self.settings.encoder is not None:
                self._load_encoder(self.settings.encoder)  # first: the model's cache takes a share of what is left
            self._start_worker(self._build_core(self._load(self.settings), self.settings))
        except BaseException as error:
            self._state = before
            if with_encoder:
                self._close_encoder()
            if _MODEL_LOADING in sys.modules:
                from engine.runtime.model_loading import clear_error_frames

                clear_error_frames(error)
                self._release_memory()
            raise

    def _load_encoder(self, model: str) -> None:
        from engine.device.host_memory import reserve_host_memory
        from engine.encoder.load import load_encoder
        from engine.encoder.local_encoder import LocalEncoder
        from engine.encoder.memory import vector_bytes

        encoder = LocalEncoder(load_encoder(model, self._report), self._is_computing)
        self.encoder = encoder
        reserve_host_memory(_VECTORS, vector_bytes(self.settings, encoder.info.dimensions))
        log.info(
            "encoder %s: %d dimensions, up to %d tokens, %.0f MB",
            encoder.info.name,
            encoder.info.dimensions,
            encoder.info.max_tokens,
            encoder.num_bytes / 1e6,
        )

    def _close_encoder(self) -> None:
        encoder, self.encoder = self.encoder, None
        if encoder is not None:
            from engine.device.host_memory import reserve_host_memory

            encoder.close()
            reserve_host_memory(_VECTORS, 0)

    def _is_computing(self) -> bool:
        """Whether a request is in flight."""
        worker = self.worker
        return worker is not None and not worker.wait_idle(0.0)

    def _import_model_loading(self) -> None:
        """Imports PyTorch and transformers, and reports it: it takes seconds. Can be cancelled in between."""
        if _MODEL_LOADING in sys.modules:
            return
        modules = "torch", "transformers", _MODEL_LOADING
        is_collecting = gc.isenabled()
        gc.disable()  # an import leaves little garbage, and looking for it takes a fifth of the time
        try:
            for number, module in enumerate(modules):
                self._report("Importing PyTorch", number / len(modules))
                import_module(module)
        finally:
            if is_collecting:
                gc.enable()
        self._report("Importing PyTorch", 1.0)

    def _load(self, settings: EngineSettings) -> LoadedModel:
        from engine.runtime.model_loading import load

        # The adapters of the settings must fit the model that the engine starts with, not those that it swaps to.
        return load(settings, self._report, skips_unfit_adapters=self.info is not None)

    def _build_core(self, model: LoadedModel, settings: EngineSettings) -> EngineCore:
        from engine.runtime.model_loading import build_core

        core = build_core(model, settings, self._report)
        core.metrics = self.metrics
        return core

    def _rebuild(self, model: LoadedModel | None) -> EngineCore:
        """Builds the worker's next core after a failed step; ``model`` None loads the weights again."""
        core = self._build_core(model or self._load(self.settings), self.settings)
        self._stage = None
        return core

    def _start_worker(self, core: EngineCore) -> None:
        from engine.runtime.model_loading import info_of, start_worker

        self.info, self.default_params = info_of(core, self.settings), core.request_processor.default_params
        self.worker = start_worker(core, self.settings, self._rebuild)
        self._state = EngineState.READY

    def _release_memory(self) -> None:
        from engine.runtime.model_loading import release_memory

        release_memory()

    def _close_worker(self, timeout: float, refusal: str, sentence: str) -> EngineCore | None:
        """Refuses requests, waits, then interrupts. Returns the idle core, None if it has failed or there is none."""
        worker = self.worker
        if worker is None:
            return None
        self._refusal = refusal
        worker.stop_admission(refusal)
        worker.wait_idle(timeout)
        core = worker.close(ReplyInterruptedError(sentence))
        self._totals = worker.stats().with_totals_of(self._totals)
        self._restarts += worker.num_restarts
        self.worker = None
        return core

    def _report(self, stage: str, fraction: float) -> None:
        if self._cancelled.is_set():
            raise LoadCancelledError("Loading the model was cancelled.")
        self._stage = (stage, fraction)
        self._progress(stage, fraction)
