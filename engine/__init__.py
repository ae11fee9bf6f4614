"""Deskmate's inference engine. ``app/`` uses only what is exported here.

PyTorch and transformers are imported when something needs them, because that takes seconds: :class:`Engine` imports
them while it starts, :func:`prepare_model` and :func:`model_size` on first use. :class:`RemoteEngine` needs neither.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.beam_search_params import MAX_BEAM_WIDTH, BeamSearchParams
from engine.chat_options import ChatOptions, NamedTool, Tool, ToolCall, ToolChoice, ToolChoiceMode
from engine.embeddings import Embeddings, Encoder, EncoderInfo, TextRole
from engine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineBusyError,
    EngineError,
    EngineFailedError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    ReplyInterruptedError,
    UnsupportedParameterError,
)
from engine.interface import (
    BackgroundStart,
    Caller,
    ChatEngine,
    ChatMessage,
    ModelHost,
    PreparedPrompt,
    PromptPiece,
    PromptReader,
    ReplyInspector,
    Truncation,
)
from engine.outputs import (
    Alternative,
    Completion,
    Delta,
    Deltas,
    EngineState,
    EngineStats,
    EngineStatus,
    FinishReason,
    Health,
    InspectedRow,
    Inspection,
    Logprob,
    ModelInfo,
    PrefillProgress,
    Timings,
    TokenLogprobs,
    ToolCallDelta,
    Utilisation,
    join_tool_calls,
)
from engine.parameter_table import PARAMETERS, Group, Kind, Parameter, Slider
from engine.sampling_params import BACKGROUND_PRIORITY, MAX_PRIORITY, SamplingParams
from engine.settings import EngineSettings
from engine.structured_output import StructuredOutput, StructureKind

# Read by OpenMP when PyTorch loads it. By default its threads spin for milliseconds when they have no work, and other
# programs, or threads they wait for, get no processor. With more threads than processors it takes this number itself.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from engine.device.host_memory import available_host_memory
    from engine.encoder.memory import EncoderMemory, encoder_memory
    from engine.engine import Engine
    from engine.execution.native.build import describe_native_decoder
    from engine.llm import LLM
    from engine.model.adapter_files import adapter_memory, has_unused_adapter
    from engine.model.download import fetch_model
    from engine.model.folders import PROJECT_ROOT, find_model
    from engine.model.gguf.files import generation_config_path, quantization_in_name
    from engine.model.gguf.summary import GgufSummary, summarize_gguf
    from engine.model.load import advise_memory_limit, prepare_model
    from engine.model.quantized.writer import quantize_checkpoint
    from engine.model.sizing import (
        SERVER_WEIGHT_FORMATS,
        WEIGHT_FORMATS,
        ModelSize,
        WeightFormat,
        check_context,
        model_size,
    )
    from engine.remote.client import RemoteEngine
    from engine.runtime.background import run_in_daemon_thread

__all__ = [
    "BACKGROUND_PRIORITY",
    "LLM",
    "MAX_BEAM_WIDTH",
    "MAX_PRIORITY",
    "PARAMETERS",
    "PROJECT_ROOT",
    "SERVER_WEIGHT_FORMATS",
    "WEIGHT_FORMATS",
    "Alternative",
    "BackgroundStart",
    "BeamSearchParams",
    "Caller",
    "ChatEngine",
    "ChatMessage",
    "ChatOptions",
    "Completion",
    "ContextLengthError",
    "DeadlineError",
    "Delta",
    "Deltas",
    "Embeddings",
    "Encoder",
    "EncoderInfo",
    "EncoderMemory",
    "Engine",
    "EngineBusyError",
    "EngineError",
    "EngineFailedError",
    "EngineOverloadedError",
    "EngineSettings",
    "EngineState",
    "EngineStats",
    "EngineStatus",
    "EngineStoppedError",
    "FinishReason",
    "GgufSummary",
    "Group",
    "Health",
    "InspectedRow",
    "Inspection",
    "InvalidRequestError",
    "Kind",
    "Logprob",
    "ModelHost",
    "ModelInfo",
    "ModelLoadError",
    "ModelSize",
    "NamedTool",
    "Parameter",
    "PrefillProgress",
    "PreparedPrompt",
    "PromptPiece",
    "PromptReader",
    "RemoteEngine",
    "ReplyInspector",
    "ReplyInterruptedError",
    "SamplingParams",
    "Slider",
    "StructureKind",
    "StructuredOutput",
    "TextRole",
    "Timings",
    "TokenLogprobs",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolChoiceMode",
    "Truncation",
    "UnsupportedParameterError",
    "Utilisation",
    "WeightFormat",
    "adapter_memory",
    "advise_memory_limit",
    "available_host_memory",
    "check_context",
    "describe_native_decoder",
    "encoder_memory",
    "fetch_model",
    "find_model",
    "generation_config_path",
    "has_unused_adapter",
    "join_tool_calls",
    "model_size",
    "prepare_model",
    "quantization_in_name",
    "quantize_checkpoint",
    "run_in_daemon_thread",
    "summarize_gguf",
]


_MODULES = {
    "EncoderMemory": "engine.encoder.memory",
    "Engine": "engine.engine",
    "GgufSummary": "engine.model.gguf.summary",
    "LLM": "engine.llm",
    "ModelSize": "engine.model.sizing",
    "PROJECT_ROOT": "engine.model.folders",
    "RemoteEngine": "engine.remote.client",
    "SERVER_WEIGHT_FORMATS": "engine.model.sizing",
    "WEIGHT_FORMATS": "engine.model.sizing",
    "WeightFormat": "engine.model.sizing",
    "adapter_memory": "engine.model.adapter_files",
    "advise_memory_limit": "engine.model.load",
    "available_host_memory": "engine.device.host_memory",
    "check_context": "engine.model.sizing",
    "describe_native_decoder": "engine.execution.native.build",
    "encoder_memory": "engine.encoder.memory",
    "fetch_model": "engine.model.download",
    "find_model": "engine.model.folders",
    "has_unused_adapter": "engine.model.adapter_files",
    "model_size": "engine.model.sizing",
    "prepare_model": "engine.model.load",
    "quantize_checkpoint": "engine.model.quantized.writer",
    "generation_config_path": "engine.model.gguf.files",
    "quantization_in_name": "engine.model.gguf.files",
    "run_in_daemon_thread": "engine.runtime.background",
    "summarize_gguf": "engine.model.gguf.summary",
}
"""Where the names are that are imported on first use; the imports above tell type checkers the same."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
