"""Desk API: the audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from app.api.deps import ServicesDep
from app.api.desk.csv_files import csv_response
from app.api.desk.usage import DaysDep
from app.domain.audit import AuditAction
from app.domain.views import Page
from app.store.desk.audit_log import AuditEntry

router = APIRouter(prefix="/api/desk/audit", tags=["desk"])

ActorQuery = Annotated[str | None, Query(max_length=200, description="Part of the actor's name.")]


@dataclass(frozen=True, slots=True)
class Actions:
    actions: tuple[AuditAction, ...]


@router.get("")
async def list_entries(
    days: DaysDep,
    services: ServicesDep,
    action: AuditAction | None = None,
    actor: ActorQuery = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=36)] = None,
) -> Page[AuditEntry]:
    """Lists the audit entries of these days, latest first; ``cursor`` is the last page's ``next_cursor``."""
    return await services.desk.audit_log.list(days.whole, action=action, actor=actor, limit=limit, cursor=cursor)


@router.get("/actions")
async def list_actions() -> Actions:
    """Lists audit action types."""
    return Actions(tuple(AuditAction))


@router.get("/csv", response_class=StreamingResponse)
async def get_audit_csv(
    days: DaysDep, services: ServicesDep, action: AuditAction | None = None, actor: ActorQuery = None
) -> StreamingResponse:
    """Exports all audit entries of these days as CSV."""

    async def rows() -> AsyncIterator[Iterable[object]]:
        async for entry in services.desk.audit_log.all(days.whole, action=action, actor=actor):
            details = json.dumps(entry.details, ensure_ascii=False) if entry.details else ""
            names = json.dumps(entry.names, ensure_ascii=False) if entry.names else ""
            yield entry.at.isoformat(), entry.actor or "", entry.action, entry.target or "", details, names

    header = ("at", "actor", "action", "target", "details", "names")
    return csv_response(f"audit {days.first} to {days.last}.csv", header, rows())
