"""The API of LoRA adapters: loading and unloading them while the model serves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.deps import ServicesDep, UserId
from app.api.ops.engine import EngineView, view_engine
from app.api.request_model import RequestModel

router = APIRouter(prefix="/api/engine/adapters", tags=["engine"])


class NewAdapter(RequestModel):
    """The adapter to load."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)] = Field(
        description="The name by which requests to /v1 choose it."
    )
    folder: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] = Field(
        description="A folder in PEFT's format, in the models folder (ENGINE_MODELS_DIR). Without accounts also any "
        "other."
    )


@router.post("")
async def load_adapter(new: NewAdapter, services: ServicesDep, user_id: UserId) -> EngineView:
    """Loads a LoRA adapter beside the others. Responds once it is loaded; replies in flight go on meanwhile."""
    await services.adapters.load(new.name, new.folder, actor_id=user_id)
    return view_engine(services)


@router.delete("/{name:path}")
async def unload_adapter(name: str, services: ServicesDep, user_id: UserId) -> EngineView:
    """Unloads a LoRA adapter. Replies that it writes go on."""
    await services.adapters.unload(name, actor_id=user_id)
    return view_engine(services)
