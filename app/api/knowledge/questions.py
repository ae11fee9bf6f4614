"""Knowledge API: questions marked as answered by a passage, for ``deskmate kb eval``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.knowledge import MAX_QUERY_CHARS
from app.domain.marked_questions import MarkedQuestion, as_jsonl

router = APIRouter(prefix="/api/kb/questions", tags=["knowledge"])

_MAX_OFFSET = 2**30
CollectionId = Annotated[str | None, Query(max_length=100)]


class QuestionMark(RequestModel):
    """A question and the passage that answers it."""

    question: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)
    document_id: str = Field(max_length=100)
    version: int = Field(ge=1, le=_MAX_OFFSET)
    start: int = Field(ge=0, le=_MAX_OFFSET)
    end: int = Field(ge=0, le=_MAX_OFFSET)


@dataclass(frozen=True, slots=True)
class QuestionList:
    questions: list[MarkedQuestion]


@router.get("")
async def list_questions(user_id: UserId, services: ServicesDep, collection: CollectionId = None) -> QuestionList:
    """Lists the marked questions of collections that the caller may edit, oldest first."""
    return QuestionList(await services.knowledge.questions.all(user_id, collection))


@router.get("/file", response_class=PlainTextResponse)
async def download_questions(
    user_id: UserId, services: ServicesDep, collection: CollectionId = None
) -> PlainTextResponse:
    """Returns the marked questions as the JSON Lines that `deskmate kb eval` reads."""
    content = as_jsonl(await services.knowledge.questions.all(user_id, collection))
    headers = {"Content-Disposition": 'attachment; filename="questions.jsonl"'}
    return PlainTextResponse(content, media_type="application/jsonl", headers=headers)


@router.post("", status_code=201)
async def mark_question(mark: QuestionMark, user_id: UserId, services: ServicesDep) -> MarkedQuestion:
    """Marks that a passage answers a question."""
    return await services.knowledge.questions.mark(
        user_id, mark.question, mark.document_id, version=mark.version, start=mark.start, end=mark.end
    )


@router.delete("/{question_id}", status_code=204)
async def remove_question(question_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Removes a marked question."""
    await services.knowledge.questions.remove(user_id, question_id)
