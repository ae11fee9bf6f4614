"""Contacts and their tokens: how a visitor becomes a known customer, and when a token ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from app.domain.cases import AuthorKind
from app.domain.ids import new_id
from app.errors import NotFound
from app.services.container import Services
from app.store.cases import visitors as visitors_module
from app.store.cases.visitors import TOKEN_DAYS, UNSENT_DAYS, Visitor
from app.store.db.case_models import CaseAttachment, Contact, VisitorToken
from tests.app.store.cases.support import SupportDesk, open_desk


@pytest.fixture
async def desk(services: Services) -> SupportDesk:
    return await open_desk(services, bot=False)


async def add(desk: SupportDesk, token: str, **who: Any) -> Visitor:
    return await desk.cases.visitors.create(desk.inbox.id, token, **who)


async def contact_of(desk: SupportDesk, token: str) -> str | None:
    found = await desk.cases.visitors.find(token)
    return found.contact.id if found is not None else None


async def change(desk: SupportDesk, table: Any, **values: Any) -> None:
    await desk.database.write(lambda session: session.execute(update(table).values(**values)))


async def test_a_visitor_who_proves_to_be_a_customer_keeps_the_case_under_a_new_token(desk: SupportDesk) -> None:
    visitor = await add(desk, "old", language="de")
    await desk.cases.contacts.write(visitor.contact.id, "Where is my parcel?")
    known = await desk.cases.visitors.identify("old", "new", external_id="c7", name="Ada", email="ada@shop.example")
    assert known is not None
    assert (known.contact.id, known.contact.verified) == (visitor.contact.id, True)
    assert (known.contact.name, known.contact.email, known.contact.language) == ("Ada", "ada@shop.example", "de")
    assert (await contact_of(desk, "old"), await contact_of(desk, "new")) == (None, visitor.contact.id)
    assert known.inbox_user_id == visitor.inbox_user_id
    assert await desk.cases.visitors.identify("old", "newer", external_id="c7") is None
    assert await contact_of(desk, "newer") is None


async def test_what_a_visitor_did_before_is_the_known_customers(desk: SupportDesk) -> None:
    known = await add(desk, "phone", external_id="c7", name="Ada")
    visitor = await add(desk, "browser")
    file = await desk.cases.attachments.add(visitor.contact.id, "a.txt", "text/plain", b"a")
    _, case = await desk.cases.contacts.write(visitor.contact.id, "Hello?", client_id="m", attachments=[file.id])
    await desk.cases.contacts.rate(visitor.contact.id, 4)
    await desk.cases.agents.reply(desk.ann, case.id, "Hello, you.")

    identified = await desk.cases.visitors.identify("browser", "new", external_id="c7")
    assert identified is not None
    assert identified.contact.id == known.contact.id
    assert await contact_of(desk, "browser") is None
    assert await contact_of(desk, "phone") == await contact_of(desk, "new") == known.contact.id
    opened = await desk.cases.details.get(desk.ann, case.id)
    assert opened.case.contact.id == known.contact.id
    by_contact = [one for one in opened.messages if one.author is AuthorKind.CONTACT]
    assert [(one.author_id, one.author_name, len(one.attachments)) for one in by_contact] == [
        (known.contact.id, "Ada", 1)
    ]
    acts = [event for event in opened.events if event.actor.kind is AuthorKind.CONTACT]
    assert [(event.kind, event.actor.id, event.actor_name) for event in acts] == [
        ("created", known.contact.id, "Ada"),
        ("rated", known.contact.id, "Ada"),
    ]
    assert {event.actor.id for event in opened.events} == {known.contact.id, desk.ann}
    assert await desk.cases.contacts.rating(known.contact.id, case.id) is not None
    # Sent again after the answer was lost, it is still one message.
    again, _ = await desk.cases.contacts.write(known.contact.id, "Hello?", client_id="m")
    assert again.id == by_contact[0].id
    with pytest.raises(NotFound):
        await desk.cases.contacts.write(visitor.contact.id, "Am I here?")


async def test_another_customer_on_the_same_computer_finds_nothing_of_the_first(desk: SupportDesk) -> None:
    first = await add(desk, "first", external_id="c7")
    await add(desk, "phone", external_id="c7")
    _, case = await desk.cases.contacts.write(first.contact.id, "My secret")
    other = await desk.cases.visitors.identify("first", "second", external_id="c8")
    assert other is not None
    assert other.contact.id != first.contact.id
    assert await desk.cases.contacts.current(other.contact.id) is None
    assert (await desk.cases.details.get(desk.ann, case.id)).case.contact.id == first.contact.id
    assert await contact_of(desk, "first") is None
    assert await contact_of(desk, "phone") == first.contact.id  # the first customer's other browser


async def test_of_two_tabs_that_prove_it_at_once_one_gets_the_token(desk: SupportDesk) -> None:
    visitor = await add(desk, "old")
    await desk.cases.contacts.write(visitor.contact.id, "Hello?")
    both = await asyncio.gather(
        *(desk.cases.visitors.identify("old", f"new {number}", external_id="c7") for number in range(2))
    )
    assert sorted(one is None for one in both) == [False, True]
    assert await contact_of(desk, "old") is None


async def test_two_browsers_that_prove_it_at_once_are_one_contact(desk: SupportDesk) -> None:
    for token in ("a", "b"):
        visitor = await add(desk, token)
        await desk.cases.contacts.write(visitor.contact.id, f"Hello from {token}")
    both = await asyncio.gather(
        *(desk.cases.visitors.identify(token, f"new {token}", external_id="c7") for token in ("a", "b"))
    )
    assert len({one.contact.id for one in both if one is not None}) == 1
    assert None not in both


async def test_a_failed_identification_changes_nothing(desk: SupportDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = await add(desk, "old")

    def fails(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(visitors_module, "_add_token", fails)
    with pytest.raises(RuntimeError):
        await desk.cases.visitors.identify("old", "new", external_id="c7")
    found = await desk.cases.visitors.find("old")
    assert found is not None
    assert (found.contact.id, found.contact.verified) == (visitor.contact.id, False)


async def test_a_token_ends_with_its_time_and_is_not_prolonged(desk: SupportDesk) -> None:
    visitor = await add(desk, "old")
    assert visitor.expires_at - datetime.now(UTC) > timedelta(days=TOKEN_DAYS - 1)
    await change(desk, VisitorToken, expires_at=datetime.now(UTC) + timedelta(days=1))
    assert await contact_of(desk, "old") == visitor.contact.id
    await change(desk, VisitorToken, expires_at=datetime.now(UTC))
    assert await contact_of(desk, "old") is None
    assert await desk.cases.visitors.identify("old", "new", external_id="c7") is None


async def test_expired_tokens_go_with_the_contacts_that_have_no_case(desk: SupportDesk) -> None:
    ids = {}
    for token in ("silent", "wrote", "stays"):
        ids[token] = (await add(desk, token)).contact.id
    await desk.cases.contacts.write(ids["wrote"], "Hello?")
    await desk.cases.attachments.add(ids["stays"], "a.txt", "text/plain", b"a")
    now = datetime.now(UTC)
    expired = update(VisitorToken).where(VisitorToken.token_hash.in_(["silent", "wrote"])).values(expires_at=now)
    await desk.database.write(lambda session: session.execute(expired))
    assert await desk.cases.visitors.delete_expired() == 2  # two tokens; their contacts are too young
    await change(desk, Contact, created_at=now - timedelta(days=UNSENT_DAYS))
    await change(desk, CaseAttachment, created_at=now - timedelta(days=UNSENT_DAYS))
    assert await desk.cases.visitors.delete_expired() == 2  # a file and the silent contact
    with pytest.raises(NotFound):
        await desk.cases.contacts.contact(ids["silent"])
    assert (await desk.cases.contacts.contact(ids["wrote"])).id == ids["wrote"]
    assert await contact_of(desk, "stays") == ids["stays"]
    assert await desk.cases.visitors.delete_expired() == 0


async def test_a_token_of_another_inbox_is_not_known_there(desk: SupportDesk) -> None:
    other = await desk.cases.inboxes.create(desk.admin, name="Shop", bot=False)
    token = new_id()
    await add(desk, token)
    assert await desk.cases.visitors.find(token, other.id) is None
    assert await desk.cases.visitors.find(token, desk.inbox.id) is not None
