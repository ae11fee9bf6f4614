"""The engine's API: status, sleep and wake, changing the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field, StringConstraints

from app.api.deps import ServicesDep, UserId
from app.api.ops.models import DownloadView, view_download
from app.api.request_model import RequestModel
from app.services.container import Services
from app.services.hosted_model import hosted_model
from engine import EngineState, EngineStats, ModelHost, ModelInfo

router = APIRouter(prefix="/api/engine", tags=["engine"])

Seconds = Annotated[float, Field(ge=0, le=3600, description="Time for replies in flight to finish before they end.")]


class EngineView(BaseModel):
    """The engine's current state."""

    state: EngineState
    reason: str | None = Field(description="Why it accepts no messages, as a sentence.")
    stage: str | None = Field(description="While a model is loading: the current stage.")
    progress: float | None = Field(description="Progress of the stage, 0 to 1.")
    source: str = Field(description="The model's folder or hub id, or the servers that run it.")
    remote: bool = Field(description="The model runs on another server, and cannot be put to sleep or changed here.")
    model: ModelInfo = Field(description="The loaded model, or the last one while the engine sleeps.")
    stats: EngineStats = Field(description="Counters since the start, and current resource use.")
    download: DownloadView | None = Field(None, description="The last download of a model, which may be in progress.")


class UnloadOptions(RequestModel):
    """How to unload the current model."""

    timeout: Seconds = 30.0


class NewModel(UnloadOptions):
    """The model to load instead."""

    model: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] = Field(
        description="The id of a found model (`GET /api/models`), or a hub id such as Qwen/Qwen3-0.6B. Without "
        "accounts also any folder or GGUF file."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    max_model_len: int | None = Field(None, ge=16, description="Context window in tokens; default: the model's own.")


@router.get("")
async def get_engine(services: ServicesDep) -> EngineView:
    """Returns the engine's state, its model, and its resource use."""
    return view_engine(services)


@router.post("/sleep")
async def sleep(options: UnloadOptions, services: ServicesDep) -> EngineView:
    """Unloads the model and frees its memory. Messages are refused until the engine is woken up."""
    with hosted_model(services.engine) as host:
        await host.sleep(options.timeout)
    return view_engine(services)


@router.post("/wake")
async def wake(services: ServicesDep) -> EngineView:
    """Loads the model again, after sleep or a failure. Responds once it is loaded."""
    with hosted_model(services.engine) as host:
        await host.wake()
    return view_engine(services)


@router.post("/swap")
async def swap(new: NewModel, services: ServicesDep, user_id: UserId) -> EngineView:
    """Loads another model and serves it. Responds once it is loaded; if that fails, the old model stays."""
    await load_model(services, new, user_id)
    return view_engine(services)


async def load_model(services: Services, new: NewModel, user_id: str) -> None:
    """Loads another model for a user, who must be an admin."""
    with hosted_model(services.engine):
        await services.models.load(
            new.model,
            revision=new.revision,
            max_model_len=new.max_model_len,
            timeout=new.timeout,
            actor_id=user_id,
        )


def view_engine(services: Services) -> EngineView:
    engine, download = services.engine, services.models.download
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
        download=view_download(download) if download is not None else None,
    )
