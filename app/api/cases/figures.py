"""Cases API: figures of the desk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import astuple, fields
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from app.api.cases.deps import CasesDep
from app.api.deps import UserId
from app.api.desk.csv_files import csv_response
from app.domain.case_figures import Figures, FiguresReport
from app.domain.usage import Days

router = APIRouter(prefix="/api/cases/figures", tags=["cases"])


async def _days(
    first: Annotated[date, Query(alias="from", description="The first day.")],
    last: Annotated[date, Query(alias="to", description="The last day, included.")],
    zone: Annotated[str, Query(max_length=64, description="Time zone of the days, such as Europe/Berlin.")] = "UTC",
) -> Days:
    return Days(first, last, zone)


DaysDep = Annotated[Days, Depends(_days)]
InboxQuery = Annotated[str | None, Query(max_length=36, description="Only cases of this inbox.")]


@router.get("")
async def get_figures(days: DaysDep, user_id: UserId, cases: CasesDep, inbox: InboxQuery = None) -> FiguresReport:
    """Returns waiting, first reply and resolution times, deflection and satisfaction of a range of days.

    In total, by day, by hour of the day, by agent and by inbox; and the reasons of hand-offs.
    """
    return await cases.figures.report(user_id, days, inbox)


@router.get("/csv", response_class=StreamingResponse)
async def get_figures_csv(
    days: DaysDep, user_id: UserId, cases: CasesDep, inbox: InboxQuery = None
) -> StreamingResponse:
    """Exports the figures as CSV, one line for each day, hour, agent and inbox, and for the reasons of hand-offs."""
    report = await cases.figures.report(user_id, days, inbox)

    async def rows() -> AsyncIterator[Iterable[object]]:
        groups = {
            "total": [report.total],
            "day": report.days,
            "hour": report.hours,
            "agent": report.agents,
            "inbox": report.inboxes,
            "reason": [Figures(name=reason, handed_off=number) for reason, number in report.reasons.items()],
        }
        for group, lines in groups.items():
            for figures in lines:
                yield group, *astuple(figures)

    header = ["by", *(field.name for field in fields(Figures))]
    return csv_response(f"cases {days.first} to {days.last}.csv", header, rows())
