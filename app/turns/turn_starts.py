"""Starts replies: admits a request, makes its turn, writes its beginning, and launches it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.prompting import PathMessage
from app.domain.views import MessageStatus, Role
from app.errors import EngineUnavailable
from app.store.chat.new_turns import NewTurn
from app.store.chat.turn_contexts import TurnContext
from app.store.chat.turn_records import NotBegun, TurnRecords
from app.turns.admission import Admission
from app.turns.events import TurnEnd
from app.turns.idempotency import IdempotentStarts, ref_of
from app.turns.live import LiveTurn, TurnRef
from app.turns.live_turn_factory import LiveTurnFactory, reply_message
from app.turns.live_turns import LAST_WRITE_SECONDS, LiveTurns
from app.turns.recent_contexts import RecentContexts
from app.turns.storage_quota import StorageQuota
from app.turns.titles import Titles
from app.turns.turn_requests import TurnRequest

Result = TypeVar("Result")


class TurnStarts:
    """Starts the replies of one process.

    Args:
        live: keeps the replies in flight.
        recent: is told what the next message of each conversation starts from.
        storage: limits on storage; None is no limit.
        titles: generates the title of a new conversation; None keeps the first words of its first message.
    """

    def __init__(
        self,
        factory: LiveTurnFactory,
        records: TurnRecords,
        live: LiveTurns,
        recent: RecentContexts,
        admission: Admission,
        storage: StorageQuota | None,
        titles: Titles | None,
    ) -> None:
        self._factory = factory
        self._records = records
        self._live = live
        self._recent = recent
        self._admission = admission
        self._storage = storage
        self._titles = titles
        self._idempotent_starts = IdempotentStarts(records)
        self._comparisons: dict[str, tuple[TurnRef, ...]] = {}  # those being written, by the id of their first turn
        self._closing = False

    async def start(
        self,
        user_id: str,
        request_id: str | None,
        settings: ChatSettings | None,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
        collections: Sequence[str] | None = None,
        *,
        look_first: bool = True,
        may_begin_unread: bool = False,
    ) -> TurnRef:
        """Starts a reply, as :meth:`Turns.start`.

        Args:
            resolve_request: reads what the reply is to be written for.
            look_first: a turn of this request may exist already.
            may_begin_unread: a message at the end of its conversation, whose checks can be left to its write.
        """

        async def begin_once(turn_id: str, *, is_repeated: bool) -> TurnRef:
            admitted = self._admitted(
                user_id,
                resolve_request,
                is_message=not is_repeated,  # it was counted, and has cost a generation
                may_count_later=may_begin_unread and not is_repeated,
            )
            async with admitted as (turn_request, max_running):
                return await self._begin(user_id, turn_id, settings, turn_request, collections, max_running)

        async def begin(turn_id: str) -> TurnRef:
            if (live := self._live.find(user_id, turn_id)) is not None:
                return live.ref
            try:
                return await begin_once(turn_id, is_repeated=False)
            except NotBegun:  # what is in its way is told now; the context is no longer cached
                return await begin_once(turn_id, is_repeated=True)

        return await self._idempotent_starts.start_once(user_id, request_id, begin, look_first=look_first)

    async def compare(
        self,
        user_id: str,
        variants: Sequence[ChatSettings],
        request_id: str | None,
        settings: ChatSettings | None,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
    ) -> tuple[TurnRef, ...]:
        """Starts a reply for each of the variants, as :meth:`Turns.compare`."""

        async def begin(turn_id: str) -> TurnRef:
            admitted = self._admitted(user_id, resolve_request, len(variants), is_comparison=True)
            async with admitted as (turn_request, _):
                return await self._begin_comparison(user_id, turn_id, variants, settings, turn_request)

        first = await self._idempotent_starts.start_once(user_id, request_id, begin)
        columns = self._comparisons.get(first.turn_id)
        if columns is not None:
            return columns
        # A repeated request, after the replies have ended.
        return tuple(map(ref_of, await self._records.find_comparison(user_id, first.turn_id))) or (first,)

    async def close(self) -> None:
        """Starts no more replies, and waits for the starts in flight: each needs the task that ends its turn."""
        self._closing = True
        await self._idempotent_starts.wait_for_pending(LAST_WRITE_SECONDS)

    @asynccontextmanager
    async def _admitted(
        self,
        user_id: str,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
        replies: int = 1,
        *,
        is_message: bool = True,
        is_comparison: bool = False,
        may_count_later: bool = False,
    ) -> AsyncIterator[tuple[TurnRequest, int | None]]:
        """Admits a request, which is read while the user's replies are counted.

        Yields it and the most replies of the user that may be running as it begins; None: they were counted.
        """
        resolving = asyncio.create_task(self._resolve(user_id, resolve_request))
        try:
            async with self._admission.admit(
                user_id,
                replies,
                is_message=is_message,
                is_comparison=is_comparison,
                request=resolving,
                may_count_later=may_count_later and self._records.can_begin_unread,
            ) as max_running:
                yield resolving.result(), max_running
        finally:
            resolving.cancel()

    async def _resolve(self, user_id: str, resolve_request: Callable[[], Awaitable[TurnRequest]]) -> TurnRequest:
        """The request, if there is room in the storage for what it begins."""
        if self._closing:
            raise EngineUnavailable("The server is shutting down. Please send again once it is back.")
        turn_request = await resolve_request()
        if self._storage is not None:
            await self._storage.check(user_id, turn_request.conversation_id)
        return turn_request

    async def _begin(
        self,
        user_id: str,
        turn_id: str,
        settings: ChatSettings | None,
        turn_request: TurnRequest,
        collections: Sequence[str] | None,
        max_running: int | None,
    ) -> TurnRef:
        if collections is not None:
            settings = settings or turn_request.context.settings
            settings = settings.model_copy(update={"collections": tuple(collections)})
        live, new = await self._factory.make(user_id, turn_id, settings, turn_request)
        read_as_of = turn_request.context.read_as_of
        begin: Callable[[str, NewTurn], Awaitable[datetime]]
        if new.partial_reply:
            begin = self._records.resume
        elif self._records.can_begin_unread and (read_as_of is not None or max_running is not None):
            begin = partial(self._records.begin_unread, read_as_of=read_as_of, max_running=max_running)
        else:
            begin = self._records.begin
        updated_at = await self._write([live], lambda: begin(user_id, new))
        self._launch(live, new, turn_request, updated_at)
        return live.ref

    async def _begin_comparison(
        self,
        user_id: str,
        comparison_id: str,
        variants: Sequence[ChatSettings],
        settings: ChatSettings | None,
        turn_request: TurnRequest,
    ) -> TurnRef:
        started: list[tuple[LiveTurn, NewTurn, TurnRequest]] = []
        found: dict[tuple[str, ...], tuple[Passage, ...]] = {}  # by collections: one search for all columns
        for column, variant in enumerate(variants):
            live, new = await self._factory.make(
                user_id,
                new_id() if column else comparison_id,
                variant,
                turn_request,
                sources=found.get(variant.collections),
            )
            found[variant.collections] = live.sources
            new = replace(
                new,
                save_settings=settings is not None,
                conversation_settings=settings,
                comparison_id=comparison_id,
                comparison_column=column,
            )
            first = started[0][0] if started else live
            if column and live.prepared.messages == first.prepared.messages:
                live.start_after(first)
            started.append((live, new, turn_request))
            ref = live.ref
            turn_request = replace(turn_request, conversation_id=ref.conversation_id, message_id=ref.user_message_id)
        lives = [live for live, _, _ in started]
        write = partial(self._records.begin_comparison, user_id, [new for _, new, _ in started])
        updated_at = await self._write(lives, write)
        refs = tuple(live.ref for live in lives)
        self._comparisons[comparison_id] = refs
        for live, new, request in started:
            self._launch(live, new, request, updated_at).add_done_callback(
                lambda _: self._comparisons.pop(comparison_id, None)
            )
        return refs[0]

    async def _write(self, lives: Sequence[LiveTurn], write: Callable[[], Awaitable[Result]]) -> Result:
        """Writes the beginning of turns of one conversation and user."""

        async def forget_and_write() -> Result:
            self._recent.forget(lives[0].user_id, lives[0].ref.conversation_id)
            return await write()

        return await self._live.begin(lives, forget_and_write)

    def _launch(
        self, live: LiveTurn, new: NewTurn, turn_request: TurnRequest, updated_at: datetime
    ) -> asyncio.Task[None]:
        """``updated_at``: of the conversation, as the start of the turn has left it."""
        task = self._live.launch(live)
        task.add_done_callback(lambda _: self._admission.record_tokens(live.user_id, live.tokens))
        if new.partial_reply is None and new.comparison_column == 0:  # of a comparison, the one that is shown
            task.add_done_callback(lambda _: self._remember(live, turn_request, new.settings, updated_at))
        if new.title is not None:
            task.add_done_callback(lambda _: self._generate_title(live, turn_request.text))
        return task

    def _remember(
        self, live: LiveTurn, turn_request: TurnRequest, settings: ChatSettings, updated_at: datetime
    ) -> None:
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
            read_as_of=updated_at,
        )
        self._recent.keep(live.user_id, live.ref.conversation_id, after, live.prepared)

    def _generate_title(self, live: LiveTurn, message: str) -> None:
        end = live.buffer.end
        complete = isinstance(end, TurnEnd) and end.status is MessageStatus.COMPLETE
        if self._titles is not None and not self._closing and complete and live.buffer.text.strip():
            self._titles.generate(live.user_id, live.ref.conversation_id, message, live.buffer.text)
