"""Ranks requests so that users share the machine, not requests. Pure Python.

The scheduler serves requests by rank, a time in seconds. A request of no user ranks by its arrival and its priority.
A user's requests take turns: each ranks as if it came later by an hour for every one that the user has in flight
before it. So the first request of each user comes before the second of any, however many one of them sends. When a
request ends, those behind it move up, and rank from that moment on, never later than before. And a prompt ranks later
by its length, so that a short question does not wait until ten long ones are read.

A user's ranks only fall, and priorities below 0 aside, never below the time at which they are given. Once the clock has
passed a rank, nothing new comes before it, and what stands before it ends one after the other: nobody starves.
Priority decides which of a user's waiting requests has which of the user's ranks, and makes a new rank later or
earlier. Where a priority of more than an hour puts a waiting request before its own user's running ones, it waits for
these, and other users' requests pass it.

Background requests rank behind all others and give way to each of them. They are no turn of their user; among
themselves they take turns in the same way.

This is start-time fair queueing (Goyal, Vin, Cheng 1996) with requests as the unit of service.
"""

from __future__ import annotations

from bisect import insort

from engine.scheduling.request import Request, RequestStatus

TURN_SECONDS = 3600.0
"""Longer than a reply takes: a turn that has been in flight for so long comes before another user's new request."""

PROMPT_TOKEN_SECONDS = 0.01
"""By which a token of the prompt ranks a user's request later: about the time that a small machine takes to read it."""

MAX_PROMPT_SECONDS = 60.0
"""By which a prompt ranks a user's request later at most, however long it is."""


_Queue = tuple[str | None, bool]  # a user's requests in the foreground, or in the background


class FairShare:
    """Who has requests in flight. It alone changes ranks and turns. Requests without a user count as one user's."""

    def __init__(self) -> None:
        self._requests: dict[_Queue, list[Request]] = {}  # by rank
        self._to_move: set[_Queue] = set()  # of which a request has ended

    @property
    def has_several_users(self) -> bool:
        return len({user for user, _is_background in self._requests}) > 1

    @property
    def has_background(self) -> bool:
        return any(is_background for _user, is_background in self._requests)

    def add(self, request: Request, now: float) -> bool:
        """A request is in flight: give it its rank. Returns whether others' ranks have changed."""
        own = self._requests.setdefault(_queue(request), [])
        request.turn = len(own) if request.user is not None else 0
        request.rank = _rank(request, max(now, request.arrival) if request.turn else request.arrival)
        insort(own, request, key=_by_rank)
        return request.turn > 0 and _reassign_ranks(own)

    def remove(self, request: Request) -> None:
        """A request is in flight no more. Call :meth:`move_up` before the next step is planned."""
        queue = _queue(request)
        own = self._requests[queue]
        own.remove(request)
        if not own:
            del self._requests[queue]
        if request.user is not None:
            self._to_move.add(queue)

    def move_up(self, now: float) -> bool:
        """Let the requests of users of whom one has ended have earlier turns. Returns whether ranks have changed."""
        changed = False
        for queue in self._to_move:
            for turn, request in enumerate(self._requests.get(queue, ())):
                request.turn = turn
                rank = _rank(request, max(now, request.arrival))
                if rank < request.rank:
                    request.rank = rank
                    changed = True
            if queue in self._requests:
                self._requests[queue].sort(key=_by_rank)
                _number(self._requests[queue])
        self._to_move.clear()
        return changed

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._requests.clear()
        self._to_move.clear()


def can_preempt(request: Request, other: Request) -> bool:
    """Whether a waiting request may have the seat and the blocks of a running one.

    That is a later turn of another user, or a background request where the waiting one is none.
    """
    if request.is_background != other.is_background:
        return other.is_background
    return request.user != other.user and other.turn > request.turn and other.rank > request.rank


def _queue(request: Request) -> _Queue:
    return request.user, request.is_background


def _rank(request: Request, since: float) -> float:
    rank = since + request.delay
    if request.user is not None:
        reading = min(request.num_prompt_tokens * PROMPT_TOKEN_SECONDS, MAX_PROMPT_SECONDS)
        rank += request.turn * TURN_SECONDS + reading
    return rank


def _reassign_ranks(own: list[Request]) -> bool:
    """Give the ranks of a user's waiting requests to the same requests by urgency; those that run keep theirs."""
    waiting = [request for request in own if request.status is RequestStatus.WAITING]
    urgent = sorted(waiting, key=_urgency)
    changed = urgent != waiting
    if changed:
        for request, rank in zip(urgent, [request.rank for request in waiting], strict=True):
            request.rank = rank
        own.sort(key=_by_rank)
    _number(own)
    return changed


def _number(own: list[Request]) -> None:
    for turn, request in enumerate(own):
        request.turn = turn


def _urgency(request: Request) -> float:
    return request.arrival + request.delay


def _by_rank(request: Request) -> float:
    return request.rank
