"""Who was known a moment ago: the many requests of a page, or of a program, ask the database once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

from app.auth.revocation_watcher import LOOK_SECONDS

Found = TypeVar("Found")

#: What a command ends beside the server is let in for so long still: no longer than answers that are under way go on
#: (see :class:`app.auth.revocation_watcher.IdentityWatch`). What the server itself ends, it forgets at once.
KNOWN_SECONDS = LOOK_SECONDS
_MOST = 10_000


class Known(Generic[Found]):
    """Sessions, or keys, by the hash of their token. Whoever is not known is looked for each time.

    Args:
        find: looks in the database.
        seconds: how long somebody is known. 0 where there are other servers: whom one shuts out, none lets in.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[Found | None]],
        seconds: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._find = find
        self._seconds = seconds
        self._clock = clock
        self._known: dict[str, tuple[Found, float]] = {}  # and until when
        self._times_forgotten = 0

    async def find(self, token_hash: str) -> Found | None:
        """Raises whatever ``find`` raises."""
        found, until = self._known.get(token_hash, (None, 0.0))
        if found is not None and self._clock() < until:
            return found
        times_forgotten, asked_at = self._times_forgotten, self._clock()
        found = await self._find(token_hash)
        self._known.pop(token_hash, None)
        # What was read before somebody was shut out must not be remembered after.
        if found is not None and times_forgotten == self._times_forgotten:
            self._known[token_hash] = found, asked_at + self._seconds
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return found

    def forget(self) -> None:
        """Somebody may not come in any more, or is another by now: everybody is looked for again."""
        self._times_forgotten += 1
        self._known.clear()
