"""Chat API: presets of the caller's own, and what their new chats begin with."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, status
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.chat_settings import ChatSettings
from app.domain.presets import MAX_PRESET_NAME_CHARS, OwnPreset

router = APIRouter(prefix="/api", tags=["presets"])


class NewPreset(RequestModel):
    """A name, and settings of which the preset takes the sampling parameters."""

    name: str = Field(max_length=10 * MAX_PRESET_NAME_CHARS, description="One that is in use is replaced.")
    settings: ChatSettings


class NewChats(RequestModel):
    """What new chats begin with."""

    settings: ChatSettings | None = Field(description="Null: the model's defaults.")


@dataclass(frozen=True, slots=True)
class PresetList:
    presets: list[OwnPreset]
    new_chats: ChatSettings | None  #: what new chats begin with; null: the model's defaults


@router.get("/presets")
async def list_presets(user_id: UserId, services: ServicesDep) -> PresetList:
    """Lists the caller's presets by name, and says what their new chats begin with."""
    presets = services.presets
    return PresetList(await presets.all(user_id), await presets.for_new_chats(user_id))


@router.post("/presets")
async def save_preset(new: NewPreset, user_id: UserId, services: ServicesDep) -> OwnPreset:
    """Saves the sampling parameters of these settings under a name."""
    return await services.presets.save(user_id, new.name, new.settings)


@router.delete("/presets/{preset_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_preset(preset_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Deletes a preset. Chats that were set by it keep their settings."""
    await services.presets.delete(user_id, preset_id)


@router.put("/presets/new-chats", status_code=status.HTTP_204_NO_CONTENT)
async def use_for_new_chats(new: NewChats, user_id: UserId, services: ServicesDep) -> None:
    """Makes the caller's new chats begin with these settings."""
    await services.presets.use_for_new_chats(user_id, new.settings)
