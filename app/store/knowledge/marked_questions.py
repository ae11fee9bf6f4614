"""Questions marked as answered by a passage, for those who may edit its collection."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.knowledge import MAX_QUERY_CHARS
from app.domain.marked_questions import MarkedQuestion, answer_phrase, sentences_of
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput, LimitReached, NotAllowed, NotFound
from app.store.db.database import Database
from app.store.db.knowledge_models import Collection, DocumentVersion, Question
from app.store.db.rows import change_rows, is_id
from app.store.knowledge.access import can_edit, may_edit, used_document
from app.store.knowledge.entries import stems
from app.store.knowledge.spans import text_between

MAX_QUESTIONS = 5000
"""Of a collection."""


class MarkedQuestions:
    """The repository of marked questions. Every method takes the user, who must have the right to edit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def mark(
        self, user_id: str, question: str, document_id: str, *, version: int, start: int, end: int
    ) -> MarkedQuestion:
        """Marks that a passage answers a question. Its sentence that is most like the question becomes the answer.

        Marking the same twice changes nothing.

        Raises:
            NotFound: the document or the version is missing, or the user may not see it.
            NotAllowed: the user may not edit its collection.
            InvalidInput: the question is empty or too long, or the passage has no words.
            LimitReached: the collection has as many questions as it may.
        """
        question = one_line(clean_text(question))
        if not question or len(question) > MAX_QUERY_CHARS:
            raise InvalidInput(f"A question has 1 to {MAX_QUERY_CHARS} characters.")

        def work(session: Session) -> MarkedQuestion:
            document = used_document(session, user_id, document_id)
            if not can_edit(session, user_id, document.collection_id):
                raise NotAllowed("You may read this collection, but not mark questions. Ask an admin for the right.")
            passage = session.scalar(
                select(text_between(start, max(end, start))).where(
                    DocumentVersion.document_id == document_id,
                    DocumentVersion.version == version,
                    DocumentVersion.text.is_not(None),
                )
            )
            if passage is None:
                raise NotFound("This document has no such version.")
            answer = answer_phrase(passage, stems(question), map(stems, sentences_of(passage)))
            if not answer:
                raise InvalidInput("This passage has no words that could answer a question.")
            here = Question.collection_id == document.collection_id
            same = here & (Question.question == question) & (Question.answer == answer)
            row = session.scalars(select(Question).where(same).limit(1)).one_or_none()
            if row is None:
                if (session.scalar(select(func.count()).select_from(Question).where(here)) or 0) >= MAX_QUESTIONS:
                    raise LimitReached(f"This collection has {MAX_QUESTIONS:,} questions, and may have no more.")
                row = Question(id=new_id(), collection_id=document.collection_id, author_id=user_id)
                row.question, row.answer, row.document = question, answer, document.name
                row.created_at = datetime.now(UTC)
                session.add(row)
                session.flush()
            return _view(row)

        return await self._database.write(work)

    async def all(self, user_id: str, collection_id: str | None = None) -> list[MarkedQuestion]:
        """The questions of a collection, or of all that the user may edit, oldest first."""

        def work(session: Session) -> list[MarkedQuestion]:
            query = select(Question).join(Collection, Collection.id == Question.collection_id).where(may_edit(user_id))
            if collection_id is not None:
                query = query.where(Question.collection_id == collection_id)
            return [_view(row) for row in session.scalars(query.order_by(Question.id))]

        if collection_id is not None and not is_id(collection_id):
            return []
        return await self._database.read(work)

    async def remove(self, user_id: str, question_id: str) -> None:
        """Removes a question.

        Raises:
            NotFound: it is missing, or the user may not edit its collection.
        """

        def work(session: Session) -> None:
            editable = select(Collection.id).where(may_edit(user_id))
            gone = delete(Question).where(Question.id == question_id, Question.collection_id.in_(editable))
            if not is_id(question_id) or not change_rows(session, gone):
                raise NotFound("There is no such question. It may have been removed, or you may not edit it.")

        await self._database.write(work)


def _view(row: Question) -> MarkedQuestion:
    return MarkedQuestion(
        id=row.id,
        collection=row.collection_id,
        question=row.question,
        answer=row.answer,
        document=row.document,
        created_at=row.created_at,
    )
