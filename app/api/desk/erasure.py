"""Deleting a person's data on request."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.deps import ServicesDep, UserId
from app.store.accounts.personal_data import DeletionPreview

router = APIRouter(prefix="/api/desk/people/{user_id}", tags=["desk"])


@router.get("/data")
async def preview_deletion(user_id: str, services: ServicesDep) -> DeletionPreview:
    """What there is of a person, in numbers: all that deleting them would delete."""
    return await services.desk.erasure.preview(user_id)


@router.delete("")
async def delete_person(user_id: str, actor_id: UserId, services: ServicesDep) -> DeletionPreview:
    """Delete a person with all that is theirs, for good; answers what that was. Backups keep it until they are gone."""
    return await services.desk.erasure.erase(actor_id, user_id)
