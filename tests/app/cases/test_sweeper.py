"""Snoozed cases wake once when their time has come, whatever the database does and however many processes look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from app.cases import sweeper
from app.cases.sweeper import sweep_cases
from app.domain.cases import SYSTEM, CaseEventKind, CaseStatus
from app.errors import StorageUnavailable
from app.services.container import Services
from app.store.cases import snoozes as snoozes_module
from app.store.cases.snoozes import Snoozes
from app.store.db.case_models import SupportCase, VisitorToken
from app.store.maintenance.integrity import broken_rules
from testing.waiting import eventually
from tests.app.store.cases.support import SupportDesk, add_visitor, open_desk


@pytest.fixture
async def desk(services: Services) -> SupportDesk:
    return await open_desk(services, bot=False)


async def snoozed_case(desk: SupportDesk) -> str:
    """A case that is snoozed for an hour."""
    visitor = await add_visitor(desk.cases, desk.inbox)
    _, case = await desk.cases.contacts.write(visitor.contact.id, "Hello?")
    await desk.cases.agents.snooze(desk.ann, case.id, datetime.now(UTC) + timedelta(hours=1))
    return case.id


async def let_hours_pass(desk: SupportDesk) -> None:
    earlier = update(SupportCase).where(SupportCase.status == CaseStatus.SNOOZED)
    await desk.database.write(
        lambda session: session.execute(earlier.values(snoozed_until=datetime.now(UTC) - timedelta(minutes=1)))
    )


async def wakes(desk: SupportDesk, case_id: str) -> list[tuple[object, ...]]:
    opened = await desk.cases.details.get(desk.ann, case_id)
    return [(event.actor.kind, opened.case.status) for event in opened.events if event.kind is CaseEventKind.WOKEN]


@asynccontextmanager
async def sweeping(desk: SupportDesk) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(sweep_cases(desk.cases.snoozes, desk.cases.visitors))
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_case_wakes_when_its_time_has_come_and_its_readers_are_told(desk: SupportDesk) -> None:
    due = await snoozed_case(desk)
    await let_hours_pass(desk)
    later = await snoozed_case(desk)
    with desk.cases.signals.watch([due]) as told:
        assert await desk.cases.snoozes.wake_due() == 1
        assert told.is_set()
    assert await wakes(desk, due) == [(SYSTEM.kind, CaseStatus.OPEN)]
    assert await wakes(desk, later) == []
    view = await desk.cases.details.view(desk.ann, due)
    assert view.snoozed_until is None
    assert await desk.cases.snoozes.wake_due() == 0


async def test_processes_that_look_at_once_wake_each_case_once(
    desk: SupportDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snoozes_module, "BATCH", 2)
    cases = [await snoozed_case(desk) for _ in range(7)]
    await let_hours_pass(desk)
    others = [Snoozes(desk.database, desk.cases.signals) for _ in range(3)]
    woken = await asyncio.gather(*(one.wake_due() for one in others))
    # One that finds the next batch locked leaves it to the process that has it.
    assert sum(woken) + await desk.cases.snoozes.wake_due() == 7
    for case_id in cases:
        assert len(await wakes(desk, case_id)) == 1
    assert await desk.database.read(lambda session: broken_rules(session.connection())) == []


async def test_a_contacts_message_and_the_clock_wake_a_case_once(desk: SupportDesk) -> None:
    case_id = await snoozed_case(desk)
    contact = (await desk.cases.details.view(desk.ann, case_id)).contact.id
    await let_hours_pass(desk)
    await asyncio.gather(desk.cases.contacts.write(contact, "Still there?"), desk.cases.snoozes.wake_due())
    assert [status for _, status in await wakes(desk, case_id)] == [CaseStatus.OPEN]


async def test_the_sweeper_goes_on_once_the_database_responds_again(
    desk: SupportDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "WAKE_SECONDS", 0.01)
    failures = 0
    wake_due = desk.cases.snoozes.wake_due

    async def unavailable() -> int:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise StorageUnavailable("The disk is full.")
        return await wake_due()

    monkeypatch.setattr(desk.cases.snoozes, "wake_due", unavailable)
    case_id = await snoozed_case(desk)
    await let_hours_pass(desk)
    async with sweeping(desk) as task:
        while not await wakes(desk, case_id):
            assert not task.done()
            await asyncio.sleep(0.01)
    assert failures >= 3


async def test_the_sweeper_forgets_expired_tokens_at_first_and_every_hour(
    desk: SupportDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "WAKE_SECONDS", 0.01)
    monkeypatch.setattr(sweeper, "FORGET_SECONDS", 0.05)
    deletions = 0
    delete_expired = desk.cases.visitors.delete_expired

    async def counted() -> int:
        nonlocal deletions
        deletions += await delete_expired()
        return deletions

    monkeypatch.setattr(desk.cases.visitors, "delete_expired", counted)
    now = datetime.now(UTC)
    async with sweeping(desk):
        for expected in (1, 2):
            await add_visitor(desk.cases, desk.inbox)
            await desk.database.write(lambda session: session.execute(update(VisitorToken).values(expires_at=now)))
            await eventually(lambda: deletions >= expected)  # noqa: B023 (awaited at once)
