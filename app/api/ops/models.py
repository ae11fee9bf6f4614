"""The models on this machine and the recommended ones, and the download of one."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, status
from pydantic import BaseModel, Field, StringConstraints

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.models.downloads import place_of
from app.models.local_model import LocalModel, Source
from app.models.performance import expected_tokens_per_second, fits
from app.models.recommended import RecommendedModel, recommended_models
from app.models.scan import Scan
from app.services.models import Download, DownloadState
from engine import EngineSettings, run_in_daemon_thread

router = APIRouter(prefix="/api/models", tags=["models"])


class FoundModelView(BaseModel):
    """A model on this machine."""

    id: str = Field(description="What to give to `POST /api/engine/swap`.")
    name: str
    source: Source = Field(description="Where it was found.")
    size_bytes: int = Field(description="Size on disk.")
    format: str | None = Field(description="Number format of the weights, such as BF16 or GGUF Q4_K_M.")
    context_length: int | None = Field(description="The model's own, in tokens.")
    fits: bool | None = Field(description="Whether the weights fit into memory; null if that is not known.")
    tokens_per_second: float | None = Field(
        description="Upper bound for one chat: memory bandwidth divided by the weights that one token reads."
    )
    problem: str | None = Field(description="Why it cannot be loaded, as a sentence.")
    loaded: bool


class RecommendedModelView(RecommendedModel):
    """A model on the recommended list."""

    id: str | None = Field(description="The found model that it is, once it is downloaded.")


class DownloadView(BaseModel):
    """The last download."""

    model: str
    title: str
    load: bool = Field(description="Whether the model is loaded afterwards.")
    state: DownloadState
    stage: str
    progress: float = Field(description="Progress of the stage, 0 to 1.")
    error: str | None = Field(description="Why it failed, as a sentence.")


class ModelsView(BaseModel):
    """What can be loaded."""

    found: list[FoundModelView]
    recommended: list[RecommendedModelView]
    notes: list[str] = Field(description="Folders that could not be searched, as sentences.")
    can_load_paths: bool = Field(description="Whether `POST /api/engine/swap` takes any folder; not with accounts.")


class WantedModel(RequestModel):
    """The model to download."""

    model: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)] = Field(
        description="A name on the recommended list, or a hub id such as Qwen/Qwen3-0.6B or org/repo:Q4_K_M."
    )
    load: bool = Field(True, description="Load it as soon as it is here. The old model serves until then.")


@router.get("")
async def list_models(services: ServicesDep) -> ModelsView:
    """Returns the models on this machine and the recommended ones."""
    models = services.models
    settings = models.host.settings
    scan = await models.find()
    found = await run_in_daemon_thread(partial(_view_all, scan, settings, models.loaded(scan)))
    return ModelsView(
        found=found,
        recommended=[
            RecommendedModelView(**one.model_dump(), id=_found_id(scan, place_of(one, models.folder)))
            for one in recommended_models()
        ],
        notes=scan.notes,
        can_load_paths=models.can_load_paths,
    )


@router.post("/download", status_code=status.HTTP_202_ACCEPTED)
async def start_download(wanted: WantedModel, services: ServicesDep, user_id: UserId) -> DownloadView:
    """Starts to download a model, and loads it afterwards. One at a time; the same one again joins the download.

    `GET /api/engine` reports the progress and the result.
    """
    return view_download(services.models.start_download(wanted.model, load=wanted.load, actor_id=user_id))


@router.delete("/download", status_code=status.HTTP_204_NO_CONTENT)
async def cancel_download(services: ServicesDep) -> None:
    """Cancels the download. What has arrived is kept for the next one."""
    services.models.cancel_download()


def view_download(download: Download) -> DownloadView:
    return DownloadView.model_validate(download, from_attributes=True)


def _view_all(scan: Scan, settings: EngineSettings, loaded: LocalModel | None) -> list[FoundModelView]:
    return [_view(model, settings, loaded) for model in scan.models]


def _view(model: LocalModel, settings: EngineSettings, loaded: LocalModel | None) -> FoundModelView:
    return FoundModelView(
        id=model.id,
        name=model.name,
        source=model.source,
        size_bytes=model.size_bytes,
        format=model.weights.format if model.weights else None,
        context_length=model.weights.context_length if model.weights else None,
        fits=fits(model, settings, loaded),
        tokens_per_second=expected_tokens_per_second(model, settings),
        problem=model.problem,
        loaded=model is loaded,
    )


def _found_id(scan: Scan, target: str) -> str | None:
    model = scan.find(target)
    return model.id if model is not None and model.problem is None else None
