"""Per-user quotas, so that no user takes the whole engine."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from app.auth.rate_limits import RateLimit, RateLimiter, too_many_requests
from app.errors import InvalidInput, StorageUnavailable
from app.settings import AppSettings
from app.store.accounts.token_use import TokenUsageRecords, seconds_until_tomorrow
from engine import Delta

_log = logging.getLogger(__name__)

#: ``Retry-After`` of a request above the limit of concurrent replies: one of them may have finished by then.
RETRY_AFTER_SECONDS = 5
#: Spent tokens are collected for this long and counted in one transaction.
FLUSH_SECONDS = 1.0


@dataclass(slots=True)
class _Gate:
    """Serialises a user's starts, so that two cannot both take the last free slot."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Quotas:
    """Limits each user's messages per minute, concurrent replies and tokens per day: the chat and ``/v1`` together.

    Each process counts messages on its own. Replies stored in the database, and tokens, are counted across processes.

    Args:
        temporary_replies: returns a user's number of replies in flight in temporary chats.
        stored_replies: the same in chats of the database, written by this process.
        is_alone: no other process writes replies to the same database.
    """

    def __init__(
        self,
        settings: AppSettings,
        uses: TokenUsageRecords,
        temporary_replies: Callable[[str], int],
        stored_replies: Callable[[str], int],
        *,
        is_alone: bool,
    ) -> None:
        per_minute = settings.messages_per_minute
        self._rates = (RateLimit(per_minute, 60, "messages"),) if per_minute is not None else ()
        self._max_replies = settings.concurrent_replies
        self._max_tokens = settings.tokens_per_day
        self._uses = uses
        self._temporary_replies = temporary_replies
        self._stored_replies = stored_replies
        self._is_alone = is_alone
        self._rate_limiter = RateLimiter()
        self._unsaved: Counter[str] = Counter()  # replies to /v1 in flight, by user: they are not stored
        self._gates: dict[str, _Gate] = {}
        self._spent: Counter[str] = Counter()  # tokens not yet counted in the database, by user
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @asynccontextmanager
    async def admit(
        self,
        user_id: str,
        replies: int = 1,
        *,
        is_message: bool = True,
        is_comparison: bool = False,
        request: asyncio.Future[Any] | None = None,
        may_count_later: bool = False,
    ) -> AsyncIterator[int | None]:
        """See :class:`app.turns.admission.Admission`."""
        gate = self._gates.setdefault(user_id, _Gate())
        gate.waiting += 1
        try:
            async with gate.lock:
                check = self._check(user_id, replies, is_comparison=is_comparison, may_count_later=may_count_later)
                max_running = await check if request is None else (await asyncio.gather(check, request))[0]
                messages = (replies if is_comparison else 1) if is_message else 0
                if messages:
                    self._count_messages(user_id, messages)
                yield max_running
        finally:
            gate.waiting -= 1
            if not gate.waiting:
                self._gates.pop(user_id, None)

    def record_tokens(self, user_id: str, tokens: int) -> None:
        """See :class:`app.turns.admission.Admission`."""
        if tokens:
            self._spent[user_id] += tokens
            if self._writing is None:
                self._writing = asyncio.create_task(self._write(), name="count tokens")

    async def meter(
        self, user_id: str, deltas: AsyncIterator[Delta], replies: int = 1, *, is_message: bool = True
    ) -> AsyncGenerator[Delta]:
        """See :class:`app.turns.admission.Admission`."""
        read: dict[str, int] = {}  # prompt tokens by engine request: one request per prompt
        written = 0
        try:
            async with self.admit(user_id, replies, is_message=is_message):
                self._unsaved[user_id] += replies
            try:
                async for delta in deltas:
                    written += len(delta.token_ids)
                    tokens = delta.prompt_tokens if delta.timings is None else delta.timings.prompt_tokens
                    if tokens is not None:
                        read[delta.request_id] = tokens
                    yield delta
            finally:
                self._unsaved[user_id] -= replies
                if not self._unsaved[user_id]:
                    del self._unsaved[user_id]
                self.record_tokens(user_id, sum(read.values()) + written)
        finally:
            if isinstance(deltas, AsyncGenerator):
                await deltas.aclose()

    async def close(self) -> None:
        """Waits until all spent tokens are counted in the database."""
        self._closing.set()
        if self._writing is not None:
            await self._writing

    async def _check(self, user_id: str, replies: int, *, is_comparison: bool, may_count_later: bool) -> int | None:
        """Returns what :meth:`admit` yields."""
        if self._max_tokens is not None:
            counted = await self._uses.of_today(user_id)
            if counted + self._spent[user_id] >= self._max_tokens:
                raise too_many_requests(
                    f"You've used your {self._max_tokens:,} tokens for today.", seconds_until_tomorrow()
                )
        if self._max_replies is not None:
            not_stored = self._temporary_replies(user_id) + self._unsaved[user_id]
            stored = self._stored_replies(user_id)
            if not self._is_alone:
                # Those of this process are among those in the database: no generation starts in vain.
                if may_count_later and not_stored + stored + replies <= self._max_replies:
                    return self._max_replies - replies - not_stored
                stored = await self._uses.replies_under_way(user_id)
            under_way = not_stored + stored
            if replies > self._max_replies:
                asking, remedy = (
                    ("comparison", "Compare fewer.")
                    if is_comparison
                    else ("request", "Lower n, or send fewer prompts in one request.")
                )
                raise InvalidInput(
                    f"This {asking} asks for {replies} replies at a time; your limit is {self._max_replies}. {remedy}"
                )
            if under_way + replies > self._max_replies:
                in_progress = "1 reply" if under_way == 1 else f"{under_way} replies"
                raise too_many_requests(
                    f"You already have {in_progress} in progress. Wait for one to finish.", RETRY_AFTER_SECONDS
                )
        return None

    def _count_messages(self, user_id: str, messages: int) -> None:
        for rate in self._rates:
            if messages > rate.count:
                raise InvalidInput(
                    f"This comparison counts as {messages} messages; your limit is {rate.count} a minute. "
                    "Compare fewer."
                )
        self._rate_limiter.hit(self._rates, user_id, "You've sent too many messages in a minute.", messages)

    async def _write(self) -> None:
        """Counts the tokens spent within :data:`FLUSH_SECONDS` in one transaction, until there are none left."""
        try:
            while self._spent:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._closing.wait()
                spent, self._spent = self._spent, Counter()
                try:
                    await self._uses.add(spent)
                except StorageUnavailable:
                    _log.warning(
                        "%d tokens were not counted towards the daily quotas: the database does not respond",
                        spent.total(),
                    )
        finally:
            self._writing = None
