"""Desk API: usage statistics by day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import astuple, fields
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from app.api.deps import ServicesDep
from app.api.desk.csv_files import csv_response
from app.domain.usage import Days, Usage, UsageReport

router = APIRouter(prefix="/api/desk/usage", tags=["desk"])


async def _days(
    first: Annotated[date, Query(description="The first day.")],
    last: Annotated[date, Query(description="The last day, included.")],
    zone: Annotated[str, Query(max_length=64, description="Time zone of the days, such as Europe/Berlin.")] = "UTC",
) -> Days:
    return Days(first, last, zone)


DaysDep = Annotated[Days, Depends(_days)]


@router.get("")
async def get_usage(days: DaysDep, services: ServicesDep) -> UsageReport:
    """Returns conversations, messages, tokens, speed and ratings of a range of days, in total and by day."""
    return await services.desk.usage.report(days)


@router.get("/csv", response_class=StreamingResponse)
async def get_usage_csv(days: DaysDep, services: ServicesDep) -> StreamingResponse:
    """Exports the usage of a range of days as CSV, one line per day."""
    report = await services.desk.usage.report(days)

    async def rows() -> AsyncIterator[Iterable[object]]:
        for day in report.days:
            yield astuple(day)

    header = ["day", *(field.name for field in fields(Usage) if field.name != "name")]
    return csv_response(f"usage {days.first} to {days.last}.csv", header, rows())
