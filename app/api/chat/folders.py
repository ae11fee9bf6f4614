"""Chat API: folders of the caller's conversations."""

from __future__ import annotations

from fastapi import APIRouter, status
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.folders import MAX_FOLDER_NAME_CHARS, FolderView

router = APIRouter(prefix="/api/folders", tags=["conversations"])


class FolderName(RequestModel):
    """What a folder is called."""

    name: str = Field(max_length=10 * MAX_FOLDER_NAME_CHARS, description="At most 60 characters; unique.")


@router.get("")
async def list_folders(user_id: UserId, services: ServicesDep) -> list[FolderView]:
    """Lists the caller's folders by name, each with the number of conversations that it lists."""
    return await services.folders.all(user_id)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_folder(new: FolderName, user_id: UserId, services: ServicesDep) -> FolderView:
    """Creates an empty folder. ``PATCH /api/conversations/{conversation_id}`` moves conversations into it."""
    return await services.folders.create(user_id, new.name)


@router.patch("/{folder_id}", status_code=status.HTTP_204_NO_CONTENT)
async def rename_folder(folder_id: str, new: FolderName, user_id: UserId, services: ServicesDep) -> None:
    """Renames a folder."""
    await services.folders.rename(user_id, folder_id, new.name)


@router.delete("/{folder_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_folder(folder_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Deletes a folder. Its conversations are kept, in no folder."""
    await services.folders.delete(user_id, folder_id)
