"""The life of a case: who may write, what is stored once, and that the bot never writes after a person."""

from __future__ import annotations

import pytest

from app.domain.cases import AuthorKind, CaseEventKind, CaseStatus, HandOffReason, StaleCase
from app.domain.views import MessageStatus
from app.errors import Conflict, NotAllowed, NotFound
from app.services.container import Services
from app.store.cases.case_list import CaseListView
from app.store.cases.contact_looks import ContactState
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from tests.app.store.cases.support import add_visitor, open_desk


async def test_a_visitor_writes_the_bot_answers_and_a_person_takes_over(services: Services) -> None:
    desk = await open_desk(services)
    cases = desk.cases
    question, case = await cases.contacts.write(desk.contact, "Where is my parcel?", client_id="a")
    assert (case.status, case.subject, case.waiting_since) == (CaseStatus.BOT, "Where is my parcel?", None)
    again, _ = await cases.contacts.write(desk.contact, "Where is my parcel?", client_id="a")
    assert again.id == question.id
    with pytest.raises(Conflict, match="client_id"):
        await cases.contacts.write(desk.contact, "Another one", client_id="a")

    reply = await cases.bot.begin_reply(case.id, case.epoch, model="guide")
    assert reply is not None
    turns = desk.turns
    assert await turns.checkpoint(reply.user_id, reply.turn_id, "It is on") is LeaseStatus.RUNNING

    _, taken = await cases.agents.reply(desk.ann, case.id, "I am looking for it.", client_id="b", epoch=case.epoch)
    assert (taken.status, taken.assignee and taken.assignee.id) == (CaseStatus.OPEN, desk.ann)
    assert taken.first_reply_at is not None
    assert await turns.checkpoint(reply.user_id, reply.turn_id, "It is on its way") is LeaseStatus.LOST
    outcome = TurnOutcome(text="It is on its way.", status=MessageStatus.COMPLETE)
    assert not await cases.bot.finish(reply, outcome)
    assert await cases.bot.begin_reply(case.id, taken.epoch, model="guide") is None
    assert await cases.bot.write(case.id, case.epoch, "Late words") is None
    assert await cases.bot.hand_off(case.id, case.epoch, HandOffReason.POLICY) is None

    opened = await cases.details.get(desk.ann, case.id)
    said = [(message.author, message.text, message.status) for message in opened.messages]
    assert said == [
        (AuthorKind.CONTACT, "Where is my parcel?", "complete"),
        (AuthorKind.BOT, "It is on", "stopped"),
        (AuthorKind.AGENT, "I am looking for it.", "complete"),
    ]
    assert [event.kind for event in opened.events] == [
        CaseEventKind.CREATED,
        CaseEventKind.HANDED_OFF,
        CaseEventKind.ASSIGNED,
        CaseEventKind.REPLIED,
    ]
    assert opened.events[1].reason is HandOffReason.AGENT_TOOK_OVER
    assert [event.sequence for event in opened.events] == [1, 2, 3, 4]

    with pytest.raises(StaleCase):
        await cases.agents.reply(desk.bob, case.id, "Me too", epoch=case.epoch)
    repeated, _ = await cases.agents.reply(desk.ann, case.id, "I am looking for it.", client_id="b", epoch=case.epoch)
    assert repeated.id == opened.messages[-1].id


async def test_a_contact_reads_no_notes_and_the_bot_neither(services: Services) -> None:
    desk = await open_desk(services)
    cases = desk.cases
    _, case = await cases.contacts.write(desk.contact, "Hello?")
    await cases.agents.note(desk.ann, case.id, "Rude last year.")
    assert [message.text for message in await cases.contacts.messages(desk.contact, case.id)] == ["Hello?"]
    assert [message.text for message in await cases.bot.history(case.id)] == ["Hello?"]
    current = await cases.contacts.current(desk.contact)
    assert current is not None
    assert (current.status, current.preview) == (CaseStatus.BOT, "Hello?")


