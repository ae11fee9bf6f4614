"""Deskmate's inference engine. ``app/`` uses only what is exported here."""

from engine.engine import Engine
from engine.errors import (
    ContextLengthError,
    EngineError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
)
from engine.interface import ChatEngine, ChatMessage
from engine.model.loading import find_model
from engine.outputs import (
    Completion,
    Delta,
    EngineStats,
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
    "EngineError",
    "EngineOverloadedError",
    "EngineSettings",
    "EngineStats",
    "EngineStoppedError",
    "FinishReason",
    "Health",
    "InvalidRequestError",
    "Logprob",
    "ModelInfo",
    "ModelLoadError",
    "PrefillProgress",
    "SamplingParams",
    "Timings",
    "TokenLogprobs",
    "find_model",
]
