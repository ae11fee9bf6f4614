"""Figures of a desk, computed from the events of its cases. Plain data; no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from app.domain.cases import AuthorKind, CaseEventKind

COUNTED = (
    CaseEventKind.CREATED,
    CaseEventKind.HANDED_OFF,
    CaseEventKind.REPLIED,
    CaseEventKind.RESOLVED,
    CaseEventKind.RATED,
)
"""The kinds of events that figures are computed from."""


@dataclass(frozen=True, slots=True)
class CountedEvent:
    """What figures need of an event."""

    case_id: str
    inbox_id: str
    kind: CaseEventKind
    reason: str | None
    actor_kind: AuthorKind
    actor_id: str | None
    at: datetime
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a day, an hour of the day, an agent, an inbox, or all together. Times are in seconds."""

    name: str  #: such as 2026-11-26, or the agent's name
    id: str | None = None  #: of the agent or the inbox
    cases: int = 0  #: begun; of an agent: replied to
    handed_off: int = 0  #: from the bot to people; of an agent: taken over
    replies: int = 0  #: of agents
    resolved: int = 0  #: resolutions: a case that is reopened may have several
    resolved_by_bot: int = 0  #: without a person's reply
    deflection: float | None = None  #: the share of resolutions without a person's reply
    first_reply_s_p50: float | None = None  #: from the hand-off to a person's first reply
    first_reply_s_p90: float | None = None
    waiting_s_p50: float | None = None  #: from a contact's message to a person's reply
    waiting_s_p90: float | None = None
    resolution_s_p50: float | None = None  #: from the case's beginning to its resolution
    satisfaction: float | None = None  #: mean of the ratings, 1 to 5
    ratings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresReport:
    """All figures of a range of days."""

    total: Figures
    days: Sequence[Figures]
    hours: Sequence[Figures]  #: 24, of all days together
    agents: Sequence[Figures]
    inboxes: Sequence[Figures]
    reasons: Mapping[str, int]  #: hand-offs by reason, the most frequent first


def report_on(
    events: Iterable[CountedEvent],
    days: Sequence[str],
    zone: ZoneInfo,
    *,
    agents: Mapping[str, str],
    inboxes: Mapping[str, str],
) -> FiguresReport:
    """Computes the figures.

    Args:
        events: in the order of time.
        days: the names of the days, each in the report.
        agents: names by id. One that was deleted is missing, and is left out.
        inboxes: likewise; each is in the report.
    """
    total = _Tally()
    by_day = {name: _Tally() for name in days}
    by_hour = [_Tally() for _ in range(24)]
    by_agent: dict[str, _Tally] = {}
    by_inbox = {id: _Tally() for id in inboxes}
    reasons: Counter[str] = Counter()
    for event in events:
        local = event.at.astimezone(zone)
        tallies = [total, by_hour[local.hour]]
        tallies += [tally for tally in (by_day.get(local.date().isoformat()), by_inbox.get(event.inbox_id)) if tally]
        for tally in tallies:
            tally.add(event)
        if event.kind is CaseEventKind.HANDED_OFF:
            reasons[event.reason or "unknown"] += 1
        agent = event.details.get("user_id") if event.kind is CaseEventKind.RATED else event.actor_id
        is_agents = event.kind is CaseEventKind.RATED or event.actor_kind is AuthorKind.AGENT
        if agent is not None and agent in agents and is_agents:
            by_agent.setdefault(agent, _Tally()).add(event, of_agent=True)
    return FiguresReport(
        total=total.figures("all"),
        days=[tally.figures(name) for name, tally in by_day.items()],
        hours=[tally.figures(f"{hour:02}") for hour, tally in enumerate(by_hour)],
        agents=_named(by_agent, agents),
        inboxes=_named(by_inbox, inboxes),
        reasons=dict(reasons.most_common()),
    )


def _named(tallies: Mapping[str, _Tally], names: Mapping[str, str]) -> list[Figures]:
    found = [tally.figures(names[id], id) for id, tally in tallies.items()]
    return sorted(found, key=lambda figures: (figures.name.casefold(), figures.id or ""))


@dataclass(slots=True)
class _Tally:
    cases: int = 0
    replied_cases: set[str] = field(default_factory=set)
    handed_off: int = 0
    replies: int = 0
    resolved: int = 0
    resolved_by_bot: int = 0
    first_replies: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    resolutions: list[float] = field(default_factory=list)
    scores: dict[str, int] = field(default_factory=dict)  # by case: a rating may be changed

    def add(self, event: CountedEvent, *, of_agent: bool = False) -> None:
        details = event.details
        match event.kind:
            case CaseEventKind.CREATED:
                self.cases += 1
            case CaseEventKind.HANDED_OFF:
                self.handed_off += 1
            case CaseEventKind.REPLIED:
                self.replies += 1
                self.replied_cases.add(event.case_id)
                self.first_replies += _seconds(details.get("first_reply_s"))
                self.waits += _seconds(details.get("waited_s"))
            case CaseEventKind.RESOLVED:
                self.resolved += 1
                self.resolved_by_bot += bool(details.get("by_bot"))
                self.resolutions += _seconds(details.get("resolution_s"))
            case CaseEventKind.RATED:
                self.scores[event.case_id] = details["score"]
        if of_agent:
            self.cases = len(self.replied_cases)

    def figures(self, name: str, id: str | None = None) -> Figures:
        return Figures(
            name=name,
            id=id,
            cases=self.cases,
            handed_off=self.handed_off,
            replies=self.replies,
            resolved=self.resolved,
            resolved_by_bot=self.resolved_by_bot,
            deflection=round(self.resolved_by_bot / self.resolved, 4) if self.resolved else None,
            first_reply_s_p50=_percentile(self.first_replies, 0.5),
            first_reply_s_p90=_percentile(self.first_replies, 0.9),
            waiting_s_p50=_percentile(self.waits, 0.5),
            waiting_s_p90=_percentile(self.waits, 0.9),
            resolution_s_p50=_percentile(self.resolutions, 0.5),
            satisfaction=round(sum(self.scores.values()) / len(self.scores), 2) if self.scores else None,
            ratings=len(self.scores),
        )


def _seconds(value: object) -> list[float]:
    return [float(value)] if isinstance(value, int | float) else []


def _percentile(values: list[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of them do not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
