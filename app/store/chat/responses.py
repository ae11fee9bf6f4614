"""The responses that ``/v1/responses`` stores. Every query takes the user's id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.responses import id_of_response, response_id_of
from app.domain.storage import MAX_CONVERSATION_BYTES, mebibytes
from app.errors import LimitReached, NotFound
from app.store.db.database import Database
from app.store.db.response_models import StoredResponse
from app.store.db.rows import change_rows

_ROWS = 500  #: ids per statement: SQLite limits their number
_BATCH = 50  #: rows per transaction: other writers wait for one batch at most
_EXPORTED_AT_ONCE = 5  #: each may have some megabytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A response and what it replied to.

    Args:
        input: its own input items.
        body: the response as it was sent.
    """

    input: Sequence[dict[str, Any]]
    body: dict[str, Any]


class ResponseRecords:
    """The repository of stored responses. Ids are those of the API, such as ``resp_01a2…``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, user_id: str, exchange: Exchange) -> None:
        """Stores a response that has ended.

        Raises:
            NotFound: the user was deleted meanwhile.
        """
        body = exchange.body
        id = _row_id(body["id"])
        previous = body["previous_response_id"]

        def work(session: Session) -> None:
            previous_id = None if previous is None else _row_id(previous)
            thread_id = None
            if previous_id is not None:  # None if it was deleted while the reply was generated
                owned = (StoredResponse.id == previous_id, StoredResponse.user_id == user_id)
                thread_id = session.scalar(select(StoredResponse.thread_id).where(*owned))
            session.add(
                StoredResponse(
                    id=id,
                    user_id=user_id,
                    thread_id=thread_id or id,
                    previous_id=previous_id,
                    created_at=datetime.now(UTC),
                    input=list(exchange.input),
                    body=body,
                )
            )
            session.flush()

        try:
            await self._database.write(work)
        except IntegrityError as error:
            raise NotFound("The response was not stored: its user has been deleted.") from error

    async def get(self, user_id: str, response_id: str) -> Exchange:
        """Returns a response with its input.

        Raises:
            NotFound: it is missing or another user's.
        """
        return await self._database.read(lambda session: _exchange(_owned(session, user_id, response_id)))

    async def delete(self, user_id: str, response_id: str) -> None:
        """Deletes a response. Those that continue it stay, but cannot be continued any more.

        Raises:
            NotFound: it is missing or another user's.
        """
        await self._database.write(lambda session: session.delete(_owned(session, user_id, response_id)))

    async def delete_all(self, user_id: str) -> int:
        """Deletes all of a user's responses, in batches; returns how many there were."""
        total = 0
        while deleted := await self._database.write(lambda session: delete_some_responses(session, user_id)):
            total += deleted
        return total

    async def chain(self, user_id: str, response_id: str) -> list[Exchange]:
        """Returns a response with all that it continues, oldest first.

        Raises:
            NotFound: one of them is missing or another user's.
            LimitReached: they are too large to be read at once.
        """

        def work(session: Session) -> list[Exchange]:
            last = _owned_id(session, user_id, response_id)
            ids = _chain_ids(session, user_id, last)
            found = {row.id: row for part in _parts(ids) for row in session.scalars(_all(user_id, part))}
            return [_exchange(found[id]) for id in reversed(ids)]

        return await self._database.read(work)

    async def with_ids(self, user_id: str, response_ids: Iterable[str]) -> dict[str, Exchange]:
        """Returns those of the responses that the user has, by their id.

        Raises:
            LimitReached: they are too large to be read at once.
        """
        ids = [id for one in response_ids if (id := id_of_response(one)) is not None]

        def work(session: Session) -> dict[str, Exchange]:
            owned = StoredResponse.user_id == user_id
            sizes = (select(StoredResponse.stored_bytes).where(owned, StoredResponse.id.in_(p)) for p in _parts(ids))
            if sum(size for query in sizes for size in session.scalars(query)) > MAX_CONVERSATION_BYTES:
                raise LimitReached(
                    f"The responses that the input refers to exceed {mebibytes(MAX_CONVERSATION_BYTES)} together. "
                    "Send the items themselves instead."
                )
            rows = [row for part in _parts(ids) for row in session.scalars(_all(user_id, part))]
            return {response_id_of(row.id): _exchange(row) for row in rows}

        return await self._database.read(work)

    async def read_all(self, user_id: str) -> AsyncIterator[Exchange]:
        """Yields every response of a user, oldest first, a few in memory at a time."""
        after = ""
        while True:

            def work(session: Session, after: str = after) -> list[StoredResponse]:
                some = select(StoredResponse).where(StoredResponse.user_id == user_id, StoredResponse.id > after)
                return list(session.scalars(some.order_by(StoredResponse.id).limit(_EXPORTED_AT_ONCE)))

            rows = await self._database.read(work)
            if not rows:
                return
            after = rows[-1].id
            for row in rows:
                yield _exchange(row)


def _row_id(response_id: str) -> str:
    id = id_of_response(response_id)
    if id is None:
        raise _missing(response_id)
    return id


def _missing(response_id: str) -> NotFound:
    return NotFound(f"There is no response '{response_id[:64]}'. It may have been deleted, or was never stored.")


def _owned(session: Session, user_id: str, response_id: str) -> StoredResponse:
    id = _row_id(response_id)
    row = session.scalars(
        select(StoredResponse).where(StoredResponse.id == id, StoredResponse.user_id == user_id)
    ).one_or_none()
    if row is None:
        raise _missing(response_id)
    return row


def _owned_id(session: Session, user_id: str, response_id: str) -> str:
    id = _row_id(response_id)
    owned = (StoredResponse.id == id, StoredResponse.user_id == user_id)
    if session.scalar(select(StoredResponse.id).where(*owned)) is None:
        raise _missing(response_id)
    return id


def _chain_ids(session: Session, user_id: str, last: str) -> list[str]:
    """Ids of a response and of those that it continues, the latest first."""
    thread = select(StoredResponse.thread_id).where(StoredResponse.id == last).scalar_subquery()
    known = {
        id: (previous_id, size)
        for id, previous_id, size in session.execute(
            select(StoredResponse.id, StoredResponse.previous_id, StoredResponse.stored_bytes).where(
                StoredResponse.user_id == user_id, StoredResponse.thread_id == thread
            )
        )
    }
    ids: list[str] = []
    total = 0
    id: str | None = last
    while id is not None:
        if id not in known:
            raise NotFound(
                f"The response '{response_id_of(ids[-1])}' continues one that has been deleted, so it cannot be "
                "continued. Send the conversation's items as input instead."
            )
        ids.append(id)
        id, size = known[id]
        total += size
        if total > MAX_CONVERSATION_BYTES:
            raise LimitReached(
                f"This conversation has more than {mebibytes(MAX_CONVERSATION_BYTES)}, the most for one. "
                "Send a summary of it as input instead of previous_response_id."
            )
    return ids


def _all(user_id: str, ids: Sequence[str]) -> Any:
    return select(StoredResponse).where(StoredResponse.user_id == user_id, StoredResponse.id.in_(ids))


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + _ROWS] for start in range(0, len(ids), _ROWS))


def _exchange(row: StoredResponse) -> Exchange:
    return Exchange(row.input, row.body)


def delete_some_responses(session: Session, user_id: str) -> int:
    """Deletes one batch of a user's responses; returns how many there were."""
    some = select(StoredResponse.id).where(StoredResponse.user_id == user_id).limit(_BATCH)
    return change_rows(session, delete(StoredResponse).where(StoredResponse.id.in_(session.scalars(some).all())))
