"""Deskmate's inference engine. ``app/`` uses only what is exported here.

:class:`Engine` and :func:`find_model` bring PyTorch and transformers along, seconds of work: they are imported when
they are first used, so that ``deskmate --help`` and a wrong setting are answered at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)
from engine.interface import ChatEngine, ChatMessage, ModelHost
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

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.model.loading import find_model

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
    "EngineFailedError",
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


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from engine.engine import Engine

        return Engine
    if name == "find_model":
        from engine.model.loading import find_model

        return find_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
