"""Manages the engine's lifecycle: loads and releases a model, sleeps, wakes, and swaps models."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from engine.device.memory import available_memory, clear_error_frames, release_memory
from engine.errors import (
    EngineBusyError,
    EngineError,
    EngineStoppedError,
    LoadCancelledError,
    ModelLoadError,
    ReplyInterruptedError,
    first_line,
)
from engine.execution.capacity import suitable_num_threads
from engine.execution.load import load_model
from engine.execution.speculation.draft_loading import draft_settings, with_draft_model
from engine.model.load import LoadedModel, prepare_model
from engine.model.weights import Progress
from engine.outputs import EngineState, EngineStats, EngineStatus, ModelInfo
from engine.runtime.engine_core import EngineCore
from engine.runtime.metrics import EngineMetrics
from engine.runtime.worker import Worker
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings

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
        self.info: ModelInfo | None = None
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

    def start(self) -> None:
        """Loads the model and starts the worker.

        Raises:
            RuntimeError: the engine is already started.
            ModelLoadError: the model cannot be loaded or cannot run here.
            LoadCancelledError: :meth:`cancel` was called.
        """
        with self._exclusively():
            if self.worker is not None or self._state is EngineState.ASLEEP:
                raise RuntimeError("the engine is already started")
            self._load_and_start()

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
            release_memory()

    def sleep(self, timeout: float) -> None:
        """Releases weights and cache. Replies in flight get ``timeout`` seconds, then they are interrupted."""
        with self._exclusively():
            if self._state is EngineState.ASLEEP:
                return
            self.running_worker()
            self._close_worker(timeout, _REFUSALS[EngineState.ASLEEP], _ASLEEP)
            self._state = EngineState.ASLEEP
            release_memory()
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
                release_memory()
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
                clear_error_frames(error)
                failure = error if isinstance(error, EngineError) else _as_load_error(error, settings.model)
                if self.worker is None:
                    self._state = EngineState.ASLEEP
                    if before is not EngineState.ASLEEP and not self._cancelled.is_set():
                        self._restore_previous(failure)
                log.warning("could not load %s; keeping %s", settings.model, self.settings.model)
                raise failure from error

    # -- internals --------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._exclusive.acquire(blocking=False):
            raise EngineBusyError("The engine is busy loading or unloading a model. Try again when it is done.")
        try:
            yield
        finally:
            self._stage = None
            self._cancelled.clear()
            self._exclusive.release()

    def _prepare(self, settings: EngineSettings) -> int:
        try:
            draft = draft_settings(settings)
            needed = prepare_model(settings, self._report)
            return needed if draft is None else needed + prepare_model(draft, self._report)
        except EngineError:
            raise
        except Exception as error:
            raise _as_load_error(error, settings.model) from error
        finally:
            self._stage = None

    def _replace_core(self, core: EngineCore | None, settings: EngineSettings, needed: int) -> None:
        """Replaces ``core``, the old model's, and starts a worker for the new model.

        On failure, the old model serves again where its weights were kept; else there is no worker.
        """
        if not _can_fit(needed, core):
            core = None
            release_memory()
        try:
            model = self._load(settings)
        except BaseException:
            if core is not None:
                self._start_worker(core)
            raise
        old = core.model if core is not None else None
        core = None  # frees the old cache before the new one is allocated
        release_memory()
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
        release_memory()

    def _restore_previous(self, failure: EngineError) -> None:
        try:
            self._load_and_start()
        except Exception as error:
            raise ModelLoadError(f"{failure} Then {self.settings.model} could not be loaded again: {error}") from error

    def _load_and_start(self) -> None:
        before = self._state
        self._state = EngineState.STARTING
        try:
            self._start_worker(self._build_core(self._load(self.settings), self.settings))
        except BaseException as error:
            self._state = before
            clear_error_frames(error)
            release_memory()
            raise

    def _load(self, settings: EngineSettings) -> LoadedModel:
        model = with_draft_model(load_model(settings, self._report), settings, self._report)
        torch.set_num_threads(settings.num_threads or suitable_num_threads(model))
        return model

    def _build_core(self, model: LoadedModel, settings: EngineSettings) -> EngineCore:
        core = EngineCore(model, settings)
        self._warm_up(core, settings)
        core.metrics = self.metrics
        return core

    def _rebuild(self, model: LoadedModel | None) -> EngineCore:
        """Builds the worker's next core after a failed step; ``model`` None loads the weights again."""
        core = self._build_core(model or self._load(self.settings), self.settings)
        self._stage = None
        return core

    def _start_worker(self, core: EngineCore) -> None:
        settings, model = self.settings, core.model
        info = ModelInfo(
            name=model.name,
            max_model_len=core.request_processor.max_model_len,
            vocab_size=model.vocab_size,
            dtype=_number_format(model.dtype, settings.quantization),
            device=str(model.device),
            attention=core.kernel.name,
            num_parameters=model.num_parameters,
            has_chat_template=bool(model.tokenizer.chat_template),
            has_unused_adapter=model.has_unused_adapter,
            served_names=settings.served_model_name,
        )
        self.info, self.default_params = info, core.request_processor.default_params
        self.worker = Worker(
            core,
            self._rebuild,
            num_threads=settings.num_threads or suitable_num_threads(model),
            max_readers=settings.max_num_seqs + settings.max_waiting,
        )
        self._state = EngineState.READY
        stats = core.stats()
        log.info(
            "model %s: %s on %s, attention %s, %d KV blocks of %d tokens, context %d",
            info.name,
            info.dtype,
            info.device,
            info.attention,
            stats.num_kv_blocks,
            stats.kv_block_size,
            info.max_model_len,
        )
        if info.has_unused_adapter:
            log.warning(
                "the folder of model %s holds a LoRA adapter, which is not applied: the model answers without it. "
                "Merge it into the weights with PEFT (merge_and_unload), or remove it.",
                info.name,
            )
        if not info.has_chat_template:
            log.warning(
                "model %s has no chat template: it reads conversations as a plain dialogue of User and Assistant, and "
                "may answer poorly. Use a variant made for chat (often named -Instruct), or add a chat_template.jinja.",
                info.name,
            )

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

    def _warm_up(self, core: EngineCore, settings: EngineSettings) -> None:
        """Runs a long prompt and a few decodes, so that the first request does not pay for lazy initialisation."""
        length = min(settings.max_batched_tokens, core.request_processor.max_model_len - 4)
        params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.0, top_p=0.9)
        prompt = [0] * length
        core.add(core.request_processor.process("warm-up", prompt, core.request_processor.resolve(prompt, params)))
        done = 0
        while core.has_work:
            self._report("Warming up", min(done / 4, 1.0))
            core.step()
            done += 1
        core.reset()
        self._report("Warming up", 1.0)


def _number_format(dtype: torch.dtype, quantization: str) -> str:
    """Returns the data type of the weights as the UI shows it."""
    name = str(dtype).removeprefix("torch.")
    return name if quantization == "none" else f"{quantization} and {name}"


def _as_load_error(error: BaseException, model: str) -> EngineError:
    reason = first_line(error) or type(error).__name__
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        reason = "there is not enough memory. Lower max_model_len or kv_cache_memory, or choose a smaller model."
    return ModelLoadError(f"{model} cannot be loaded: {reason}")


def _can_fit(needed: int, core: EngineCore | None) -> bool:
    """Whether other weights of ``needed`` bytes fit into memory beside this core's, with a reserve of 20 %."""
    if core is None or core.model.device.type != "cpu":
        return False  # on a GPU the KV cache has taken the free memory
    return 1.2 * needed < available_memory(core.model.device)
