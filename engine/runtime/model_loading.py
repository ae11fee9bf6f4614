"""What the supervisor needs of PyTorch and transformers: loads a model, builds its core and starts its worker.

Importing this module takes seconds, so the supervisor imports it when it loads the first model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from engine.device.memory import available_memory, clear_error_frames, release_memory
from engine.errors import EngineError, ModelLoadError, first_line
from engine.execution.adapters import load_adapter
from engine.execution.capacity import layer_bytes, suitable_num_threads
from engine.execution.load import load_model, prepare_model
from engine.execution.speculation.draft_loading import draft_settings, with_draft_model
from engine.model.loaded_model import LoadedModel
from engine.model.progress import Progress
from engine.outputs import ModelInfo
from engine.runtime.engine_core import EngineCore
from engine.runtime.worker import Worker
from engine.sampling_params import SamplingParams
from engine.scheduling.cache_layout import CacheLayout
from engine.settings import EngineSettings

__all__ = [
    "add_adapter",
    "as_load_error",
    "build_core",
    "can_fit",
    "clear_error_frames",
    "info_of",
    "load",
    "prepare",
    "release_memory",
    "start_worker",
]

log = logging.getLogger("engine.runtime.supervisor")


MAX_COMPILED_WARM_UP = 16
"""Tokens of the prompt that warms up the C++ decoder."""


def prepare(settings: EngineSettings, progress: Progress, core: EngineCore | None = None) -> int:
    """Does what can be done before the model is loaded; returns the bytes that its weights will take.

    Args:
        core: of the loaded model, which is unloaded first if there is no memory for both.

    Raises:
        ModelLoadError: the model, or its draft model, cannot run.
    """
    draft = draft_settings(settings)
    needed = prepare_model(settings, progress, 0 if core is None else _memory_of(core))
    return needed if draft is None else needed + prepare_model(draft, progress)


def load(settings: EngineSettings, progress: Progress, *, skips_unfit_adapters: bool = False) -> LoadedModel:
    """Loads the model, with its draft model and adapters, and sets the number of threads of PyTorch.

    Args:
        skips_unfit_adapters: leave out adapters that cannot be loaded, with a warning: those of another model.

    Raises:
        ModelLoadError: a model or an adapter cannot be loaded or cannot run here.
    """
    model = with_draft_model(load_model(settings, progress), settings, progress)
    _load_adapters(model, settings, skips_unfit_adapters)
    torch.set_num_threads(settings.num_threads or suitable_num_threads(model))
    return model


def _load_adapters(model: LoadedModel, settings: EngineSettings, skips_unfit: bool) -> None:
    for name, folder in settings.adapters.items():
        try:
            add_adapter(model, settings, name, folder)
        except ModelLoadError as error:
            if not skips_unfit:
                raise
            log.warning("%s is served without the adapter %s. %s", model.name, name, error)


def add_adapter(model: LoadedModel, settings: EngineSettings, name: str, folder: Path) -> None:
    """Loads an adapter for a model, which may be running.

    Raises:
        ModelLoadError: the name is taken, or the adapter cannot be loaded.
    """
    if name in (settings.served_model_name or (model.name,)):
        raise ModelLoadError(f"The adapter {name} has the name of the model. Give it another one.")
    if name in model.adapters:
        raise ModelLoadError(f"An adapter is already loaded under the name {name}. Unload it first.")
    adapter = load_adapter(model, name, folder)
    model.adapters[name] = adapter
    log.info(
        "adapter %s: rank %d, %.1f MB, made for %s",
        name,
        adapter.rank,
        adapter.size_bytes / 1e6,
        adapter.base_model or "an unnamed model",
    )


def build_core(model: LoadedModel, settings: EngineSettings, progress: Progress) -> EngineCore:
    """Allocates the cache and warms up."""
    core = EngineCore(model, settings)
    _warm_up(core, settings, progress)
    return core


def start_worker(
    core: EngineCore, settings: EngineSettings, rebuild: Callable[[LoadedModel | None], EngineCore]
) -> Worker:
    """Starts the thread that runs ``core``.

    Args:
        rebuild: makes the next core after a failed step; None loads the weights again.
    """
    worker = Worker(
        core,
        rebuild,
        num_threads=settings.num_threads or suitable_num_threads(core.model),
        max_readers=settings.max_num_seqs + settings.max_waiting,
    )
    _log_model(core, info_of(core, settings))
    return worker


def info_of(core: EngineCore, settings: EngineSettings) -> ModelInfo:
    """Returns the description of the loaded model."""
    model = core.model
    return ModelInfo(
        name=model.name,
        max_model_len=core.request_processor.max_model_len,
        vocab_size=model.vocab_size,
        dtype=_number_format(model.dtype, model.quantization, model.file_format),
        device=str(model.device),
        attention=core.kernel.name,
        num_parameters=model.num_parameters,
        has_chat_template=bool(model.tokenizer.chat_template),
        can_think=core.request_processor.can_think,
        can_call_tools=core.request_processor.can_call_tools,
        can_inspect=True,
        has_unused_adapter=model.has_unused_adapter,
        quantization_reason=model.quantization_reason,
        served_names=settings.served_model_name,
        adapters=tuple(model.adapters),
        quantization=model.quantization,
        cache_bytes_per_token=sum(layer_bytes(layer, model, settings.kv_cache_dtype) for layer in model.layers),
    )


def as_load_error(error: BaseException, model: str) -> EngineError:
    """Returns the error that tells a user why ``model`` cannot be loaded."""
    reason = first_line(error) or type(error).__name__
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        reason = "there is not enough memory. Lower max_model_len or kv_cache_memory, or choose a smaller model."
    return ModelLoadError(f"{model} cannot be loaded: {reason}")


def can_fit(needed: int, core: EngineCore | None) -> bool:
    """Whether other weights of ``needed`` bytes fit into memory beside this core's, with a reserve of 20 %."""
    if core is None or core.model.device.type != "cpu":
        return False  # on a GPU the KV cache has taken the free memory
    return 1.2 * needed < available_memory(core.model.device)


