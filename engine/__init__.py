"""Deskmate's inference engine. ``app/`` uses only what is exported here."""

from engine.engine import Engine
from engine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineBusyError,
    EngineError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    ReplyInterruptedError,
)
from engine.interface import ChatEngine, ChatMessage, ModelHost
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
from engine.utilisation import Utilisation

__all__ = [
    "ChatEngine",
    "ChatMessage",
    "Completion",
    "ContextLengthError",
    "DeadlineError",
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
    "ModelHost",
    "ModelInfo",
    "ModelLoadError",
    "PrefillProgress",
    "ReplyInterruptedError",
    "SamplingParams",
    "Timings",
    "TokenLogprobs",
    "Utilisation",
    "find_model",
]
