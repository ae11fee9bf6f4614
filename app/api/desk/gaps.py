"""Desk API: gaps of the knowledge base, which are questions that the chosen sources left unanswered."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.gaps import GapList, GapState
from app.store.knowledge.gaps import MAX_QUESTIONS

router = APIRouter(prefix="/api/desk/gaps", tags=["desk"])


class GapMark(RequestModel):
    """Questions to take off the list, or to put back."""

    message_ids: list[Annotated[str, Field(max_length=100)]] = Field(
        min_length=1, max_length=MAX_QUESTIONS, description="The replies' ids."
    )
    done: bool = Field(description="Off the list; the group returns with the next question like them.")


@router.get("")
async def list_gaps(user_id: UserId, services: ServicesDep, state: GapState = GapState.OPEN) -> GapList:
    """Lists groups of questions that the chosen sources left unanswered, most frequent first.

    Only questions that were asked of collections which the caller may use.
    """
    return await services.knowledge.gaps.list(user_id, state)


@router.put("", status_code=204)
async def mark_gaps(mark: GapMark, user_id: UserId, services: ServicesDep) -> None:
    """Takes questions off the list, or puts them back."""
    await services.knowledge.gaps.mark(user_id, mark.message_ids, done=mark.done)
