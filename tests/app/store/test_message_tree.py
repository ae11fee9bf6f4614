"""Going another way from a message, on both databases: nothing is overwritten, and each branch can be shown again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import func, select

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus, MessageView
from app.errors import AppError, Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.db.models import Message, Turn
from app.turns.service import TurnRef
from testing.fake_engine import FakeEngine


class Talk:
    """A conversation, driven from outside."""

    def __init__(self, services: Services, engine: FakeEngine) -> None:
        self.services = services
        self.engine = engine
        self.id = ""

    async def hear(self, start: Awaitable[TurnRef], reply: str) -> TurnRef:
        self.engine.say(reply)
        ref = await start
        async for _ in self.services.turns.events(ME, ref.turn_id):
            pass
        self.id = ref.conversation_id
        return ref

    async def ask(self, text: str, reply: str) -> TurnRef:
        return await self.hear(self.services.turns.start(ME, text=text, conversation_id=self.id or None), reply)

    async def edit(self, message_id: str, text: str, reply: str) -> TurnRef:
        return await self.hear(self.services.turns.edit(ME, message_id, text=text), reply)

    async def regenerate(self, message_id: str, reply: str) -> TurnRef:
        return await self.hear(self.services.turns.regenerate(ME, message_id), reply)

    async def shown(self) -> tuple[MessageView, ...]:
        return (await self.services.conversations.get(ME, self.id)).messages

    async def texts(self) -> list[str]:
        return [message.content for message in await self.shown()]

    @property
    def prompt(self) -> list[str]:
        """What the model read last."""
        return [message["content"] for message in self.engine.calls[-1][0]]


@pytest.fixture
def talk(services: Services, engine: FakeEngine) -> Talk:
    return Talk(services, engine)


async def num_messages(services: Services) -> int:
    return await services.database.read(lambda session: session.scalar(select(func.count()).select_from(Message))) or 0


async def test_an_edited_message_stands_beside_the_first_and_both_branches_are_kept(
    talk: Talk, services: Services
) -> None:
    first = await talk.ask("one", "1")
    await talk.ask("two", "2")
    await talk.ask("three", "3")
    edited = await talk.edit(first.user_message_id, "uno", "1!")
    assert talk.prompt == ["uno"]
    assert await talk.texts() == ["uno", "1!"]
    question, reply = await talk.shown()
    assert question.siblings == (first.user_message_id, edited.user_message_id)
    assert (question.parent_id, reply.siblings) == (None, (reply.id,))

    await services.conversations.show(ME, first.user_message_id)
    assert await talk.texts() == ["one", "1", "two", "2", "three", "3"]
    await talk.ask("four", "4")  # goes on where it was
    assert talk.prompt == ["one", "1", "two", "2", "three", "3", "four"]
    assert await num_messages(services) == 10


async def test_an_edit_in_the_middle_reads_only_what_stands_before_it(talk: Talk) -> None:
    await talk.ask("one", "1")
    second = await talk.ask("two", "2")
    await talk.ask("three", "3")
    await talk.edit(second.user_message_id, "deux", "2!")
    assert talk.prompt == ["one", "1", "deux"]
    assert await talk.texts() == ["one", "1", "deux", "2!"]
    assert [message.position for message in await _rows(talk)] == [0, 1, 2, 3]


async def _rows(talk: Talk) -> list[Message]:
    ids = [message.id for message in await talk.shown()]
    return await talk.services.database.read(
        lambda session: list(session.scalars(select(Message).where(Message.id.in_(ids)).order_by(Message.position)))
    )


@pytest.mark.parametrize("of", ["reply", "message"])
async def test_another_reply_stands_beside_the_first(talk: Talk, services: Services, of: str) -> None:
    await talk.ask("one", "1")
    second = await talk.ask("two", "2")
    again = await talk.regenerate(second.message_id if of == "reply" else second.user_message_id, "2!")
    assert talk.prompt == ["one", "1", "two"]
    assert await talk.texts() == ["one", "1", "two", "2!"]
    assert again.user_message_id == second.user_message_id
    third = await talk.regenerate(again.message_id, "2?")
    reply = (await talk.shown())[-1]
    assert reply.siblings == (second.message_id, again.message_id, third.message_id)
    assert await num_messages(services) == 6

    await services.conversations.show(ME, second.message_id)
    assert await talk.texts() == ["one", "1", "two", "2"]
    await talk.ask("three", "3")
    await services.conversations.show(ME, again.message_id)
    assert await talk.texts() == ["one", "1", "two", "2!"]
    # The way back leads to what came last there, not to the bare message.
    await services.conversations.show(ME, second.message_id)
    assert await talk.texts() == ["one", "1", "two", "2", "three", "3"]


async def test_at_each_fork_the_latest_branch_is_shown(talk: Talk, services: Services) -> None:
    first = await talk.ask("one", "1")
    second = await talk.ask("two", "2")
    await talk.edit(second.user_message_id, "deux", "2!")
    other = await talk.edit(first.user_message_id, "uno", "1!")
    await services.conversations.show(ME, first.user_message_id)
    assert await talk.texts() == ["one", "1", "deux", "2!"]
    await services.conversations.show(ME, other.message_id)
    assert await talk.texts() == ["uno", "1!"]


async def test_a_page_of_earlier_messages_knows_its_siblings_too(talk: Talk, services: Services) -> None:
    first = await talk.ask("one", "1")
    again = await talk.regenerate(first.message_id, "1!")
    await talk.ask("two", "2")
    view = await services.conversations.get(ME, talk.id, limit=2)
    earlier = await services.conversations.get(ME, talk.id, limit=1, before=view.messages[0].id)
    (reply,) = earlier.messages
    assert reply.siblings == (first.message_id, again.message_id)
    assert earlier.has_earlier


async def test_a_branch_is_a_conversation_of_its_own(talk: Talk, services: Services, engine: FakeEngine) -> None:
    await talk.ask("one", "1")
    second = await talk.ask("two", "2")
    await talk.ask("three", "3")
    await services.conversations.save_settings(ME, talk.id, ChatSettings(temperature=0.5))
    before = await talk.shown()
    branched = await services.conversations.branch(ME, second.message_id)
    view = await services.conversations.get(ME, branched)
    assert [message.content for message in view.messages] == ["one", "1", "two", "2"]
    assert view.title == "one (branch)"
    assert view.settings == ChatSettings(temperature=0.5)
    assert [message.stats for message in view.messages] == [message.stats for message in before[:4]]
    assert {message.id for message in view.messages}.isdisjoint(message.id for message in before)
    assert all(message.siblings == (message.id,) for message in view.messages)

    # Each goes on alone.
    await talk.hear(services.turns.start(ME, text="four", conversation_id=branched), "4")
    assert talk.prompt == ["one", "1", "two", "2", "four"]
    await services.turns.delete_conversation(ME, branched)
    talk.id = before[0].conversation_id
    assert await talk.shown() == before
    title = (await services.conversations.list(ME)).items[0].title
    assert title == "one"


async def test_a_branch_keeps_the_token_ids_of_replies(talk: Talk, services: Services) -> None:
    ref = await talk.ask("one", "1")

    def keep(session):  # type: ignore[no-untyped-def]
        session.get_one(Message, ref.message_id).token_ids = (7, 8)

    await services.database.write(keep)
    branched = await services.conversations.branch(ME, ref.message_id)
    await talk.hear(services.turns.start(ME, text="two", conversation_id=branched), "2")
    assert talk.engine.calls[-1][0][1]["token_ids"] == (7, 8)


async def test_while_a_reply_is_written_there_is_no_other(talk: Talk, services: Services, engine: FakeEngine) -> None:
    first = await talk.ask("one", "1")
    gate = asyncio.Event()
    engine.say("2", " end", gates={1: gate})
    running = await services.turns.start(ME, text="two", conversation_id=talk.id)
    before = await num_messages(services)
    for attempt in (
        services.turns.edit(ME, first.user_message_id, text="uno"),
        services.turns.regenerate(ME, first.message_id),
        services.turns.regenerate(ME, running.message_id),
    ):
        with pytest.raises(Conflict, match="still being written"):
            await attempt
    with pytest.raises(Conflict, match="still being written"):
        await services.conversations.branch(ME, running.message_id)
    assert await num_messages(services) == before
    # Looking at another branch meanwhile takes nothing from the reply.
    await services.conversations.show(ME, first.message_id)
    gate.set()
    async for _ in services.turns.events(ME, running.turn_id):
        pass
    assert (await services.conversations.get_message(ME, running.message_id)).content == "2 end"


async def test_two_that_ask_again_at_once_get_one_reply(talk: Talk, services: Services, engine: FakeEngine) -> None:
    first = await talk.ask("one", "1")
    gate = asyncio.Event()
    for _ in range(2):
        engine.say("again", gates={0: gate})
    answers = await asyncio.gather(
        services.turns.regenerate(ME, first.message_id),
        services.turns.edit(ME, first.user_message_id, text="uno"),
        return_exceptions=True,
    )
    gate.set()
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "TurnRef"]
    started = next(answer for answer in answers if isinstance(answer, TurnRef))
    async for _ in services.turns.events(ME, started.turn_id):
        pass
    statuses = await services.database.read(lambda session: list(session.scalars(select(Turn.status))))
    assert statuses == ["complete", "complete"]


async def test_the_same_request_twice_makes_one_reply(talk: Talk, services: Services) -> None:
    first = await talk.ask("one", "1")
    calls: tuple[Callable[[], Awaitable[TurnRef]], ...] = (
        lambda: services.turns.regenerate(ME, first.message_id, request_id="r1"),
        lambda: services.turns.edit(ME, first.user_message_id, text="uno", request_id="r2"),
    )
    for call in calls:
        answer = await talk.hear(call(), "again")
        assert await call() == answer
    assert await num_messages(services) == 5


async def test_what_cannot_be_asked_again_is_refused(talk: Talk, services: Services, stranger: str) -> None:
    first = await talk.ask("one", "1")
    before = await num_messages(services)
    wrong: list[tuple[type[AppError], str, Callable[[], Awaitable[object]]]] = [
        (InvalidInput, "empty", lambda: services.turns.edit(ME, first.user_message_id, text="  ")),
        (InvalidInput, "your own", lambda: services.turns.edit(ME, first.message_id, text="forged")),
        (NotFound, "no such message", lambda: services.turns.edit(ME, new_id(), text="x")),
        (NotFound, "no such message", lambda: services.turns.regenerate(ME, "x'; --")),
        (NotFound, "no such message", lambda: services.turns.edit(stranger, first.user_message_id, text="x")),
        (NotFound, "no such message", lambda: services.turns.regenerate(stranger, first.message_id)),
        (NotFound, "no such message", lambda: services.conversations.show(stranger, first.message_id)),
        (NotFound, "no such message", lambda: services.conversations.branch(stranger, first.message_id)),
    ]
    for error, says, attempt in wrong:
        with pytest.raises(error, match=says):
            await attempt()
    assert await num_messages(services) == before
    assert await talk.texts() == ["one", "1"]


async def test_a_reply_that_failed_can_be_asked_for_again(talk: Talk, services: Services, engine: FakeEngine) -> None:
    engine.say("half", fail_at=1)
    ref = await services.turns.start(ME, text="one")
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    again = await talk.regenerate(ref.message_id, "whole")
    assert await talk.texts() == ["one", "whole"]
    failed = await services.conversations.get_message(ME, ref.message_id)
    assert failed.status is MessageStatus.ERROR
    assert failed.siblings == (ref.message_id, again.message_id)
