"""The life of a case: its states, and what changes them. Plain data; no I/O.

A case is answered by the bot (``bot``) or by people (``open``), or it waits (``snoozed``) or is over (``resolved``).
Once people have it, the bot never answers in it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from app.errors import Conflict, InvalidInput

MAX_SNOOZE_DAYS = 366
MAX_CLIENT_ID_CHARS = 64
MAX_SUBJECT_CHARS = 200
MAX_PREVIEW_CHARS = 200
REOPEN_DAYS = 14
"""A contact's message within this time after the resolution reopens the case; later it begins another one."""


class CaseStatus(StrEnum):
    BOT = "bot"
    OPEN = "open"
    SNOOZED = "snoozed"
    RESOLVED = "resolved"


class CasePriority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class AuthorKind(StrEnum):
    """Authors of messages, and actors of events."""

    CONTACT = "contact"
    BOT = "bot"
    AGENT = "agent"
    SYSTEM = "system"


class CaseEventKind(StrEnum):
    CREATED = "created"
    HANDED_OFF = "handed_off"
    ASSIGNED = "assigned"
    SNOOZED = "snoozed"
    WOKEN = "woken"
    RESOLVED = "resolved"
    REOPENED = "reopened"
    MERGED = "merged"
    RATED = "rated"
    REPLIED = "replied"  #: by an agent
    PRIORITY = "priority"
    TAGS = "tags"
    MAILED = "mailed"  #: replies were sent to the contact by e-mail
    MAIL_FAILED = "mail_failed"


class HandOffReason(StrEnum):
    """Why people answer a case that the bot answered before."""

    ASKED_FOR_PERSON = "asked_for_person"
    MISSING_KNOWLEDGE = "missing_knowledge"
    POLICY = "policy"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    AGENT_TOOK_OVER = "agent_took_over"


class StaleCase(Conflict):
    """Another person has acted in the case since the caller read it. Nothing was changed."""

    code = "stale_case"


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a message or of an event."""

    kind: AuthorKind
    id: str | None = None  #: of a contact, or of an agent's account


BOT = Actor(AuthorKind.BOT)
SYSTEM = Actor(AuthorKind.SYSTEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseState:
    """The fields of a case that its life changes."""

    status: CaseStatus
    epoch: int
    created_at: datetime
    assignee_id: str | None = None
    handed_off_at: datetime | None = None
    waiting_since: datetime | None = None
    snoozed_until: datetime | None = None
    first_reply_at: datetime | None = None
    resolved_at: datetime | None = None
    merged_into: str | None = None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event before it is stored."""

    kind: CaseEventKind
    actor: Actor
    reason: HandOffReason | None = None
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Transition:
    """What an act makes of a case."""

    state: CaseState
    events: tuple[NewEvent, ...] = ()

    def then(self, following: Transition) -> Transition:
        """Both, one after the other."""
        return Transition(following.state, self.events + following.events)


def new_case(contact: Actor, now: datetime, *, bot: bool) -> Transition:
    """A case that a contact begins. ``bot``: whether the bot answers first."""
    state = CaseState(
        status=CaseStatus.BOT if bot else CaseStatus.OPEN,
        epoch=1,
        created_at=now,
        handed_off_at=None if bot else now,
        waiting_since=None if bot else now,
    )
    return Transition(state, (NewEvent(CaseEventKind.CREATED, contact, details={"bot": bot}),))


def contact_wrote(state: CaseState, contact: Actor, now: datetime, *, bot: bool) -> Transition:
    """A contact's message opens a snoozed or resolved case. The bot gets it back only if no person ever had it.

    Args:
        bot: whether the inbox has a bot.
    """
    if state.status is CaseStatus.BOT:
        return Transition(state)
    if state.status is CaseStatus.RESOLVED:
        if bot and state.handed_off_at is None:
            reopened = replace(state, status=CaseStatus.BOT, resolved_at=None, epoch=state.epoch + 1)
        else:
            reopened = replace(
                state,
                status=CaseStatus.OPEN,
                resolved_at=None,
                waiting_since=now,
                handed_off_at=state.handed_off_at or now,
                epoch=state.epoch + 1,
            )
        return Transition(reopened, (NewEvent(CaseEventKind.REOPENED, contact),))
    waiting = replace(state, waiting_since=state.waiting_since or now)
    if state.status is CaseStatus.SNOOZED:
        return wake(waiting, contact)
    return Transition(waiting)


