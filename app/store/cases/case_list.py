"""Reads the lists of cases for agents, and what of them has changed. Every method takes the user's id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Select,
    Tuple,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session

from app.domain.case_views import CaseView
from app.domain.cases import CaseStatus
from app.domain.text import clean_text, one_line
from app.domain.views import Page
from app.errors import InvalidInput
from app.store.cases.access import may_read
from app.store.cases.case_rows import case_views
from app.store.chat.search import Query
from app.store.chat.search_index import SearchIndex
from app.store.chat.search_queue import SearchQueue
from app.store.db.case_models import Inbox, SupportCase
from app.store.db.database import Database
from app.store.db.models import ConversationTag, UtcDateTime
from app.store.db.prepared_statements import Prepared
from app.store.db.rows import is_id
from app.store.db.statement_timeout import TooSlowError, time_limit
from app.store.desk.cursors import decode_cursor, encode_cursor

MAX_PAGE = 200
MAX_SEARCH_SECONDS = 5.0
MAX_CHANGED = 500
MAX_TAGS = 500


# Built once: each agent's list of cases asks these whenever a case changes.
_READABLE = Prepared(select(Inbox.id).where(may_read(bindparam("user_id"), Inbox.id)))
_CHANGED = Prepared(
    select(SupportCase.id, SupportCase.revision, SupportCase.updated_at)
    .where(
        may_read(bindparam("user_id"), SupportCase.inbox_id),
        SupportCase.updated_at >= bindparam("moment", type_=UtcDateTime()),
    )
    .order_by(SupportCase.updated_at.desc(), SupportCase.id.desc())
    .limit(MAX_CHANGED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCases:
    """Cases with activity since a moment."""

    revisions: Mapping[str, int]  #: of all of them, by id
    latest: datetime | None  #: the last activity
    new: Sequence[CaseView]  #: those at another revision than the caller knew, the earliest activity first


class CaseListView(StrEnum):
    """The lists of cases."""

    MINE = "mine"
    UNASSIGNED = "unassigned"
    BOT = "bot"
    SNOOZED = "snoozed"
    RESOLVED = "resolved"
    ALL = "all"


class CaseList:
    """The repository of cases, in the lists that agents read."""

    def __init__(self, database: Database, index: SearchIndex) -> None:
        self._database = database
        self._index = index
        self._searches = SearchQueue()

    async def page(
        self,
        user_id: str,
        view: CaseListView = CaseListView.ALL,
        *,
        inbox_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[CaseView]:
        """One page of a list, the latest activity first.

        Args:
            inbox_id: only cases of this inbox.
            tag: only cases with this tag.
            query: only cases with these words in the subject, a message or a note.
            cursor: the previous page's ``next_cursor``.

        Raises:
            InvalidInput: the limit or the cursor is not valid, or the search takes too long.
            TooManyRequests: too many of the user's searches are waiting.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit must be between 1 and {MAX_PAGE} (got {limit}).")
        after = decode_cursor(cursor) if cursor else None
        words = clean_text(query).strip() if query else ""
        conditions = [may_read(user_id, SupportCase.inbox_id), _of_view(view, user_id), *_filters(inbox_id, tag)]

        if after is not None:
            conditions.append(_key() < tuple_(literal(after[0], UtcDateTime()), literal(after[1])))

        def work(session: Session) -> Page[CaseView]:
            if not words:
                rows = case_views(session, _latest(select(SupportCase).where(*conditions), limit + 1))
            else:
                found = _found(session, user_id, words)
                if found is None:
                    return Page((), None)
                with time_limit(session, MAX_SEARCH_SECONDS):
                    rows = case_views(session, _latest_found(found, conditions, limit + 1))
            shown = rows[:limit]
            more = len(rows) > limit
            return Page(tuple(shown), encode_cursor(shown[-1].updated_at, shown[-1].id) if more else None)

        if not words:
            return await self._database.read(work)
        async with self._searches.slot(user_id):
            await self._index.catch_up()
            try:
                return await self._database.read(work)
            except TooSlowError:
                raise InvalidInput(
                    f"This search took longer than {MAX_SEARCH_SECONDS:g} seconds and was stopped. Search for fewer or "
                    "longer words."
                ) from None

    async def counts(self, user_id: str, *, inbox_id: str | None = None, tag: str | None = None) -> Mapping[str, int]:
        """The number of cases per list, and as ``waiting`` those whose contacts wait for the user or for any agent.

        Args:
            inbox_id: only cases of this inbox.
            tag: only cases with this tag.
        """

        def work(session: Session) -> Mapping[str, int]:
            mine = SupportCase.assignee_id == user_id
            rows = session.execute(
                select(
                    SupportCase.status,
                    case((SupportCase.assignee_id.is_(None), "none"), (mine, "mine"), else_="other").label("assigned"),
                    func.count(),
                    func.count(SupportCase.waiting_since),
                )
                .where(SupportCase.inbox_id.in_(readable_inboxes(session, user_id)), *_filters(inbox_id, tag))
                .group_by(SupportCase.status, "assigned")
            ).all()
            counts = dict.fromkeys([*CaseListView, "waiting"], 0)
            for status, assigned, number, waiting in rows:
                counts[CaseListView.ALL] += number
                if status != CaseStatus.OPEN:
                    counts[status] += number
                elif assigned != "other":
                    counts[CaseListView.MINE if assigned == "mine" else CaseListView.UNASSIGNED] += number
                    counts["waiting"] += waiting
            return {str(name): number for name, number in counts.items()}

        return await self._database.read(work)

    async def tags(self, user_id: str) -> Mapping[str, int]:
        """The tags of the cases that the user may read, with the number of their cases, at most :data:`MAX_TAGS`.

        The most used ones, in alphabetical order.
        """

        def work(session: Session) -> Mapping[str, int]:
            number = func.count()
            rows = session.execute(
                select(ConversationTag.tag, number)
                .join(SupportCase, SupportCase.id == ConversationTag.conversation_id)
                .where(SupportCase.inbox_id.in_(readable_inboxes(session, user_id)))
                .group_by(ConversationTag.tag)
                .order_by(number.desc(), ConversationTag.tag)
                .limit(MAX_TAGS)
            ).tuples()
            return dict(sorted(rows, key=lambda row: (row[0].casefold(), row[0])))

        return await self._database.read(work)

    async def changed_since(self, user_id: str, moment: datetime, known: Mapping[str, int]) -> ChangedCases:
        """The cases with activity at ``moment`` or later, at most the latest :data:`MAX_CHANGED`.

        Args:
            known: revisions by id; a case that is still at its revision is not read again.
        """

        def work(session: Session) -> ChangedCases:
            rows = _CHANGED.rows(session.connection(), {"user_id": user_id, "moment": moment})
            new = [id for id, revision, _ in rows if known.get(id) != revision]
            query = select(SupportCase).where(SupportCase.id.in_(new)).order_by(SupportCase.updated_at, SupportCase.id)
            return ChangedCases(
                revisions={id: revision for id, revision, _ in rows},
                latest=rows[0][2] if rows else None,
                new=case_views(session, query) if new else [],
            )

        return await self._database.read(work)

    async def readable_inboxes(self, user_id: str) -> list[str]:
        """Ids of the inboxes whose cases the user may read."""
        return await self._database.read(lambda session: readable_inboxes(session, user_id))


