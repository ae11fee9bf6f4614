"""Desk API: the scheduled backups, for admins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter

from app.api.deps import ServicesDep

router = APIRouter(prefix="/api/desk/backups", tags=["desk"])


@dataclass(frozen=True, slots=True)
class BackupsView:
    """The scheduled backups: when the last good one was, and what is wrong with them."""

    scheduled: bool
    running: bool
    folder: str
    last_good_at: datetime | None
    last_good_file: str | None
    last_good_bytes: int | None
    restored: bool  #: the last good one was restored as a check; false: read only
    failed_at: datetime | None
    error: str | None  #: of the last failure
    next_at: datetime | None
    problem: str | None  #: the last backup failed, or is too old


@router.get("")
async def get_backups(services: ServicesDep) -> BackupsView:
    """Returns when the last good scheduled backup was, and whether something is wrong with them."""
    status = await services.backups.status()
    state = status.state
    return BackupsView(
        scheduled=status.is_scheduled,
        running=state.is_running,
        folder=status.folder,
        last_good_at=state.good_at,
        last_good_file=state.good_file,
        last_good_bytes=state.good_bytes,
        restored=state.good_check == "restored",
        failed_at=state.failed_at,
        error=state.error,
        next_at=status.next_at,
        problem=status.problem,
    )
