"""Messages that a program hands in for a contact, at once and again, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from app.domain.cases import REOPEN_DAYS
from app.errors import Conflict, NotAllowed, NotFound
from app.services.container import Services
from app.store.cases.received import NamedContact
from app.store.db.case_models import SupportCase
from tests.app.store.cases.support import open_desk

EVA = NamedContact(external_id="eva@example.org", email="eva@example.org")


async def test_a_new_contacts_message_that_comes_several_times_at_once_is_stored_once(services: Services) -> None:
    desk = await open_desk(services, bot=False)
    received = desk.cases.received
    async with asyncio.timeout(60):
        stored = await asyncio.gather(
            *(received.receive(desk.ann, desk.inbox.id, EVA, "Where?", client_id="m1") for _ in range(6)),
            *(received.receive(desk.bob, desk.inbox.id, EVA, "Hello?", client_id="m2") for _ in range(2)),
        )
    assert len({message.id for message, _ in stored}) == 2
    assert len({case.id for _, case in stored}) == 1
    opened = await desk.cases.details.get(desk.ann, stored[0][1].id)
    assert sorted(message.text for message in opened.messages) == ["Hello?", "Where?"]
    case_id = opened.case.id
    async with asyncio.timeout(60):
        again, _, _ = await asyncio.gather(
            asyncio.gather(*(received.receive_in(desk.ann, case_id, "And?", client_id="m3") for _ in range(4))),
            desk.cases.agents.resolve(desk.bob, case_id),
            received.receive(desk.bob, desk.inbox.id, EVA, "Still there", client_id="m4"),
        )
    assert len({message.id for message, _ in again}) == 1
    with pytest.raises(Conflict):
        await received.receive_in(desk.ann, case_id, "Other words", client_id="m3")


async def test_only_agents_of_the_inbox_hand_messages_in(services: Services) -> None:
    desk = await open_desk(services, bot=False)
    _, case = await desk.cases.received.receive(desk.admin, desk.inbox.id, EVA, "Where?", client_id="m1")
    for user, refusal in ((desk.viewer, NotAllowed), (desk.stranger, NotFound), (desk.inbox.user_id, NotFound)):
        with pytest.raises(refusal):
            await desk.cases.received.receive(user, desk.inbox.id, EVA, "Mine", client_id="m2")
        with pytest.raises(refusal):
            await desk.cases.received.receive_in(user, case.id, "Mine", client_id="m2")


async def test_a_case_that_was_merged_names_the_one_to_write_to(services: Services) -> None:
    desk = await open_desk(services, bot=False)
    _, first = await desk.cases.received.receive(desk.ann, desk.inbox.id, EVA, "Where?", client_id="m1")
    await desk.cases.agents.resolve(desk.ann, first.id)
    long_ago = update(SupportCase).where(SupportCase.id == first.id)
    resolved_at = datetime.now(UTC) - timedelta(days=REOPEN_DAYS + 1)
    await desk.database.write(lambda session: session.execute(long_ago.values(resolved_at=resolved_at)))
    _, second = await desk.cases.received.receive(desk.ann, desk.inbox.id, EVA, "And?", client_id="m2")
    assert second.id != first.id
    await desk.cases.agents.merge(desk.ann, first.id, second.id)
    with pytest.raises(Conflict, match=f"POST /api/cases/{second.id}/messages"):
        await desk.cases.received.receive_in(desk.ann, first.id, "Still there?", client_id="m3")
