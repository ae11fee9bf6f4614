"""Server-sent events of the list of cases and of one case.

A stream reads the database again whenever it is woken, by this process or another, and from time to time: it sends what
differs from what it has sent, so a lost hint costs time and no event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from app.api.cases.views import CaseEventData, CaseMessageData, CaseRow
from app.api.request_middleware import HttpMetrics
from app.api.sse import sse_event
from app.cases.cases import Cases
from app.cases.presence import PresentUser
from app.domain.views import MessageStatus
from app.errors import NotFound, StorageUnavailable
from app.store.cases.case_list import MAX_CHANGED

LOOK_SECONDS = 15.0  #: a stream looks at least this often
STREAMING_LOOK_SECONDS = 1.0  #: while the bot writes in another process, whose words come with its checkpoints
LIST_COALESCE_SECONDS = 0.5  #: the shortest time between two looks of a list, however many cases change
CASE_COALESCE_SECONDS = 0.05  #: the same of a case
OVERLAP = timedelta(seconds=5)  #: how far the clocks of two processes, or two commits, may be apart


async def list_stream(cases: Cases, user_id: str, metrics: HttpMetrics) -> AsyncGenerator[bytes]:
    """Yields ``counts`` at first, then ``case`` for each case that changes and ``counts`` after them.

    ``reset`` asks to read the list again: more has changed at once than a stream tells.
    """
    seen: Mapping[str, int] = {}
    since = datetime.now(UTC)
    with metrics.event_streams.track_inprogress(), suppress(StorageUnavailable):  # the client reconnects by itself
        inboxes = await cases.list.readable_inboxes(user_id)
        first = True
        while True:
            with cases.signals.watch(inboxes) as woken:
                while True:
                    changed = await cases.list.changed_since(user_id, since - OVERLAP, seen)
                    seen = changed.revisions
                    since = max(since, changed.latest or since)
                    if first or changed.new:
                        pieces = [] if first else [_event("case", CaseRow.of(case)) for case in changed.new]
                        if not first and len(seen) == MAX_CHANGED:
                            pieces.append(sse_event({}, event="reset"))
                        yield b"".join([*pieces, sse_event(await cases.list.counts(user_id), event="counts")])
                    first = False
                    await _wait(woken, LOOK_SECONDS, LIST_COALESCE_SECONDS)
                    again = await cases.list.readable_inboxes(user_id)
                    if again != inboxes:  # the user has joined or left an inbox
                        inboxes = again
                        break


async def case_stream(cases: Cases, user_id: str, case_id: str, metrics: HttpMetrics) -> AsyncGenerator[bytes]:
    """Yields ``case`` and ``present`` at first, then what changes. Ends when the user may read the case no more."""
    sent = _Sent()
    with (
        metrics.event_streams.track_inprogress(),
        cases.signals.watch([case_id]) as woken,
        suppress(StorageUnavailable, NotFound),
    ):
        while True:
            opened = await cases.details.get(user_id, case_id)
            pieces = sent.differences(
                CaseRow.of(opened.case),
                [CaseMessageData.of(message) for message in opened.messages],
                [CaseEventData.of(event) for event in opened.events],
                cases.presence.of(case_id),
            )
            if pieces:
                yield b"".join(pieces)
            seconds = STREAMING_LOOK_SECONDS if sent.is_streaming else LOOK_SECONDS
            await _wait(woken, seconds, CASE_COALESCE_SECONDS)


class _Sent:
    """What a client of one case has been sent, or has read before."""

    def __init__(self) -> None:
        self._revision: int | None = None
        self._messages: dict[str, tuple[str, int]] = {}  # status and length by id
        self._events: set[str] = set()
        self._present: list[PresentUser] | None = None
        self.is_streaming = False

    def differences(
        self,
        case: CaseRow,
        messages: list[CaseMessageData],
        events: list[CaseEventData],
        present: list[PresentUser],
    ) -> list[bytes]:
        """The events that tell what is new."""
        pieces: list[bytes] = []
        is_first = self._revision is None
        for message in messages:
            pieces += [] if is_first else self._of_message(message)
        self._messages |= {message.id: (message.status, len(message.text)) for message in messages}
        self.is_streaming = any(message.status == MessageStatus.STREAMING for message in messages)
        pieces += [_event("event", event) for event in events if not is_first and event.id not in self._events]
        self._events.update(event.id for event in events)
        if self._revision != case.revision:
            pieces.append(_event("case", case))
            self._revision = case.revision
        if present != self._present:
            pieces.append(sse_event({"present": present}, event="present"))
            self._present = present
        return pieces

    def _of_message(self, message: CaseMessageData) -> list[bytes]:
        before = self._messages.get(message.id)
        if before == (message.status, len(message.text)):
            return []
        is_longer = before is not None and before[0] == message.status and len(message.text) > before[1]
        if before is not None and is_longer:
            data = {"message_id": message.id, "offset": before[1], "text": message.text[before[1] :]}
            return [sse_event(data, event="delta")]
        return [_event("message", message)]


def _event(name: str, data: Any) -> bytes:
    """Encodes a dataclass."""
    fields = {field: getattr(data, field) for field in data.__dataclass_fields__}
    return sse_event(fields, event=name)


async def _wait(woken: asyncio.Event, seconds: float, coalesce: float) -> None:
    """Waits until there may be something new; several changes at once become one."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()
    await asyncio.sleep(coalesce)
    woken.clear()
