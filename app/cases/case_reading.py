"""Cases of inboxes as the model is shown them: with notes for a summary, and without any for an article."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.case_views import CaseMessage as StoredMessage
from app.domain.case_views import CaseView, OpenCase
from app.domain.cases import AuthorKind, CaseStatus
from app.domain.citations import without_citations
from app.domain.text import title_from
from app.domain.views import MessageStatus, Role
from app.errors import Conflict, InvalidInput
from app.store.cases.case_details import CaseDetails
from app.turns.cases import Case, CaseMessage, read_latest

MERGED = "This case was merged into another one. Open that one instead."
NOT_RESOLVED = "This case isn't resolved, so its solution may still change. Resolve it first, then propose an article."


async def case_for_summary(cases: CaseDetails, user_id: str, case_id: str) -> Case:
    """A case with its notes, which every reader of the case may read.

    Raises:
        NotFound: the case is missing, or the user may not read it.
        InvalidInput: it has no message with text.
    """
    opened = await cases.get(user_id, case_id)
    return await _read(cases, user_id, opened, with_notes=True)


async def case_for_article(cases: CaseDetails, user_id: str, case_id: str) -> Case:
    """A resolved case without its notes, which the editors of the article may have no right to read.

    Raises:
        NotFound: the case is missing, or the user may not read it.
        Conflict: it is not resolved, or is a part of another case.
        InvalidInput: it has no message with text.
    """
    opened = await cases.get(user_id, case_id)
    _require_resolved(opened.case)
    return await _read(cases, user_id, opened, with_notes=False)


def _require_resolved(case: CaseView) -> None:
    if case.merged_into is not None:
        raise Conflict(MERGED)
    if case.status is not CaseStatus.RESOLVED:
        raise Conflict(NOT_RESOLVED)


async def _read(cases: CaseDetails, user_id: str, opened: OpenCase, *, with_notes: bool) -> Case:
    case = opened.case
    found, has_earlier = await read_latest(opened, lambda before: cases.get(user_id, case.id, before=before))
    messages = _numbered([one for one in found if _is_told(one) and (with_notes or not one.internal)])
    if not messages:
        raise InvalidInput("This case has no messages with text yet.")
    return Case(title=case.subject or title_from(messages[0].text), messages=messages, has_earlier=has_earlier)


def _is_told(message: StoredMessage) -> bool:
    """Whether a message is a part of the talk. The system's sentences, such as that people will answer, are not."""
    is_whole = message.status != MessageStatus.STREAMING
    return is_whole and message.author is not AuthorKind.SYSTEM and bool(message.text.strip())


def _numbered(messages: Sequence[StoredMessage]) -> tuple[CaseMessage, ...]:
    return tuple(
        CaseMessage(
            number=number,
            message_id=one.id,
            role=Role.USER if one.author is AuthorKind.CONTACT else Role.ASSISTANT,
            text=without_citations(one.text, one.citations),
            internal=one.internal,
        )
        for number, one in enumerate(messages, start=1)
    )
