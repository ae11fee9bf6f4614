"""Caches authenticated sessions and API keys, so that a burst of requests hits the database once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

from app.auth.revocation_watcher import POLL_SECONDS

Credential = TypeVar("Credential")

#: Cache TTL. A revocation made by the CLI takes effect within this time, as it does for responses in flight (see
#: :class:`app.auth.revocation_watcher.RevocationWatcher`). The server's own revocations empty the cache at once.
AUTH_CACHE_SECONDS = POLL_SECONDS
#: Maximum number of cached credentials; above it, the oldest is evicted.
MAX_ENTRIES = 10_000


class AuthCache(Generic[Credential]):
    """Caches sessions or keys by the hash of their token. Misses are not cached.

    Args:
        find: reads from the database.
        seconds: TTL. 0, which disables caching, if other servers use the database: a revocation by one of them must
            hold for all.
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
        self._entries: dict[str, tuple[Credential, float]] = {}  # with its expiry time
        self._generation = 0

    async def find(self, token_hash: str) -> Credential | None:
        """Returns the cached or stored credential; None if there is none. Raises what ``find`` raises."""
        found, until = self._entries.get(token_hash, (None, 0.0))
        if found is not None and self._clock() < until:
            return found
        generation, asked_at = self._generation, self._clock()
        found = await self._find(token_hash)
        self._entries.pop(token_hash, None)
        # A result read before a revocation must not be cached after it.
        if found is not None and generation == self._generation:
            self._entries[token_hash] = found, asked_at + self._seconds
            if len(self._entries) > MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
        return found

    def invalidate(self) -> None:
        """Empties the cache after a revocation or a change of role."""
        self._generation += 1
        self._entries.clear()
