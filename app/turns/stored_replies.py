"""Replies that this process does not write: finished ones, and those of another process on the same database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from app.domain.citations import citations_of
from app.domain.knowledge import Citation
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus
from app.errors import EngineUnavailable, NotFound
from app.store.chat.turn_records import TurnRecord, TurnRecords
from app.store.db.notifications import Channel, Notifications
from app.turns.buffer import changed_tool_uses
from app.turns.events import TurnCitations, TurnEnd, TurnEvent, TurnReasoning, TurnSnapshot, TurnText
from app.turns.sources import Sources

STOP_SECONDS = 10.0  # for another process to stop its reply

NO_ANSWER = (
    "The server process that writes this reply does not answer. The reply is stopped as soon as it does; should it "
    "have died, the reply is marked as interrupted in a moment."
)


class StoredTurns:
    """Reads replies from the database, where another process's checkpoints arrive.

    Args:
        sources: who may still see what replies cite.
        poll_seconds: interval between two reads of another process's reply when no notification comes.
    """

    def __init__(
        self, records: TurnRecords, notifications: Notifications, sources: Sources, poll_seconds: float
    ) -> None:
        self._records = records
        self._sources = sources
        self._notifications = notifications
        self._poll_seconds = poll_seconds

    async def events(
        self, user_id: str, turn_id: str, offset: int, reasoning_offset: int = 0
    ) -> AsyncGenerator[TurnEvent]:
        """Yields the reply from the offsets on, then its end.

        Raises:
            NotFound: the turn is missing or another user's.
        """
        told_end = False  # of the thinking
        tool_uses: tuple[ToolUse, ...] = ()
        citations: tuple[Citation, ...] = ()
        with self._notifications.watch(Channel.CHANGED, turn_id) as changed:
            while True:
                record = await self._records.get(user_id, turn_id)
                length = len(record.reasoning)
                ended = bool(record.text) or record.status is not MessageStatus.STREAMING
                if length > reasoning_offset or (ended and not told_end and length):
                    seconds = record.reasoning_seconds
                    yield TurnReasoning(record.reasoning[reasoning_offset:], length, seconds, ended)
                    reasoning_offset, told_end = max(reasoning_offset, length), ended
                if len(record.text) > offset:
                    yield TurnText(record.text[offset:], len(record.text))
                    offset = len(record.text)
                if (cited := citations_of(record.text, record.sources)) != citations:
                    citations = cited
                    shown = await self._sources.shown(user_id, record.sources)
                    yield TurnCitations(citations_of(record.text, shown))
                for event in changed_tool_uses(tool_uses, record.tool_uses):
                    yield event
                tool_uses = record.tool_uses
                if record.status is not MessageStatus.STREAMING:
                    yield end_of(record)
                    return
                await self._next_look(changed)

    async def snapshot(self, user_id: str, turn_id: str) -> TurnSnapshot:
        """Returns the current state of the turn.

        Raises:
            NotFound: it is missing or another user's.
        """
        record = await self._records.get(user_id, turn_id)
        return TurnSnapshot(
            turn_id=turn_id,
            conversation_id=record.conversation_id,
            message_id=record.message_id,
            text=record.text,
            offset=len(record.text),
            status=record.status,
            stats=record.stats,
            error=record.error,
            progress=None,
        )

    async def stop(self, user_id: str, turn_id: str) -> None:
        """Asks the process that writes the reply to stop it, and waits until it has.

        Raises:
            NotFound: the turn is missing or another user's.
            EngineUnavailable: the process has not answered for ``STOP_SECONDS``; the stop request stays.
        """
        with self._notifications.watch(Channel.CHANGED, turn_id) as changed:
            if (await self._records.get(user_id, turn_id)).status is not MessageStatus.STREAMING:
                return
            await self._records.request_stop(user_id, turn_id)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    while (await self._records.get(user_id, turn_id)).status is MessageStatus.STREAMING:
                        await self._next_look(changed)
            except TimeoutError:
                raise EngineUnavailable(NO_ANSWER) from None
            except NotFound:
                return  # deleted meanwhile: it has stopped

    async def _next_look(self, changed: asyncio.Event) -> None:
        """Waits for a notification that the reply changed, at most ``poll_seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_seconds):
                await changed.wait()
        changed.clear()


def end_of(record: TurnRecord) -> TurnEnd:
    """The end of a reply that has ended."""
    return TurnEnd(
        record.status,
        record.stats,
        record.error,
        record.message_id,
        offset=len(record.text),
        reasoning_offset=len(record.reasoning),
        reasoning_seconds=record.reasoning_seconds,
    )
