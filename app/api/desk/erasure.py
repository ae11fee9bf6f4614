"""Desk API: erasure of a user's data."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.deps import ServicesDep, UserId
from app.store.accounts.personal_data import DeletionPreview

router = APIRouter(prefix="/api/desk/people/{user_id}", tags=["desk"])


@router.get("/data")
async def preview_deletion(user_id: str, services: ServicesDep) -> DeletionPreview:
    """Counts the data that deleting a user would delete."""
    return await services.desk.erasure.preview(user_id)


@router.delete("")
async def delete_person(user_id: str, actor_id: UserId, services: ServicesDep) -> DeletionPreview:
    """Deletes a user with all their data, permanently; returns the counts. Backups keep the data until deleted."""
    return await services.desk.erasure.erase(actor_id, user_id)