def readable_inboxes(session: Session, user_id: str) -> list[str]:
    """As :meth:`CaseList.readable_inboxes`, within a transaction."""
    return [id for (id,) in _READABLE.rows_in(session, {"user_id": user_id})]


def _key() -> Tuple:
    return tuple_(SupportCase.updated_at, SupportCase.id)


def _filters(inbox_id: str | None, tag: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if inbox_id is not None:
        conditions.append(SupportCase.inbox_id == (inbox_id if is_id(inbox_id) else ""))
    if tag is not None:
        of_case = ConversationTag.conversation_id == SupportCase.id
        conditions.append(exists().where(of_case, ConversationTag.tag == one_line(clean_text(tag))))
    return conditions


def _of_view(view: CaseListView, user_id: str) -> ColumnElement[bool]:
    if view is CaseListView.ALL:
        return literal(True)
    if view is CaseListView.MINE:
        return and_(SupportCase.status == CaseStatus.OPEN, SupportCase.assignee_id == user_id)
    if view is CaseListView.UNASSIGNED:
        return and_(SupportCase.status == CaseStatus.OPEN, SupportCase.assignee_id.is_(None))
    return SupportCase.status == view


def _latest(cases: Select[tuple[SupportCase]], limit: int) -> Select[tuple[SupportCase]]:
    return cases.order_by(SupportCase.updated_at.desc(), SupportCase.id.desc()).limit(limit)


def _latest_found(
    found: CompoundSelect[Any], conditions: Sequence[ColumnElement[bool]], limit: int
) -> Select[tuple[SupportCase]]:
    """The latest of the cases that are found.

    First all of them, without the limit, then the latest, each materialized. With the limit in one statement,
    PostgreSQL expects to be done after the first few cases of the list, and compares each case with each hit: for a
    word that only old cases have, all with all.
    """
    is_found = SupportCase.conversation_id.in_(found)
    all_found = _materialized(select(SupportCase.id, SupportCase.updated_at).where(*conditions, is_found))
    latest = select(all_found.c.id).order_by(all_found.c.updated_at.desc(), all_found.c.id.desc()).limit(limit)
    return _latest(select(SupportCase).where(SupportCase.id.in_(select(_materialized(latest).c.id))), limit)


def _materialized(rows: Select[Any]) -> CTE:
    """A part of a statement that PostgreSQL plans and runs by itself."""
    return rows.cte().prefix_with("MATERIALIZED", dialect="postgresql")


def _found(session: Session, user_id: str, words: str) -> CompoundSelect[Any] | None:
    """The conversations with these words, a subquery; None if the user may read no inbox.

    Words are stored per account, so each inbox is searched by itself.
    """
    owners = session.scalars(select(Inbox.user_id).where(may_read(user_id, Inbox.id))).all()
    hits = [select(Query(owner, words).hits(session).c.conversation_id) for owner in owners]
    return union_all(*hits) if hits else None
