"""What a visitor's message reads without the ORM is what the ORM reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from app.domain.case_views import CaseMessage
from app.domain.cases import AuthorKind
from app.services.container import Services
from app.store.cases.case_rows import case_messages, case_view
from app.store.cases.contact_looks import ContactState
from app.store.cases.visitor_reads import case_with_inbox, messages_of_contact, newest_case
from app.store.db.case_models import SupportCase
from app.store.db.database import Database
from testing.knowledge import passage
from tests.app.store.cases.support import SupportDesk, add_visitor, open_desk

HASH = "a hash"


async def open_talk(services: Services) -> tuple[SupportDesk, str]:
    """A case with a file, a reply that cites, an agent's answer, a note, tags and an assignee."""
    desk = await open_desk(services)
    cases = desk.cases
    collection = await services.knowledge.collections.create(desk.admin, "Help")
    hours = [{"day": day, "from": "09:00", "to": "17:00"} for day in range(7)]
    await cases.inboxes.change(desk.admin, desk.inbox.id, collections=[collection.id], opening_hours=hours)
    await cases.visitors.edit(desk.contact, name="Zoë", email="zoe@example.com")
    file = await cases.attachments.add(desk.contact, "parcel.png", "image/png", b"a picture")
    _, case = await cases.contacts.write(desk.contact, "Look at this.", client_id="a", attachments=[file.id])
    assert await cases.bot.write(case.id, case.epoch, "Within 30 days [1].", sources=[passage("30 days.")]) is not None
    await cases.agents.note(desk.ann, case.id, "A note")
    await cases.agents.reply(desk.ann, case.id, "I am looking at it.")
    await cases.agents.edit(desk.ann, case.id, tags=["late", "parcel"])
    return desk, case.id


async def test_the_views_are_those_that_objects_give(services: Services) -> None:
    desk, case_id = await open_talk(services)

    def of_objects(session: Session) -> list[CaseMessage]:
        return [one for one in case_messages(session, SupportCase.id == case_id) if not one.internal]

    database = desk.database
    expected = await database.read(lambda session: case_view(session, case_id))
    read = await database.read_rows(lambda connection: case_with_inbox(connection, case_id))
    newest = await database.read_rows(lambda connection: newest_case(connection, desk.contact))
    assert read is not None
    assert (read.case, newest) == (expected, read)
    assert (read.case.tags, read.case.assignee and read.case.assignee.name) == (("late", "parcel"), "Ann")
    (listed,) = await desk.cases.inboxes.all(desk.admin)
    assert {name: getattr(read.inbox, name) for name in listed.__slots__ if name != "members"} == {
        name: getattr(listed, name) for name in listed.__slots__ if name != "members"
    }
    assert await desk.cases.inboxes.view(listed.id) == await desk.cases.inboxes.by_token(listed.token) == read.inbox

    def of_rows(connection: Connection) -> list[CaseMessage]:
        return messages_of_contact(connection, desk.contact, case_id, after=-1, limit=10)

    said = await database.read_rows(of_rows)
    assert said == await database.read(of_objects)
    assert [one.author for one in said] == [AuthorKind.CONTACT, AuthorKind.BOT, AuthorKind.AGENT]
    assert [one.author_name for one in said] == ["Zoë", None, "Ann"]
    assert [len(one.attachments) for one in said] == [1, 0, 0]
    assert [len(one.citations) for one in said] == [0, 1, 0]


async def test_only_the_contact_itself_reads_its_case(services: Services) -> None:
    desk, case_id = await open_talk(services)
    other = (await add_visitor(desk.cases, desk.inbox)).contact.id
    assert await desk.cases.contacts.messages(other, case_id) == []
    assert await desk.cases.contacts.current(other) is None
    visitor = await desk.cases.visitors.create(desk.inbox.id, HASH)
    told = await desk.cases.looks.look(visitor.contact.id, desk.inbox.id, HASH, case_id=case_id)
    assert told == (ContactState(), None), "it names another visitor's case"
    assert await desk.cases.looks.look(desk.contact, desk.inbox.id, HASH) is None, "another visitor's token"


async def test_a_look_reads_what_is_new_and_nothing_if_nothing_is(services: Services) -> None:
    desk = await open_desk(services)
    cases, inbox = desk.cases, desk.inbox.id
    contact = (await cases.visitors.create(inbox, HASH)).contact.id
    _, case = await cases.contacts.write(contact, "One")
    told = await cases.looks.look(contact, inbox, HASH)
    assert told is not None
    state, look = told
    assert look is not None
    assert [message.text for message in look.messages] == ["One"]
    assert await cases.looks.look(contact, inbox, HASH, unless=state) == (state, None)
    await cases.contacts.write(contact, "Two")
    told = await cases.looks.look(contact, inbox, HASH, case_id=case.id, after=0, unless=state)
    assert told is not None
    assert told[1] is not None
    assert [message.text for message in told[1].messages] == ["Two"]


@contextmanager
def counting_statements(database: Database) -> Iterator[list[str]]:
    """The statements that SQLAlchemy executes; those that the driver is given directly are not among them."""
    executed: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        executed.append(statement)

    engines = {database._reader, database._writer}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield executed
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)


async def test_a_stream_and_the_bot_read_without_the_orm(services: Services) -> None:
    desk = await open_desk(services)
    cases, inbox = desk.cases, desk.inbox.id
    contact = (await cases.visitors.create(inbox, HASH)).contact.id
    _, case = await cases.contacts.write(contact, "One")
    with counting_statements(desk.database) as executed:
        assert await cases.looks.look(contact, inbox, HASH) is not None
        assert await cases.bot.open(case.id) is not None
        assert await cases.inboxes.by_token(desk.inbox.token) is not None
        assert await services.templates.prompt("widget-bot") is not None
    assert executed == []


async def test_a_first_message_writes_its_case_once(services: Services) -> None:
    desk = await open_desk(services)
    with counting_statements(desk.database) as executed:
        await desk.cases.contacts.write(desk.contact, "Where is my parcel?", client_id="a")
    assert [one.split()[0] for one in executed] == ["SELECT", "SELECT"], "the contact, and its case"


async def test_a_list_reads_only_the_cases_that_it_does_not_know(services: Services) -> None:
    desk = await open_desk(services)
    first, second = [await add_visitor(desk.cases, desk.inbox) for _ in range(2)]
    _, one = await desk.cases.contacts.write(first.contact.id, "One")
    changed = await desk.cases.list.changed_since(desk.ann, one.created_at, {})
    assert ([case.id for case in changed.new], changed.revisions) == ([one.id], {one.id: one.revision})
    _, two = await desk.cases.contacts.write(second.contact.id, "Two")
    changed = await desk.cases.list.changed_since(desk.ann, one.created_at, changed.revisions)
    assert [case.id for case in changed.new] == [two.id]
    assert changed.revisions == {one.id: one.revision, two.id: two.revision}
    assert changed.latest == two.updated_at
    _, one = await desk.cases.contacts.write(first.contact.id, "More")
    changed = await desk.cases.list.changed_since(desk.ann, one.created_at, changed.revisions)
    assert [case.id for case in changed.new] == [one.id]
    assert (await desk.cases.list.changed_since(desk.stranger, one.created_at, {})).new == []
