"""Ranks requests so that users share the machine, not requests. Pure Python.

The scheduler serves requests by rank, a time in seconds. A request of no user ranks by its arrival and its priority.
A user's requests take turns: each ranks as if it came later by an hour for every one that the user has in flight
before it. So the first request of each user comes before the second of any, however many somebody sends. When one
ends, those behind it move up, and rank from that moment on, never later than before. And a prompt ranks later by its
length, so that a short question does not wait until ten long ones are read.

Ranks only ever fall, and never below the time at which they are given. Once the clock has passed a request's rank,
nothing new comes before it, and what stands before it ends one after the other: nobody starves. This is start-time
fair queueing (Goyal, Vin, Cheng 1996) with requests as the unit of service.
"""

from __future__ import annotations

from bisect import insort

from engine.request import Request

TURN_SECONDS = 3600.0
"""More than a reply takes: else a user's second request could outrank another user's first."""

PROMPT_TOKEN_SECONDS = 0.01
"""By which a token of the prompt ranks a user's request later, about what it costs a small machine."""


class FairShare:
    """Who has requests in flight. It alone changes ranks."""

    def __init__(self) -> None:
        self._requests: dict[str | None, list[Request]] = {}  # of each user, by rank

    @property
    def has_several_users(self) -> bool:
        return len(self._requests) > 1

    def enter(self, request: Request) -> None:
        """A request is in flight: give it its rank."""
        own = self._requests.setdefault(request.user, [])
        turn = sum([other.priority <= request.priority for other in own])
        request.rank = _rank(request, request.arrival, turn)
        insort(own, request, key=_by_rank)

    def leave(self, request: Request, now: float) -> bool:
        """A request is in flight no more. Returns whether others have moved up."""
        own = self._requests[request.user]
        own.remove(request)
        if not own:
            del self._requests[request.user]
        if request.user is None:
            return False
        moved = False
        for turn, other in enumerate(own):
            rank = _rank(other, max(now, other.arrival), turn)
            if rank < other.rank:
                other.rank = rank
                moved = True
        own.sort(key=_by_rank)
        return moved

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._requests.clear()


def takes_turn_of(request: Request, other: Request) -> bool:
    """Whether a waiting request may have the seat and the blocks of a running one.

    Only of another user's that ranks later by half a turn or more, so not for the length of a prompt or a moment.
    """
    return request.user != other.user and other.rank - request.rank >= TURN_SECONDS / 2


def _rank(request: Request, since: float, turn: int) -> float:
    rank = since + request.delay
    if request.user is not None:
        rank += turn * TURN_SECONDS + request.num_prompt_tokens * PROMPT_TOKEN_SECONDS
    return rank


def _by_rank(request: Request) -> float:
    return request.rank
