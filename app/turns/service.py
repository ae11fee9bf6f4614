"""Starts, follows and stops replies. The server owns a reply; browsers attach to it and leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from app.domain.chat_settings import ChatSettings
from app.domain.views import MessageStatus
from app.settings import AppSettings
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.notifications import Notifications
from app.templates.catalog import Templates
from app.templates.files import read_sources_prompt
from app.turns.admission import Admission, UnlimitedAdmission
from app.turns.context_use import ContextUse
from app.turns.engine_requests import EngineRequests
from app.turns.events import TurnEvent, TurnSnapshot
from app.turns.lens import Lens
from app.turns.live import TurnRef
from app.turns.live_turn_factory import LiveTurnFactory
from app.turns.live_turns import LiveTurns
from app.turns.readers import ChangeCallback, PrefetchingReader, TurnReader
from app.turns.recent_contexts import RecentContexts
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.stored_replies import StoredTurns
from app.turns.titles import Titles
from app.turns.tool_offers import ToolOffers
from app.turns.turn_requests import ToolDecision, TurnRequests
from app.turns.turn_starts import TurnStarts
from engine import ChatEngine

__all__ = ["TurnRef", "TurnSnapshot", "Turns"]


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
    ) -> None:
        """``titles``: generates the title of a new conversation; None keeps the first words of its first message.

        Args:
            admission: limits on replies; None is no limit.
            storage: limits on storage; None is no limit.
            tool_offers: the tools that chats are offered; None offers none.
            sources: finds the sources of replies; None: there are no documents.
        """
        admission = admission or UnlimitedAdmission()
        self._titles = titles
        self._settings = settings
        self._records = records
        poll_seconds = min(settings.checkpoint_seconds, settings.lease_seconds / 3)
        sources = sources or Sources(None, engine, settings, read_sources_prompt())
        self._stored = StoredTurns(records, notifications, sources, poll_seconds)
        self._recent = RecentContexts()
        self._turn_requests = TurnRequests(contexts, self._recent, settings.max_message_chars)
        self._factory = LiveTurnFactory(
            settings,
            engine,
            records,
            templates,
            notifications,
            self._recent,
            tool_offers,
            sources,
        )
        requests = EngineRequests(engine, admission, accounts=settings.accounts)
        self.lens = Lens(contexts, self._factory, requests)
        self.context = ContextUse(contexts, self._factory, engine, settings.max_message_chars)
        self._live = LiveTurns()
        self._starts = TurnStarts(self._factory, records, self._live, self._recent, admission, storage, titles)

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
        return await self._starts.start(
            user_id,
            request_id,
            settings,
            lambda: self._turn_requests.new(
                user_id, text, conversation_id, parent_id, tip_id, uses_settings=settings is None
            ),
            collections,
            # A repeated request cannot begin its turn again, nor follow a tip that its first one has moved on.
            look_first=conversation_id is not None and tip_id is None,
            may_begin_unread=parent_id is None,
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
        return await self._starts.start(
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
        return await self._starts.start(
            user_id, request_id, settings, lambda: self._turn_requests.regenerate(user_id, message_id), collections
        )

    async def branch_at(
        self,
        user_id: str,
        message_id: str,
        *,
        index: int,
        token_id: int,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another reply, a sibling of this one: its tokens before ``index``, then ``token_id``, then the rest.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if there are no such tokens, or the reply cannot branch there.
            NotSupported: the engine does not report the tokens of replies.
        """
        return await self._starts.start(
            user_id, request_id, settings, lambda: self.lens.branch(user_id, message_id, index, token_id)
        )

    async def rewrite(
        self,
        user_id: str,
        message_id: str,
        *,
        text: str,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another version of a reply that begins with the user's text; the model goes on from its end.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if the message is no reply, or has calls of tools.
        """
        return await self._starts.start(
            user_id, request_id, settings, lambda: self._turn_requests.rewrite(user_id, message_id, text)
        )

    async def resume_as_version(
        self, user_id: str, message_id: str, *, settings: ChatSettings | None = None, request_id: str | None = None
    ) -> TurnRef:
        """As :meth:`resume`, but the reply stays, with what follows it: the longer one is another version.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if it cannot be resumed.
        """
        return await self._starts.start(
            user_id, request_id, settings, lambda: self._turn_requests.resume_as_version(user_id, message_id)
        )

    async def compare(
        self,
        user_id: str,
        variants: Sequence[ChatSettings],
        *,
        text: str,
        conversation_id: str | None = None,
        tip_id: str | None = None,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> tuple[TurnRef, ...]:
        """Saves a message and starts a reply to it for each of the variants. All are versions; the first is shown.

        Otherwise as :meth:`start`.

        Args:
            variants: the settings of the replies, which are not saved on the conversation.

        Raises:
            TooManyRequests: as :meth:`start`, if there is no room for all of them.
        """
        return await self._starts.compare(
            user_id,
            variants,
            request_id,
            settings,
            lambda: self._turn_requests.new(user_id, text, conversation_id, None, tip_id),
        )

    async def compare_again(
        self,
        user_id: str,
        message_id: str,
        variants: Sequence[ChatSettings],
        *,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> tuple[TurnRef, ...]:
        """As :meth:`compare`, for a message that exists already, or the one that this is a reply to.

        Raises:
            NotFound: the message is missing or another user's.
        """
        return await self._starts.compare(
            user_id, variants, request_id, settings, lambda: self._turn_requests.regenerate(user_id, message_id)
        )

    async def resume(self, user_id: str, message_id: str, *, settings: ChatSettings | None = None) -> TurnRef:
        """Resumes a reply that was stopped, interrupted, or reached its maximum length. Keeps its turn.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if it cannot be resumed.
        """
        return await self._starts.start(
            user_id, None, settings, lambda: self._turn_requests.resume(user_id, message_id)
        )

    async def decide(
        self, user_id: str, message_id: str, decision: ToolDecision, *, settings: ChatSettings | None = None
    ) -> TurnRef:
        """Goes on with a reply whose calls of tools have waited for the user's decision: runs those that are allowed.

        Otherwise as :meth:`resume`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if nothing waits, or the decision is not about exactly what waits.
        """
        return await self._starts.start(
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
        live = self._live.find(user_id, turn_id)
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
        live = self._live.find(user_id, turn_id)
        if live is not None:
            return live.buffer.reader(offset, changed, reasoning_offset)
        return PrefetchingReader(self._stored.events(user_id, turn_id, offset, reasoning_offset), changed)

    async def snapshot(self, user_id: str, turn_id: str) -> TurnSnapshot:
        """The current state of the turn.

        Raises:
            NotFound: it is missing or another user's.
        """
        live = self._live.find(user_id, turn_id)
        return live.snapshot() if live is not None else await self._stored.snapshot(user_id, turn_id)

    def running_turn_ids(self) -> list[str]:
        """The ids of the turns that this process is writing."""
        return list(self._live.by_id)

    def count_running(self, user_id: str) -> int:
        """How many of the user's replies this process is writing."""
        return self._live.count(user_id)

    async def stop(self, user_id: str, turn_id: str) -> None:
        """Stops the reply and keeps its text so far. A second stop, or one after the end, is no error.

        On return the reply is final and saved, so that the next message can be sent. If the database is
        unavailable, saving continues in the background.

        Raises:
            NotFound: the turn is missing or another user's.
            EngineUnavailable: another process is writing it and has not answered for some seconds; the stop request
                stays.
        """
        live = self._live.find(user_id, turn_id)
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
        for live in self._live.within({conversation_id}):
            live.discard()
            await live.wait_until_saved()

    async def leave_conversations(self, user_id: str, conversation_ids: Collection[str]) -> None:
        """Stops the replies in conversations that were deleted, and keeps their text so far: they may be restored."""
        for conversation_id in conversation_ids:
            self._recent.forget(user_id, conversation_id)
        left = self._live.within(conversation_ids)
        for live in left:
            live.stop(MessageStatus.STOPPED)
        for live in left:
            await live.wait_until_saved()

    async def close(self) -> None:
        """Starts no more replies, gives those in flight ``shutdown_seconds``, then ends them as interrupted."""
        await self._starts.close()
        if self._titles is not None:
            await self._titles.close()
        await self._live.close(self._settings.shutdown_seconds)
