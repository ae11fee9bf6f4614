"""Desk API: replies to review, such as those rated down and questions that got no answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.desk.usage import DaysDep
from app.api.request_model import RequestModel
from app.domain.review import Exchange, Flag, ReviewItem, ReviewState
from app.domain.views import Page

router = APIRouter(prefix="/api/desk/review", tags=["desk"])


class ReviewMark(RequestModel):
    """Whether a reply has been reviewed."""

    reviewed: bool = Field(description="Reviewed; new feedback reopens it.")


@router.get("")
async def list_to_review(
    days: DaysDep,
    user_id: UserId,
    services: ServicesDep,
    flag: Annotated[list[Flag] | None, Query(description="Only replies with one of these flags; default: all.")] = None,
    state: ReviewState = ReviewState.OPEN,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[ReviewItem]:
    """Lists the replies of these days to review, latest first; ``cursor`` is the last page's ``next_cursor``."""
    return await services.desk.reviews.list(
        user_id, days.whole, flags=flag or tuple(Flag), state=state, limit=limit, cursor=cursor
    )


@router.get("/{message_id}")
async def get_exchange(message_id: str, user_id: UserId, services: ServicesDep) -> Exchange:
    """Returns a reply to review with the messages around it, and its conversation's used drafts. Others answer 404.

    A reply or draft that rests on documents the caller may not read is shown as a sentence that says so.
    """
    exchange = await services.desk.reviews.exchange(user_id, message_id)
    return replace(exchange, drafts=await services.desk.drafts.beside(user_id, message_id))


@router.put("/{message_id}", status_code=204)
async def mark_reviewed(message_id: str, mark: ReviewMark, user_id: UserId, services: ServicesDep) -> None:
    """Marks or unmarks a reply as reviewed."""
    await services.desk.reviews.mark(user_id, message_id, reviewed=mark.reviewed)
