"""Divides seats and prompt tokens among users, not among requests. Pure Python.

The order is round robin: the first request of each user, then the second of each, and so on; among requests with the
same number the user who was served the fewest tokens comes first. These are the virtual token counters of Sheng et al.,
"Fairness in Serving Large Language Models" (OSDI 2024): a user who comes back starts at the lowest counter of those who
are there, so nobody saves up a turn. Within a user requests keep their rank. With one user the order is the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.request import PRIORITY_SECONDS, Request

DIVIDES = False
"""Off: where blocks are scarce, requests of several users can take them from one another without an end. Until that is
mended requests are served by rank, whoever sends them."""


class FairShare:
    """Who is there, and how much each has been served. Requests without a user count as one user's."""

    def __init__(self) -> None:
        self._num_requests: Counter[str | None] = Counter()  # in flight
        self._served: dict[str | None, int] = {}  # tokens, of users with requests in flight

    @property
    def has_several_users(self) -> bool:
        return DIVIDES and len(self._num_requests) > 1

    def enter(self, request: Request) -> None:
        """A request is in flight."""
        user = request.user
        if user not in self._served:
            self._served[user] = min(self._served.values(), default=0)
        self._num_requests[user] += 1

    def leave(self, request: Request) -> None:
        """A request is in flight no more."""
        user = request.user
        self._num_requests[user] -= 1
        if not self._num_requests[user]:
            del self._num_requests[user], self._served[user]

    def charge(self, request: Request, num_tokens: int) -> None:
        """A step computes so many tokens of a request."""
        self._served[request.user] += num_tokens

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._num_requests.clear()
        self._served.clear()

    def turns(self, requests: Iterable[Request], now: float) -> dict[str, float]:
        """The turn of each request by its id: how many of its user's come before it.

        A priority above 0 adds as many turns, and one fewer for each minute that the request has waited; one below 0
        takes as many.
        """
        seen: Counter[str | None] = Counter()
        turns: dict[str, float] = {}
        for request in sorted(requests, key=lambda request: request.rank):
            later = float(request.priority)
            if later > 0:
                later = max(0.0, (request.rank - now) / PRIORITY_SECONDS)
            turns[request.id] = seen[request.user] + later
            seen[request.user] += 1
        return turns

    def in_order(self, requests: Sequence[Request], turns: dict[str, float]) -> list[Request]:
        """The requests by turn, then by what their users were served, then by rank."""
        return sorted(requests, key=lambda one: (turns[one.id], self._served[one.user], one.rank))