def agent_wrote(state: CaseState, agent: Actor, now: datetime) -> Transition:
    """An agent's reply takes the case from the bot, wakes it, and ends the waiting. A resolved case stays so."""
    taken = _take_over(state, agent, now)
    waited_from, state = taken.state.waiting_since, taken.state
    details: dict[str, Any] = {}
    if waited_from is not None:
        details["waited_s"] = round(max(0.0, (now - waited_from).total_seconds()), 3)
    if state.first_reply_at is None and state.handed_off_at is not None:
        details["first_reply_s"] = round(max(0.0, (now - state.handed_off_at).total_seconds()), 3)
    woken = state.status is CaseStatus.SNOOZED
    replied = replace(
        state,
        status=CaseStatus.OPEN if woken else state.status,
        snoozed_until=None,
        waiting_since=None,
        first_reply_at=state.first_reply_at or now,
        assignee_id=state.assignee_id or agent.id,
        epoch=state.epoch + 1,
    )
    events: tuple[NewEvent, ...] = (NewEvent(CaseEventKind.WOKEN, agent),) if woken else ()
    if state.assignee_id is None:
        events += (NewEvent(CaseEventKind.ASSIGNED, agent, details={"user_id": agent.id}),)
    return taken.then(Transition(replied, (*events, NewEvent(CaseEventKind.REPLIED, agent, details=details))))


def hand_off(state: CaseState, actor: Actor, reason: HandOffReason, now: datetime) -> Transition:
    """People answer from now on. A case that they have already stays as it is; one that is over is opened."""
    if state.status in (CaseStatus.OPEN, CaseStatus.SNOOZED) and actor.kind is not AuthorKind.CONTACT:
        return Transition(state)
    if state.status is CaseStatus.OPEN:
        return Transition(replace(state, waiting_since=state.waiting_since or now))
    if state.status is CaseStatus.SNOOZED:
        return wake(replace(state, waiting_since=state.waiting_since or now), actor)
    is_over = state.status is CaseStatus.RESOLVED
    events: tuple[NewEvent, ...] = (NewEvent(CaseEventKind.REOPENED, actor),) if is_over else ()
    was_bots = state.handed_off_at is None
    opened = replace(
        state,
        status=CaseStatus.OPEN,
        handed_off_at=state.handed_off_at or now,
        waiting_since=now,
        resolved_at=None,
        epoch=state.epoch + 1,
    )
    if was_bots:
        events += (NewEvent(CaseEventKind.HANDED_OFF, actor, reason),)
    return Transition(opened, events)


def may_bot_write(state: CaseState, epoch: int) -> bool:
    """Whether the bot may write, which read the case at ``epoch``."""
    return state.status is CaseStatus.BOT and state.epoch == epoch


def assign(state: CaseState, agent: Actor, user_id: str | None, now: datetime) -> Transition:
    """Gives the case to a user or to none. One that the bot has goes to people, unless no user is named."""
    if user_id == state.assignee_id:
        return Transition(state)
    taken = _take_over(state, agent, now) if user_id is not None else Transition(state)
    assigned = replace(taken.state, assignee_id=user_id, epoch=taken.state.epoch + 1)
    return taken.then(Transition(assigned, (NewEvent(CaseEventKind.ASSIGNED, agent, details={"user_id": user_id}),)))


