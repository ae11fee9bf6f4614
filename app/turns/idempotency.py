"""Starts a turn once, however often its request arrives: a page repeats a request whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from app.concurrency.timeouts import wait_with_timeout
from app.domain.ids import id_of_request, new_id
from app.errors import AppError, StorageUnavailable
from app.store.chat.turn_records import TurnRecord, TurnRecords
from app.turns.live import TurnRef

Begin = Callable[[str], Coroutine[Any, Any, TurnRef]]
"""Starts the turn with this id."""


class IdempotentStarts:
    """The turns being started. A turn's id derives from its request's id, so a repeat finds the first turn."""

    def __init__(self, records: TurnRecords) -> None:
        self._records = records
        self._in_flight: dict[str, asyncio.Task[TurnRef]] = {}

    async def start_once(
        self, user_id: str, request_id: str | None, begin: Begin, *, look_first: bool = True
    ) -> TurnRef:
        """Starts a turn, unless the same request already has. A cancelled caller does not cancel the start.

        Args:
            request_id: None makes the request unique.
            look_first: look for an earlier start before anything else; otherwise only if it cannot be started.

        Raises:
            Exception: whatever ``begin`` raises.
        """
        turn_id = new_id() if request_id is None else id_of_request(user_id, request_id)
        start = self._in_flight.get(turn_id)
        if start is None:
            own = (
                begin(turn_id)
                if request_id is None
                else self._begin_unless_started(user_id, turn_id, begin, look_first)
            )
            start = asyncio.create_task(own)
            self._in_flight[turn_id] = start
            start.add_done_callback(lambda _: self._in_flight.pop(turn_id))
        # Shielded: a cancellation between commit and launch would leave a running turn without a task.
        return await asyncio.shield(start)

    async def wait_for_pending(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the starts in flight."""
        if self._in_flight:
            await wait_with_timeout(seconds, self._in_flight.values())

    async def _begin_unless_started(self, user_id: str, turn_id: str, begin: Begin, look_first: bool) -> TurnRef:
        if look_first and (ref := await self._find_started(user_id, turn_id)) is not None:
            return ref
        try:
            return await begin(turn_id)
        except StorageUnavailable:
            raise
        except AppError:
            # What is in its way may be this same request, which arrived before or at another process at the same time.
            if (ref := await self._find_started(user_id, turn_id)) is not None:
                return ref
            raise

    async def _find_started(self, user_id: str, turn_id: str) -> TurnRef | None:
        """The turn started by an earlier request with the same id, or None."""
        record = await self._records.find(user_id, turn_id)
        return None if record is None else ref_of(record)


def ref_of(record: TurnRecord) -> TurnRef:
    """The ids of a turn as stored."""
    assert record.user_message_id is not None
    return TurnRef(
        turn_id=record.turn_id,
        conversation_id=record.conversation_id,
        user_message_id=record.user_message_id,
        message_id=record.message_id,
        omitted_messages=record.omitted_messages,
        context_length=record.context_length,
        model=record.model,
        has_system_prompt=record.has_system_prompt,
    )
