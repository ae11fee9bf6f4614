"""Deskmate's inference engine. ``app/`` uses only what is exported here."""

from engine.engine import Engine
from engine.errors import (
    ContextLengthError,
    EngineBusyError,
    EngineError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    ReplyInterruptedError,
)
from engine.interface import ChatEngine, ChatMessage
from engine.model.loading import find_model
from engine.outputs import (
    Completion,
    Delta,
    EngineState,
    EngineStats,
    EngineStatus,
    FinishReason,
    Health,
    Logprob,
    ModelInfo,
    PrefillProgress,
    Timings,
    TokenLogprobs,
)
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings

__all__ = [
    "ChatEngine",
    "ChatMessage",
    "Completion",
    "ContextLengthError",
    "Delta",
    "Engine",
    "EngineBusyError",
    "EngineError",
    "EngineOverloadedError",
    "EngineSettings",
    "EngineState",
    "EngineStats",
    "EngineStatus",
    "EngineStoppedError",
    "FinishReason",
    "Health",
    "InvalidRequestError",
    "Logprob",
    "ModelInfo",
    "ModelLoadError",
    "PrefillProgress",
    "ReplyInterruptedError",
    "SamplingParams",
    "Timings",
    "TokenLogprobs",
    "find_model",
]