def snooze(state: CaseState, agent: Actor, until: datetime, now: datetime) -> Transition:
    """Puts the case aside until a moment, or until the contact writes.

    Raises:
        InvalidInput: the moment has passed, or is too far away.
        Conflict: the case is resolved.
    """
    if until <= now:
        raise InvalidInput("This moment has passed. Choose a later one.")
    if until > now + timedelta(days=MAX_SNOOZE_DAYS):
        raise InvalidInput(f"A case can be snoozed for at most {MAX_SNOOZE_DAYS} days. Choose an earlier moment.")
    if state.status is CaseStatus.RESOLVED:
        raise Conflict("This case is resolved. Reopen it first.")
    taken = _take_over(state, agent, now)
    snoozed = replace(taken.state, status=CaseStatus.SNOOZED, snoozed_until=until, epoch=taken.state.epoch + 1)
    event = NewEvent(CaseEventKind.SNOOZED, agent, details={"until": until.isoformat()})
    return taken.then(Transition(snoozed, (event,)))


def wake(state: CaseState, actor: Actor) -> Transition:
    """Opens a snoozed case: its time has come, or its contact has written."""
    if state.status is not CaseStatus.SNOOZED:
        return Transition(state)
    opened = replace(state, status=CaseStatus.OPEN, snoozed_until=None, epoch=state.epoch + 1)
    return Transition(opened, (NewEvent(CaseEventKind.WOKEN, actor),))


def resolve(state: CaseState, actor: Actor, now: datetime) -> Transition:
    """Ends the case. Its event says whether no person answered it, and how long it took."""
    if state.status is CaseStatus.RESOLVED:
        return Transition(state)
    details = {
        "by_bot": state.handed_off_at is None,
        "resolution_s": round(max(0.0, (now - state.created_at).total_seconds()), 3),
    }
    resolved = replace(
        state,
        status=CaseStatus.RESOLVED,
        resolved_at=now,
        waiting_since=None,
        snoozed_until=None,
        epoch=state.epoch + 1,
    )
    return Transition(resolved, (NewEvent(CaseEventKind.RESOLVED, actor, details=details),))


def reopen(state: CaseState, agent: Actor, now: datetime) -> Transition:
    """Opens a resolved case for people.

    Raises:
        Conflict: it is part of another case by now.
    """
    if state.merged_into is not None:
        raise Conflict("This case was merged into another one. Open that one instead.")
    if state.status is not CaseStatus.RESOLVED:
        return Transition(state)
    opened = replace(
        state,
        status=CaseStatus.OPEN,
        resolved_at=None,
        handed_off_at=state.handed_off_at or now,
        epoch=state.epoch + 1,
    )
    return Transition(opened, (NewEvent(CaseEventKind.REOPENED, agent),))


def merge(state: CaseState, agent: Actor, into: str, now: datetime) -> Transition:
    """Ends the case as a part of another one."""
    merged = replace(
        state,
        status=CaseStatus.RESOLVED,
        merged_into=into,
        resolved_at=state.resolved_at or now,
        waiting_since=None,
        snoozed_until=None,
        handed_off_at=state.handed_off_at or now,
        epoch=state.epoch + 1,
    )
    return Transition(merged, (NewEvent(CaseEventKind.MERGED, agent, details={"into": into}),))


def require_current(state: CaseState, epoch: int | None) -> None:
    """Refuses a command of a caller who read the case at another epoch. None: the caller does not mind.

    Raises:
        StaleCase: another person has acted since.
    """
    if epoch is not None and epoch != state.epoch:
        raise StaleCase("This case has changed since you opened it. Look at it again, then repeat what you did.")


def _take_over(state: CaseState, agent: Actor, now: datetime) -> Transition:
    """An agent takes a case from the bot: what is left of it is people's."""
    if state.handed_off_at is not None:
        return Transition(state)
    taken = replace(
        state,
        status=CaseStatus.OPEN if state.status is CaseStatus.BOT else state.status,
        handed_off_at=now,
        epoch=state.epoch + 1,
    )
    return Transition(taken, (NewEvent(CaseEventKind.HANDED_OFF, agent, HandOffReason.AGENT_TOOK_OVER),))