async def test_the_bot_reads_the_newest_messages_of_a_long_talk(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.cases.bot_cases.MAX_HISTORY", 2)
    desk = await open_desk(services)
    for text in ("One", "Two", "Three"):
        _, case = await desk.cases.contacts.write(desk.contact, text)
    opened = await desk.cases.bot.open(case.id)
    assert opened is not None
    assert [message.text for message in opened.history] == ["Two", "Three"]
    await desk.cases.agents.reply(desk.ann, case.id, "Four")
    assert await desk.cases.bot.open(case.id) is None


async def test_a_visitors_stream_learns_of_each_change_and_of_the_end_of_its_token(services: Services) -> None:
    desk = await open_desk(services)
    cases, contact, inbox = desk.cases, desk.contact, desk.inbox.id
    visitor = await cases.visitors.create(inbox, "a hash")

    async def state(contact_id: str) -> ContactState | None:
        found = await cases.looks.look(contact_id, inbox, "a hash")
        return found[0] if found is not None else None

    assert await state(visitor.contact.id) == ContactState()
    assert await state(contact) is None  # another contact's token
    _, case = await cases.contacts.write(visitor.contact.id, "Hello?")
    states = [await state(visitor.contact.id)]
    await cases.agents.reply(desk.ann, case.id, "Hi")
    states.append(await state(visitor.contact.id))
    await cases.agents.resolve(desk.ann, case.id)
    states.append(await state(visitor.contact.id))
    assert {each.case_id for each in states if each is not None} == {case.id}
    assert len({each.revision for each in states if each is not None}) == 3
    await cases.visitors.identify("a hash", "a new hash", external_id="customer 1")
    assert await state(visitor.contact.id) is None


async def test_cases_are_read_by_members_and_changed_by_agents(services: Services) -> None:
    desk = await open_desk(services)
    cases = desk.cases
    _, case = await cases.contacts.write(desk.contact, "Hello?")
    other = await add_visitor(cases, desk.inbox)
    for reader in (desk.ann, desk.bob, desk.viewer, desk.admin):
        assert (await cases.details.view(reader, case.id)).id == case.id
        assert [found.id for found in (await cases.list.page(reader)).items] == [case.id]
    with pytest.raises(NotFound):
        await cases.details.get(desk.stranger, case.id)
    assert (await cases.list.page(desk.stranger)).items == ()
    assert (await cases.list.page(desk.stranger, query="Hello")).items == ()
    assert (await cases.list.counts(desk.stranger))["all"] == 0
    with pytest.raises(NotFound):
        await cases.agents.reply(desk.stranger, case.id, "Hi")
    with pytest.raises(NotAllowed):
        await cases.agents.reply(desk.viewer, case.id, "Hi")
    assert await cases.contacts.messages(other.contact.id, case.id) == []
    for user in (desk.ann, desk.admin, desk.stranger):  # whose own chats they are not
        with pytest.raises(NotFound):
            await services.conversations.get(user, case.conversation_id)
        assert (await services.conversations.list(user)).items == ()


async def test_a_resolved_case_is_opened_for_the_bot_only_if_no_person_had_it(services: Services) -> None:
    desk = await open_desk(services)
    cases = desk.cases
    _, case = await cases.contacts.write(desk.contact, "One")
    assert await cases.bot.resolve(case.id, case.epoch) is not None
    await cases.contacts.write(desk.contact, "Two")
    again = await cases.contacts.current(desk.contact)
    assert again is not None
    assert (again.id, again.status) == (case.id, CaseStatus.BOT)
    assert [message.text for message in await cases.bot.history(case.id)] == ["Two"]
    await cases.agents.reply(desk.ann, case.id, "Three")
    await cases.agents.resolve(desk.ann, case.id)
    _, opened = await cases.contacts.write(desk.contact, "Four")
    assert opened.status is CaseStatus.OPEN
    assert opened.waiting_since is not None


async def test_lists_have_their_counts_their_order_and_their_words(services: Services) -> None:
    desk = await open_desk(services, bot=False)
    cases = desk.cases
    ids = []
    for number in range(5):
        visitor = await add_visitor(cases, desk.inbox)
        ids.append((await cases.contacts.write(visitor.contact.id, f"Parcel number{number}"))[1].id)
    await cases.agents.assign(desk.bob, ids[0], desk.ann)
    first = await cases.list.page(desk.ann, limit=3)
    rest = await cases.list.page(desk.ann, limit=3, cursor=first.next_cursor)
    assert [case.id for case in (*first.items, *rest.items)] == [ids[0], *reversed(ids[1:])]
    assert rest.next_cursor is None
    assert [case.id for case in (await cases.list.page(desk.ann, CaseListView.MINE)).items] == [ids[0]]
    assert [case.id for case in (await cases.list.page(desk.ann, query="number3")).items] == [ids[3]]
    found, cursor = list[str](), None
    for size in (2, 2, 1):  # what is found is in the order of the list, page by page
        page = await cases.list.page(desk.ann, query="parcel", limit=2, cursor=cursor)
        assert len(page.items) == size
        found, cursor = [*found, *(case.id for case in page.items)], page.next_cursor
    assert (found, cursor) == ([ids[0], *reversed(ids[1:])], None)
    unassigned = await cases.list.page(desk.ann, CaseListView.UNASSIGNED, query="parcel")
    assert [case.id for case in unassigned.items] == [*reversed(ids[1:])]
    assert await cases.list.counts(desk.ann) == {
        "mine": 1, "unassigned": 4, "bot": 0, "snoozed": 0, "resolved": 0, "all": 5, "waiting": 5,
    }  # fmt: skip


async def test_a_tag_filters_pages_and_counts_and_tags_are_those_of_readable_cases(services: Services) -> None:
    desk = await open_desk(services, bot=False)
    cases = desk.cases
    ids = []
    for number in range(5):
        visitor = await add_visitor(cases, desk.inbox)
        ids.append((await cases.contacts.write(visitor.contact.id, f"Parcel number{number}"))[1].id)
    for number in (0, 2, 4):
        await cases.agents.edit(desk.ann, ids[number], tags=["Rückgabe", "vip"] if number else ["vip"])
    await cases.agents.assign(desk.ann, ids[2], desk.ann)
    first = await cases.list.page(desk.ann, tag="vip", limit=2)
    rest = await cases.list.page(desk.ann, tag="vip", limit=2, cursor=first.next_cursor)
    assert [case.id for case in (*first.items, *rest.items)] == [ids[2], ids[4], ids[0]]
    assert rest.next_cursor is None
    assert [case.id for case in (await cases.list.page(desk.ann, tag=" Rückgabe ", query="number4")).items] == [ids[4]]
    assert (await cases.list.page(desk.ann, tag="VIP")).items == ()
    counts = await cases.list.counts(desk.ann, tag="vip")
    assert (counts["mine"], counts["unassigned"], counts["all"]) == (1, 2, 3)
    assert (await cases.list.counts(desk.ann, tag="vip", inbox_id="elsewhere"))["all"] == 0
    assert list((await cases.list.tags(desk.viewer)).items()) == [("Rückgabe", 2), ("vip", 3)]
    # The cases and tags of an inbox are its members' alone.
    assert (await cases.list.page(desk.stranger, tag="vip")).items == ()
    assert (await cases.list.counts(desk.stranger, tag="vip"))["all"] == 0
    assert await cases.list.tags(desk.stranger) == {}
