"""What the engine is doing, and which model it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.api.deps import ServicesDep
from app.errors import Conflict, EngineUnavailable, ModelUnusable, NotSupported
from engine import (
    ChatEngine,
    EngineBusyError,
    EngineError,
    EngineState,
    EngineStats,
    ModelHost,
    ModelInfo,
    ModelLoadError,
)

router = APIRouter(prefix="/api/engine", tags=["engine"])

Seconds = Annotated[float, Field(ge=0, le=3600, description="How long replies in flight may go on; then they end.")]


class EngineView(BaseModel):
    """The engine as it is now."""

    state: EngineState
    reason: str | None = Field(description="Why it takes no messages, as a sentence.")
    stage: str | None = Field(description="While a model is being loaded: what is happening.")
    progress: float | None = Field(description="How far the stage is, 0 to 1.")
    source: str = Field(description="The folder or hub id the model came from, or the servers that run it.")
    remote: bool = Field(description="The model runs in another program, and is not put to sleep or replaced here.")
    model: ModelInfo = Field(description="What is loaded, or was when it fell asleep.")
    stats: EngineStats = Field(description="Counters from the start, and how much of the machine is used.")


class Ending(BaseModel):
    """How to part from the model that is loaded."""

    model_config = ConfigDict(extra="forbid")

    timeout: Seconds = 30.0


class NewModel(Ending):
    """Another model."""

    model: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] = Field(
        description="A folder, or a hub id such as Qwen/Qwen3-0.6B."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    max_model_len: int | None = Field(None, ge=16, description="Context window in tokens; default: the model's own.")


@router.get("")
async def engine_now(services: ServicesDep) -> EngineView:
    """What the engine is doing, its model, and how much of the machine it uses."""
    return _view(services.engine)


@router.post("/sleep")
async def sleep(ending: Ending, services: ServicesDep) -> EngineView:
    """Give the model's memory back to the system. Messages are refused until it is woken up."""
    async with _host(services.engine) as host:
        await host.sleep(ending.timeout)
    return _view(services.engine)


@router.post("/wake")
async def wake(services: ServicesDep) -> EngineView:
    """Load the model again, after sleep or after a failure. Answers when it is there."""
    async with _host(services.engine) as host:
        await host.wake()
    return _view(services.engine)


@router.post("/swap")
async def swap(new: NewModel, services: ServicesDep) -> EngineView:
    """Load another model and serve it. Answers when it is there; when it cannot be loaded, the old one stays."""
    async with _host(services.engine) as host:
        await host.swap(new.model, revision=new.revision, max_model_len=new.max_model_len, timeout=new.timeout)
    return _view(services.engine)


def _view(engine: ChatEngine) -> EngineView:
    status = engine.status
    return EngineView(
        state=status.state,
        reason=status.reason,
        stage=status.stage,
        progress=status.progress,
        source=status.model,
        remote=not isinstance(engine, ModelHost),
        model=engine.info,
        stats=engine.stats(),
    )


@asynccontextmanager
async def _host(engine: ChatEngine) -> AsyncIterator[ModelHost]:
    """The engine as what holds a model, its errors in the app's words."""
    if not isinstance(engine, ModelHost):
        raise NotSupported("The model runs on another server, which decides about it. Change it there.")
    try:
        yield engine
    except EngineBusyError as error:
        raise Conflict(str(error)) from error
    except ModelLoadError as error:
        raise ModelUnusable(str(error)) from error
    except EngineError as error:
        raise EngineUnavailable(str(error)) from error
