"""Ranks requests so that the machine is shared fairly among users, not among requests. Pure Python.

The scheduler serves requests in order of rank: seconds on the engine's clock, lowest first.

A request without a user ranks by its arrival time and its priority. The requests of one user are numbered by *turn*:
turn 0 comes first, and each further turn ranks an hour later. So the first request of every user comes before the
second of any user, however many requests one user sends. When a request ends, the user's later requests move up by
one turn; their new rank counts from that moment and is never later than the old one. A long prompt also ranks later,
so that a short question does not wait for ten long prompts.

No request starves. A user's ranks only decrease, and unless the priority is negative, a new rank is never below the
current time (for turn 0, the request's arrival). So once the clock has passed a rank, no new request comes before it,
and the requests before it end one after the other.

Priority makes a new rank earlier or later, and decides which of a user's waiting requests gets which of that user's
ranks. A priority worth more than an hour can rank a waiting request before running requests of the same user; it
waits for those, and other users' requests pass it.

Background requests rank after all others and can be preempted by each of them. They do not count as turns of their
user; among themselves they take turns in the same way.

This is start-time fair queueing (Goyal, Vin, Cheng 1996) with requests as the unit of service.
"""

from __future__ import annotations

from bisect import insort

from engine.scheduling.request import Request, RequestStatus

TURN_SECONDS = 3600.0
"""Seconds between the ranks of a user's consecutive turns. Longer than a reply takes: a later turn that has been in
flight for this long comes before another user's new request."""

PROMPT_TOKEN_SECONDS = 0.01
"""Seconds by which each prompt token ranks a user's request later: about the prefill time on a small machine."""

MAX_PROMPT_SECONDS = 60.0
"""Upper bound, in seconds, on how much later a prompt's length ranks a user's request."""


_Queue = tuple[str | None, bool]  # user, and whether these are the user's background requests


class FairShare:
    """Tracks each user's requests in flight; only this class changes their rank and turn.

    Requests without a user count as one user's.
    """

    def __init__(self) -> None:
        self._requests: dict[_Queue, list[Request]] = {}  # by rank
        self._to_move: set[_Queue] = set()  # queues in which a request has ended since the last :meth:`advance_turns`

    @property
    def has_several_users(self) -> bool:
        """Whether requests of more than one user are in flight."""
        return len({user for user, _is_background in self._requests}) > 1

    @property
    def has_background(self) -> bool:
        """Whether background requests are in flight."""
        return any(is_background for _user, is_background in self._requests)

    def add(self, request: Request, now: float) -> bool:
        """Adds a request and assigns its rank. Returns whether the ranks of other requests changed."""
        own = self._requests.setdefault(_queue(request), [])
        request.turn = len(own) if request.user is not None else 0
        request.rank = _rank(request, max(now, request.arrival) if request.turn else request.arrival)
        insort(own, request, key=_by_rank)
        return request.turn > 0 and _reassign_ranks(own)

    def remove(self, request: Request) -> None:
        """Removes a request that has ended. Call :meth:`advance_turns` before the next step is planned."""
        queue = _queue(request)
        own = self._requests[queue]
        own.remove(request)
        if not own:
            del self._requests[queue]
        if request.user is not None:
            self._to_move.add(queue)

    def advance_turns(self, now: float) -> bool:
        """Moves up the requests of users with a request that has ended. Returns whether any rank changed."""
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
                _assign_turns(self._requests[queue])
        self._to_move.clear()
        return changed

    def clear(self) -> None:
        """Forgets all requests."""
        self._requests.clear()
        self._to_move.clear()


def can_preempt(request: Request, other: Request) -> bool:
    """Whether a waiting request may preempt a running one (``other``).

    It may if the running one is a later turn of another user with a later rank, or if only the running one is a
    background request.
    """
    if request.is_background != other.is_background:
        return other.is_background
    return request.user != other.user and other.turn > request.turn and other.rank > request.rank


def _queue(request: Request) -> _Queue:
    return request.user, request.is_background


def _rank(request: Request, since: float) -> float:
    """Returns the rank of a request whose turn counts from ``since``."""
    rank = since + request.rank_offset_seconds
    if request.user is not None:
        reading = min(request.num_prompt_tokens * PROMPT_TOKEN_SECONDS, MAX_PROMPT_SECONDS)
        rank += request.turn * TURN_SECONDS + reading
    return rank


def _reassign_ranks(own: list[Request]) -> bool:
    """Reassigns the ranks of a user's waiting requests among them, most urgent first; running ones keep theirs."""
    waiting = [request for request in own if request.status is RequestStatus.WAITING]
    urgent = sorted(waiting, key=_urgency)
    changed = urgent != waiting
    if changed:
        for request, rank in zip(urgent, [request.rank for request in waiting], strict=True):
            request.rank = rank
        own.sort(key=_by_rank)
    _assign_turns(own)
    return changed


def _assign_turns(own: list[Request]) -> None:
    """Sets the turns of a user's requests, which are sorted by rank."""
    for turn, request in enumerate(own):
        request.turn = turn


def _urgency(request: Request) -> float:
    return request.arrival + request.rank_offset_seconds


def _by_rank(request: Request) -> float:
    return request.rank
