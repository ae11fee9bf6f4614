"""The widget's stream of server-sent events: what is new in the visitor's case.

A stream asks the database whether its case has changed when it is woken, by this process or another, and from time to
time; then it sends what differs from what it has sent. Words of a reply that this process writes come from memory, as
they are written.

The id of each event is the case's with the position up to which its messages are final, such as ``…:12``. A stream that
goes on from there sends the later messages whole, so a client replaces those that it has.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from typing import Any

from app.api.request_middleware import HttpMetrics
from app.api.sse import sse_event
from app.api.widget.views import WidgetCase, WidgetMessage, final_position, is_shown
from app.auth.visitors import VisitorIdentity
from app.cases.live_replies import LiveReply
from app.cases.sentences import Sentence, say
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import AuthorKind
from app.domain.views import MessageStatus
from app.errors import StorageUnavailable
from app.services.widget import Widget
from app.store.cases.contact_looks import ContactLook, ContactState

LOOK_SECONDS = 30.0  #: a stream looks at least this often, give or take a third: many begin at once after a restart
WHOLE_LOOK_SECONDS = 120.0  #: between two looks while the case does not change: the inbox or the time of day may
STREAMING_LOOK_SECONDS = 1.0  #: while another process writes a reply, whose words come with its checkpoints
COALESCE_SECONDS = 0.05  #: the shortest time between two looks


def event_id(case_id: str, position: int) -> str:
    return f"{case_id}:{position}"


class WidgetStream:
    """One visitor's stream.

    Args:
        last_event_id: of the session, or of the last event that the client has seen; one that is malformed, or of
            another case, begins anew.
    """

    def __init__(
        self, widget: Widget, visitor: VisitorIdentity, last_event_id: str | None, metrics: HttpMetrics
    ) -> None:
        self._widget = widget
        self._visitor = visitor
        self._metrics = metrics
        case_id, _, position = (last_event_id or "").partition(":")
        is_valid = bool(case_id) and position.removeprefix("-").isdecimal() and len(position) < 12
        self._case_id: str | None = case_id if is_valid else None
        self._final = int(position) if is_valid else -1  # up to here, nothing changes any more
        self._sent: dict[str, tuple[str, int]] = {}  # by message after it: status and length of the text
        self._case: WidgetCase | None = None
        self._typing: str | None = None
        self._is_streaming = False
        self._seen: ContactState | None = None  # of the last look
        self._look_at = 0.0

    async def events(self) -> AsyncGenerator[bytes]:
        """Yields ``case``, ``message``, ``delta`` and ``typing`` until the client leaves or the token ends."""
        watched: str | None = None
        with self._metrics.event_streams.track_inprogress(), suppress(StorageUnavailable):
            while True:
                ids = [self._visitor.contact_id, *([watched] if watched is not None else [])]
                with self._widget.cases.signals.watch(ids) as woken:
                    while True:
                        woken.clear()
                        found = await self._look()
                        if found is None:
                            return
                        state, look = found
                        if pieces := self._pieces(state, look):
                            yield b"".join(pieces)
                        if state.case_id != watched:
                            watched = state.case_id
                            break  # another case: watch that one, and look again, as it may have changed meanwhile
                        live = self._live()
                        async for more in self._follow(live, woken) if live is not None else _none():
                            yield more
                        await self._wait(woken)

    async def _look(self) -> tuple[ContactState, ContactLook | None] | None:
        """Reads the case, whole if it may have changed; None once the token is not this contact's any more.

        The token ends when the visitor becomes a known customer, is erased, or has not come for long, and another
        person may have kept it.
        """
        visitor = self._visitor
        may_differ = self._live() is not None or self._is_streaming or monotonic() >= self._look_at
        return await self._widget.cases.looks.look(
            visitor.contact_id,
            visitor.inbox_id,
            visitor.token_hash,
            case_id=self._case_id,
            after=self._final,
            unless=None if may_differ else self._seen,
        )

    def _pieces(self, state: ContactState, look: ContactLook | None) -> list[bytes]:
        """Returns the events that tell what has changed in the database."""
        if look is None:
            if state.case_id != self._case_id:
                self._case_id = self._seen = None  # the client may have named another visitor's
            return []
        self._seen, self._look_at = state, monotonic() + WHOLE_LOOK_SECONDS
        case, messages = look.case, look.messages
        if case.id != self._case_id:
            self._case_id, self._final, self._sent = case.id, -1, {}
        live = self._live()
        pieces: list[bytes] = []
        self._is_streaming = any(message.status == MessageStatus.STREAMING for message in messages)
        before = self._final
        self._final = final_position(messages, self._final)
        if (shown := WidgetCase.of(case, look.inbox, is_rated=look.is_rated)) != self._case:
            self._case = shown
            pieces.append(self._event("case", asdict(shown)))
        for message in messages:
            # What the database has as ended is read there: a sentence of the system may stand in place of the reply.
            is_streaming = message.status == MessageStatus.STREAMING
            is_live = is_streaming and live is not None and live.message_id == message.id
            pieces += self._message(message, live if is_live else None)
        if self._final != before:
            self._sent = {message.id: self._sent[message.id] for message in messages if message.id in self._sent}
        return pieces + self._typing_event(case, messages)

    def _message(self, message: CaseMessage, live: LiveReply | None) -> list[bytes]:
        shown = WidgetMessage.of(message, live.buffer if live is not None else None)
        is_known = message.id in self._sent
        if not is_known and not shown.text.strip() and not message.attachments:
            return []  # a reply that has no words yet, or ended without any
        now = (message.status, len(shown.text))
        if self._sent.get(message.id) == now:
            return []
        status, length = self._sent.get(message.id, ("", 0))
        self._sent[message.id] = now
        if status == message.status and now[1] > length:
            return [self._delta(message.id, length, shown.text[length:])]
        return [self._event("message", asdict(shown))]

    async def _follow(self, live: LiveReply, woken: asyncio.Event) -> AsyncGenerator[bytes]:
        """Yields the words of a reply as they come, until it ends or something else happens in the case."""
        grown = asyncio.Event()
        reader = live.buffer.reader(len(live.buffer), lambda _ended: grown.set())
        try:
            while not woken.is_set() and live.buffer.end is None and self._live() is live:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STREAMING_LOOK_SECONDS):
                        await grown.wait()
                await asyncio.sleep(COALESCE_SECONDS)
                grown.clear()
                text = live.buffer.text
                status, length = self._sent.get(live.message_id, ("", 0))
                if not status or live.buffer.end is not None:
                    if text:
                        return  # the look sends the message
                elif len(text) > length:
                    self._sent[live.message_id] = (status, len(text))
                    yield self._delta(live.message_id, length, text[length:])
        finally:
            await reader.close()

    async def _wait(self, woken: asyncio.Event) -> None:
        """Waits until there may be something new."""
        if self._live() is None:
            seconds = STREAMING_LOOK_SECONDS if self._is_streaming else LOOK_SECONDS * random.uniform(0.7, 1.3)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        await asyncio.sleep(COALESCE_SECONDS)

    def _live(self) -> LiveReply | None:
        return self._widget.live.get(self._case_id) if self._case_id is not None else None

    def _typing_event(self, case: CaseView, messages: list[CaseMessage]) -> list[bytes]:
        last = messages[-1] if messages else None
        is_beginning = (
            last is not None
            and last.author is AuthorKind.BOT
            and last.status == MessageStatus.STREAMING
            and not is_shown(last)
            and last.id not in self._sent
        )
        name = say(Sentence.BOT, case.contact.language) if is_beginning else None
        if name == self._typing:
            return []
        self._typing = name
        return [self._event("typing", {"name": name})]

    def _delta(self, message_id: str, offset: int, text: str) -> bytes:
        return self._event("delta", {"message_id": message_id, "offset": offset, "text": text})

    def _event(self, name: str, data: dict[str, Any]) -> bytes:
        assert self._case_id is not None
        return sse_event(data, event=name, id=event_id(self._case_id, self._final))


async def _none() -> AsyncGenerator[bytes]:
    return
    yield b""
