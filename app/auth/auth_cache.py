"""Who was known a moment ago: the many requests of a page, or of a program, ask the database once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

from app.auth.revocation_watcher import POLL_SECONDS

Credential = TypeVar("Credential")

#: What a command ends beside the server is let in for so long still: no longer than answers that are under way go on
#: (see :class:`app.auth.revocation_watcher.RevocationWatcher`). What the server itself ends, it forgets at once.
AUTH_CACHE_SECONDS = POLL_SECONDS
MAX_ENTRIES = 10_000


class AuthCache(Generic[Credential]):
    """Sessions, or keys, by the hash of their token. Whoever is not known is looked for each time.

    Args:
        find: looks in the database.
        seconds: how long somebody is known. 0 where there are other servers: whom one shuts out, none lets in.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[Credential | None]],
        seconds: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._find = find
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[str, tuple[Credential, float]] = {}  # and until when
        self._generation = 0

    async def find(self, token_hash: str) -> Credential | None:
        """Raises whatever ``find`` raises."""
        found, until = self._entries.get(token_hash, (None, 0.0))
        if found is not None and self._clock() < until:
            return found
        generation, asked_at = self._generation, self._clock()
        found = await self._find(token_hash)
        self._entries.pop(token_hash, None)
        # What was read before somebody was shut out must not be remembered after.
        if found is not None and generation == self._generation:
            self._entries[token_hash] = found, asked_at + self._seconds
            if len(self._entries) > MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
        return found

    def invalidate(self) -> None:
        """Somebody may not come in any more, or is another by now: everybody is looked for again."""
        self._generation += 1
        self._entries.clear()