def _memory_of(core: EngineCore) -> int:
    """Returns the bytes that unloading the core's model frees, at most: weights and cache."""
    layout, model = CacheLayout.of(core.model.layers), core.model
    stats = core.stats()
    cache = layout.width * model.dtype.itemsize * stats.kv_block_size * stats.num_kv_blocks
    return model.weight_bytes + cache


def _warm_up(core: EngineCore, settings: EngineSettings, progress: Progress) -> None:
    """Runs a prompt and a few decodes, so that the first request does not pay for lazy initialisation."""
    # A module initialises by the size of its inputs; compiled code does not, and a long prompt of a large model takes
    # seconds.
    longest = settings.max_batched_tokens if core.model.module is not None else MAX_COMPILED_WARM_UP
    length = min(longest, settings.max_batched_tokens, core.request_processor.max_model_len - 4)
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.0, top_p=0.9)
    prompt = [0] * length
    core.add(core.request_processor.process("warm-up", prompt, core.request_processor.resolve(prompt, params)))
    done = 0
    while core.has_work:
        progress("Warming up", min(done / 4, 1.0))
        core.step()
        done += 1
    core.reset()
    progress("Warming up", 1.0)


def _log_model(core: EngineCore, info: ModelInfo) -> None:
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
            "Load it under a name of its own with --lora NAME=FOLDER, or remove it.",
            info.name,
        )
    if not info.has_chat_template:
        log.warning(
            "model %s has no chat template: it reads conversations as a plain dialogue of User and Assistant, and "
            "may answer poorly. Use a variant made for chat (often named -Instruct), or add a chat_template.jinja.",
            info.name,
        )


def _number_format(dtype: torch.dtype, quantization: str, file_format: str | None) -> str:
    """Returns the data type of the weights as the UI shows it."""
    name = str(dtype).removeprefix("torch.")
    stored = file_format if quantization == "none" else quantization
    return name if stored is None else f"{stored} and {name}"
