"""Checkpoints of a reply in flight: its text so far and its lease are written on a clock, and before a tool runs."""

from __future__ import annotations

import asyncio
import logging
import time

from app.domain.tool_use import ToolUse
from app.errors import StorageUnavailable
from app.store.chat.reply_writes import LeaseStatus
from app.store.chat.turn_records import TurnRecords
from app.turns.buffer import ReplyBuffer
from app.turns.events import TurnNotice

_log = logging.getLogger(__name__)

NOT_SAVED_YET = "This reply could not be saved. Trying again; the reply continues meanwhile."
SAVED_AGAIN = "Saving works again."


class Checkpoints:
    """Writes what is new in a reply's buffer, and tells the buffer's readers when that fails and works again.

    Args:
        buffer: of a reply that is in the database as the buffer holds it now.
        checkpoint_seconds: interval between writes of new text.
        lease_seconds: how long after a write this process owns the turn; renewed every third of that.
    """

    def __init__(
        self,
        records: TurnRecords,
        user_id: str,
        turn_id: str,
        buffer: ReplyBuffer,
        *,
        checkpoint_seconds: float,
        lease_seconds: float,
    ) -> None:
        self.is_failing = False  #: the last write failed
        self.renewal_seconds = lease_seconds / 3
        self.saved_chars = len(buffer)
        self.saved_reasoning_chars = buffer.reasoning_chars
        self._saved_tool_uses: tuple[ToolUse, ...] = buffer.tool_uses
        self._records = records
        self._user_id = user_id
        self._turn_id = turn_id
        self._buffer = buffer
        self._tick_seconds = min(checkpoint_seconds, self.renewal_seconds)
        self._renewed_at = time.monotonic()  # when the lease was renewed last
        self._writing = asyncio.Lock()  # so that no write overtakes a later one

    def seconds_to_tick(self) -> float:
        """The time until the next checkpoint. All replies share one clock, so that one transaction writes them all."""
        return self._tick_seconds - time.monotonic() % self._tick_seconds

    async def write(self, *, force: bool = False) -> LeaseStatus | None:
        """Writes what is new and renews the lease. None if nothing was due, or it failed, see :attr:`is_failing`.

        Args:
            force: write even if nothing is due.
        """
        async with self._writing:
            return await self._write(force=force)

    async def _write(self, *, force: bool) -> LeaseStatus | None:
        buffer, now = self._buffer, time.monotonic()
        thought = buffer.reasoning_chars != self.saved_reasoning_chars
        tool_uses = buffer.tool_uses if buffer.tool_uses is not self._saved_tool_uses else None
        grown = thought or tool_uses is not None or len(buffer) != self.saved_chars
        # Without new text, renew only the lease, and only when it is due before the next tick.
        is_due = now + self._tick_seconds - self._renewed_at > self.renewal_seconds
        if not (grown or force or self.is_failing or is_due):
            return None
        text = buffer.text if grown else None
        reasoning = buffer.reasoning if thought else None
        try:
            status = await self._records.checkpoint(self._user_id, self._turn_id, text, reasoning, tool_uses)
        except StorageUnavailable:
            self.report_failure()
            return None
        if status is LeaseStatus.LOST:
            return status
        self._renewed_at = now
        if text is not None:
            self.saved_chars = len(text)
        if reasoning is not None:
            self.saved_reasoning_chars = len(reasoning.text)
        if tool_uses is not None:
            self._saved_tool_uses = tool_uses
        if self.is_failing:
            self.is_failing = False
            buffer.notify(TurnNotice(SAVED_AGAIN))
        return status

    def report_failure(self) -> None:
        """Tells the readers that the reply is not saved; once, until a write succeeds."""
        if not self.is_failing:
            self.is_failing = True
            _log.warning("turn %s could not be saved, trying again", self._turn_id)
            self._buffer.notify(TurnNotice(NOT_SAVED_YET))
