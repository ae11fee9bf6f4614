"""Desk API: the current user."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from app.api.deps import Caller, ServicesDep
from app.domain.roles import UserRole

router = APIRouter(prefix="/api/desk", tags=["desk"])


@dataclass(frozen=True, slots=True)
class Viewer:
    """The current user of the desk."""

    user_id: str
    name: str | None  #: None without accounts
    role: UserRole


@router.get("")
async def get_viewer(caller: Caller, services: ServicesDep) -> Viewer:
    """Returns the current user and their role."""
    person = await services.accounts.records.get(caller.user_id) if services.accounts is not None else None
    return Viewer(caller.user_id, person.display_name if person else None, caller.role)
