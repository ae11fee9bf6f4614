"""Starting a turn once, however often the request for it comes: a page asks again where an answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from app.concurrency.timeouts import wait_with_timeout
from app.domain.ids import id_of_request, new_id
from app.errors import Conflict
from app.store.chat.turn_records import TurnRecords
from app.turns.live import TurnRef

Begin = Callable[[str], Coroutine[Any, Any, TurnRef]]
"""Begins the turn with this id."""


class IdempotentStarts:
    """The turns that are being started. A turn's id is made of its request's, so a second one finds the first."""

    def __init__(self, records: TurnRecords) -> None:
        self._records = records
        self._in_flight: dict[str, asyncio.Task[TurnRef]] = {}

    async def start_once(
        self, user_id: str, request_id: str | None, begin: Begin, *, look_first: bool = True
    ) -> TurnRef:
        """Begin a turn, unless the same request has already; a caller that is cancelled leaves it to its end.

        Args:
            request_id: None is a request of its own.
            look_first: whether it has is asked before anything else; otherwise once there is a conflict.

        Raises:
            Exception: what ``begin`` raises.
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
        # Shielded: between the commit and the launch nothing may come, or a turn would run without a task.
        return await asyncio.shield(start)

    async def wait_for_pending(self, seconds: float) -> None:
        """Wait so long at most for those under way."""
        if self._in_flight:
            await wait_with_timeout(seconds, self._in_flight.values())

    async def _begin_unless_started(self, user_id: str, turn_id: str, begin: Begin, look_first: bool) -> TurnRef:
        if look_first and (ref := await self._find_started(user_id, turn_id)) is not None:
            return ref
        try:
            return await begin(turn_id)
        except Conflict:
            # It may be this very request, which has come before, or to another process at the same time.
            if (ref := await self._find_started(user_id, turn_id)) is not None:
                return ref
            raise

    async def _find_started(self, user_id: str, turn_id: str) -> TurnRef | None:
        """The turn that an earlier request with the same id has started."""
        record = await self._records.find(user_id, turn_id)
        if record is None:
            return None
        assert record.user_message_id is not None
        return TurnRef(
            turn_id=turn_id,
            conversation_id=record.conversation_id,
            user_message_id=record.user_message_id,
            message_id=record.message_id,
            omitted_messages=record.omitted_messages,
            context_length=record.context_length,
            has_system_prompt=record.has_system_prompt,
        )
