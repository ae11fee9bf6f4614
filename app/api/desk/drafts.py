"""Desk API: drafts of replies that were used, beside what the model wrote."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.deps import ServicesDep, UserId
from app.api.desk.usage import DaysDep
from app.domain.reply_drafts import UsedDraft
from app.domain.views import Page

router = APIRouter(prefix="/api/desk/drafts", tags=["desk"])


@router.get("")
async def list_used_drafts(
    days: DaysDep,
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=50)] = 25,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[UsedDraft]:
    """Lists the drafts that were used in these days, with what their users changed, latest use first.

    One that rests on documents the caller may not read has no text, and says so.
    """
    return await services.desk.drafts.list(user_id, days.whole, limit=limit, cursor=cursor)
