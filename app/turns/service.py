"""Starts, follows and stops replies. The server owns a reply; browsers attach to it and leave."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from app.concurrency.timeouts import wait_with_timeout
from app.domain.chat_settings import ChatSettings
from app.domain.prompting import PathMessage
from app.domain.views import MessageStatus, Role
from app.errors import Conflict, EngineUnavailable
from app.settings import AppSettings
from app.store.chat.turn_contexts import BUSY, TurnContext, TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.notifications import Notifications
from app.templates.catalog import Templates
from app.templates.files import read_sources_prompt
from app.turns.admission import Admission, UnlimitedAdmission
from app.turns.events import TurnEnd, TurnEvent, TurnSnapshot
from app.turns.idempotency import IdempotentStarts
from app.turns.live import LiveTurn, TurnRef
from app.turns.live_turn_factory import LiveTurnFactory, reply_message
from app.turns.readers import ChangeCallback, PrefetchingReader, TurnReader
from app.turns.recent_contexts import RecentContexts
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.stored_replies import StoredTurns
from app.turns.titles import Titles
from app.turns.tool_offers import ToolOffers
from app.turns.turn_requests import ToolDecision, TurnRequest, TurnRequests
from engine import ChatEngine

__all__ = ["TurnRef", "TurnSnapshot", "Turns"]

_log = logging.getLogger(__name__)

LAST_WRITE_SECONDS = 5.0  # for last writes on shutdown


class Turns:
    """The replies in flight, and access to those that have ended."""

    def __init__(
        self,
        settings: AppSettings,
        engine: ChatEngine,
        records: TurnRecords,
        contexts: TurnContexts,
        templates: Templates,
        notifications: Notifications,
        titles: Titles | None = None,
        admission: Admission | None = None,
        storage: StorageQuota | None = None,
        tool_offers: ToolOffers | None = None,
        sources: Sources | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        """``titles``: generates the title of a new conversation; None keeps the first words of its first message.

        Args:
            admission: limits on replies; None is no limit.
            storage: limits on storage; None is no limit.
            tool_offers: the tools that chats are offered; None offers none.
            sources: finds the sources of replies; None: there are no documents.
            is_alone: this process is the database's single writer.
        """
        self._admission = admission or UnlimitedAdmission()
        self._storage = storage
        self._titles = titles
        self._settings = settings
        self._records = records
        poll_seconds = min(settings.checkpoint_seconds, settings.lease_seconds / 3)
        self._idempotent_starts = IdempotentStarts(records)
        self._stored = StoredTurns(records, notifications, poll_seconds)
        self._recent = RecentContexts(is_alone=is_alone)
        self._turn_requests = TurnRequests(contexts, self._recent, settings.max_message_chars)
        self._factory = LiveTurnFactory(
            settings,
            engine,
            records,
            templates,
            notifications,
            self._recent,
            tool_offers,
            sources or Sources(None, engine, settings, read_sources_prompt()),
        )
        self._live: dict[str, LiveTurn] = {}
        self._writing: Counter[str] = Counter()  # running replies by user id
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(
        self,
        user_id: str,
        *,
        text: str,
        conversation_id: str | None = None,
        parent_id: str | None = None,
        tip_id: str | None = None,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Saves a message and starts its reply. On return the message is in the database.

        Writes nothing if it raises. Cancelling the caller does not interrupt it half-way:
        the message is sent, or it is not.

        Args:
            conversation_id: None creates a conversation.
            parent_id: the reply that the message follows; None means the last message of the conversation.
            tip_id: what the user sees as the last message; Conflict if it no longer is.
            settings: saved on the conversation; None uses the conversation's own.
            collections: ids of the collections of documents that the conversation's replies rest on from now on; None
                leaves them as they are in the settings.
            request_id: idempotency key. A repeated request starts nothing and returns the turn of the first one,
                whatever its other arguments.

        Raises:
            InvalidInput: an empty or overlong message, or a setting out of range (named).
            ContextTooLong: the model cannot read that much.
            NotFound: the conversation or the parent is missing or another user's, or a collection is, or the user may
                not use it.
            Conflict: a reply is running in this conversation, or the conversation has moved on elsewhere.
            Overloaded: the engine's queue is full.
            EngineUnavailable: the engine or the server is stopping.
            TooManyRequests: the user has reached a limit on replies.
            LimitReached: the user or the conversation is at its storage limit.
            StorageUnavailable: the database is unavailable.
        """
        return await self._start(
            user_id,
            request_id,
            settings,
            lambda: self._turn_requests.new(
                user_id, text, conversation_id, parent_id, tip_id, uses_settings=settings is None
            ),
            collections,
            # With a tip, a repeated request conflicts anyway: its first one moved the conversation on.
            look_first=conversation_id is None or tip_id is None,
        )

    async def edit(
        self,
        user_id: str,
        message_id: str,
        *,
        text: str,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Saves ``text`` as a sibling of the message, which keeps all that followed it, and starts its reply.

        Otherwise as :meth:`start`.

        Args:
            message_id: a message of the user's.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if the message is a reply.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.edit(user_id, message_id, text), collections
        )

    async def regenerate(
        self,
        user_id: str,
        message_id: str,
        *,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another reply to the same message, a sibling of the existing ones. Otherwise as :meth:`start`.

        Args:
            message_id: the message, or a reply to it.

        Raises:
            NotFound: the message is missing or another user's.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.regenerate(user_id, message_id), collections
        )

    async def resume(self, user_id: str, message_id: str, *, settings: ChatSettings | None = None) -> TurnRef:
        """Resumes a reply that was stopped, interrupted, or reached its maximum length. Keeps its turn.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if it cannot be resumed.
        """

        return await self._start(user_id, None, settings, lambda: self._turn_requests.resume(user_id, message_id))

    async def decide(
        self, user_id: str, message_id: str, decision: ToolDecision, *, settings: ChatSettings | None = None
    ) -> TurnRef:
        """Goes on with a reply whose calls of tools have waited for the user's decision: runs those that are allowed.

        Otherwise as :meth:`resume`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if nothing waits, or the decision is not about exactly what waits.
        """

        return await self._start(
            user_id, None, settings, lambda: self._turn_requests.decide(user_id, message_id, decision)
        )

    async def events(
        self, user_id: str, turn_id: str, offset: int = 0, reasoning_offset: int = 0
    ) -> AsyncIterator[TurnEvent]:
        """Follows a reply from the offsets on; :class:`TurnEnd` comes last. Works for finished turns too.

        A slow reader gets all new text in one piece with its next event.

        Raises:
            NotFound: on the first ``anext``, if the turn is missing or another user's.
        """
        live = self._live_of(user_id, turn_id)
        if live is not None:
            events = live.buffer.follow(offset, reasoning_offset)
        else:
            events = self._stored.events(user_id, turn_id, offset, reasoning_offset)
        async for event in events:
            yield event

    def reader(
        self, user_id: str, turn_id: str, offset: int, changed: ChangeCallback, reasoning_offset: int = 0
    ) -> TurnReader:
        """As :meth:`events`, for a caller that reads many replies at once: it takes whenever ``changed`` is called."""
        live = self._live_of(user_id, turn_id)
        if live is not None:
            return live.buffer.reader(offset, changed, reasoning_offset)
        return PrefetchingReader(self._stored.events(user_id, turn_id, offset, reasoning_offset), changed)

    async def snapshot(self, user_id: str, turn_id: str) -> TurnSnapshot:
        """The current state of the turn.

        Raises:
            NotFound: it is missing or another user's.
        """
        live = self._live_of(user_id, turn_id)
        return live.snapshot() if live is not None else await self._stored.snapshot(user_id, turn_id)

    def running_turn_ids(self) -> list[str]:
        """The ids of the turns that this process is writing."""
        return list(self._live)

    def count_running(self, user_id: str) -> int:
        """How many of the user's replies this process is writing."""
        return self._writing[user_id]

    async def stop(self, user_id: str, turn_id: str) -> None:
        """Stops the reply and keeps its text so far. A second stop, or one after the end, is no error.

        On return the reply is final and saved, so that the next message can be sent. If the database is
        unavailable, saving continues in the background.

        Raises:
            NotFound: the turn is missing or another user's.
            EngineUnavailable: another process is writing it and has not answered for some seconds; the stop request
                stays.
        """
        live = self._live_of(user_id, turn_id)
        if live is None:
            await self._stored.stop(user_id, turn_id)
            return
        live.stop(MessageStatus.STOPPED)
        await live.wait_until_saved()

    async def delete_conversation(self, user_id: str, conversation_id: str) -> None:
        """Deletes a conversation permanently, with a reply that is still in flight.

        Raises:
            NotFound: it is missing or another user's.
        """
        # Delete the rows first: if that fails, the reply is unharmed.
        await self._records.delete_conversation(user_id, conversation_id)
        self._recent.forget(user_id, conversation_id)
        for live in self._live_in(conversation_id):
            live.discard()
            await live.wait_until_saved()

    async def close(self) -> None:
        """Starts no more replies, gives those in flight ``shutdown_seconds``, then ends them as interrupted."""
        self._closing = True
        if self._titles is not None:
            await self._titles.close()
        # A start in flight needs the task that ends its turn.
        await self._idempotent_starts.wait_for_pending(LAST_WRITE_SECONDS)
        if self._tasks:
            await wait_with_timeout(self._settings.shutdown_seconds, self._tasks)
        for live in self._live.values():
            live.stop(MessageStatus.INTERRUPTED)
        if self._tasks:
            await wait_with_timeout(LAST_WRITE_SECONDS, self._tasks)
        for task in self._tasks:
            _log.error("%s could not be saved before the shutdown", task.get_name())
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(
        self,
        user_id: str,
        request_id: str | None,
        settings: ChatSettings | None,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
        collections: Sequence[str] | None = None,
        *,
        look_first: bool = True,
    ) -> TurnRef:
        async def begin(turn_id: str) -> TurnRef:
            if self._closing:
                raise EngineUnavailable("The server is shutting down. Please send again once it is back.")
            turn_request = await resolve_request()
            if self._storage is not None:
                await self._storage.check(user_id, turn_request.conversation_id)
            async with self._admission.admit(user_id):
                return await self._begin(user_id, turn_id, settings, turn_request, collections)

        return await self._idempotent_starts.start_once(user_id, request_id, begin, look_first=look_first)

    async def _begin(
        self,
        user_id: str,
        turn_id: str,
        settings: ChatSettings | None,
        turn_request: TurnRequest,
        collections: Sequence[str] | None,
    ) -> TurnRef:
        if collections is not None:
            settings = settings or turn_request.context.settings
            settings = settings.model_copy(update={"collections": tuple(collections)})
        live, new = await self._factory.make(user_id, turn_id, settings, turn_request)
        ref = live.ref
        if ref.turn_id in self._live:
            raise Conflict(BUSY)
        self._recent.forget(user_id, ref.conversation_id)
        # Registered before it is written: a reader that sees the turn in the database finds it here.
        self._live[ref.turn_id] = live
        self._writing[user_id] += 1
        try:
            await (self._records.resume(user_id, new) if new.partial_reply else self._records.begin(user_id, new))
        except BaseException:
            self._forget(live)
            raise
        task = live.launch()
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(live, task))
        if new.partial_reply is None:
            task.add_done_callback(lambda _: self._remember(live, turn_request, new.settings))
        if new.title is not None:
            task.add_done_callback(lambda _: self._generate_title(live, turn_request.text))
        return ref

    def _ended(self, live: LiveTurn, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._forget(live)
        self._admission.record_tokens(live.user_id, live.tokens)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=failure)

    def _remember(self, live: LiveTurn, turn_request: TurnRequest, settings: ChatSettings) -> None:
        """Caches what the conversation's next message starts from."""
        if live.saved is None:
            return
        context, saved = turn_request.context, live.saved
        reply = reply_message(saved.text, saved.token_ids, saved.reasoning, saved.tool_uses, live.sources)
        after = TurnContext(
            parent_id=live.ref.message_id,
            path=(*context.path, PathMessage(Role.USER, turn_request.text), reply),
            settings=settings,
            streaming=False,
            omitted_messages=live.ref.omitted_messages,
            context_length=live.ref.context_length,
            allowed_tools=context.allowed_tools,
        )
        self._recent.keep(live.user_id, live.ref.conversation_id, after, live.prepared)

    def _forget(self, live: LiveTurn) -> None:
        del self._live[live.ref.turn_id]
        self._writing[live.user_id] -= 1
        if not self._writing[live.user_id]:
            del self._writing[live.user_id]

    def _generate_title(self, live: LiveTurn, message: str) -> None:
        end = live.buffer.end
        complete = isinstance(end, TurnEnd) and end.status is MessageStatus.COMPLETE
        if self._titles is not None and not self._closing and complete and live.buffer.text.strip():
            self._titles.generate(live.user_id, live.ref.conversation_id, message, live.buffer.text)

    def _live_of(self, user_id: str, turn_id: str) -> LiveTurn | None:
        live = self._live.get(turn_id)
        return live if live is not None and live.user_id == user_id else None

    def _live_in(self, conversation_id: str) -> list[LiveTurn]:
        return [live for live in self._live.values() if live.ref.conversation_id == conversation_id]
