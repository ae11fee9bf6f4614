"""Following one's own last reply: what was written here a moment ago is not read again, and is never out of date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, text, update

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.prompting import PathMessage
from app.domain.views import Role
from app.errors import Conflict, NotFound
from app.services.container import Services
from app.store.chat.reply_writes import TurnOutcome
from app.store.chat.turn_contexts import TurnContext
from app.store.db.models import Conversation, Turn
from app.turns.recent_contexts import RecentContexts
from app.turns.service import TurnRef
from testing.fake_engine import FakeEngine
from testing.waiting import eventually

SETTINGS = ChatSettings(temperature=0.3)


class Page:
    """Sends as the page does: with the last message that it shows, its settings and an id of the request."""

    def __init__(self, services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.services = services
        self.engine = engine
        self.reads = 0
        self.shown: TurnRef | None = None
        read_rows = services.database.read_rows

        async def counted(work: Callable[[Connection], Any]) -> Any:
            self.reads += 1
            return await read_rows(work)

        monkeypatch.setattr(services.database, "read_rows", counted)

    async def send(self, message: str, **given: Any) -> TurnRef:
        where: dict[str, Any] = {}
        if self.shown is not None:
            where = {"conversation_id": self.shown.conversation_id, "tip_id": self.shown.message_id}
        options: dict[str, Any] = {"settings": SETTINGS, "request_id": new_id(), **where, **given}
        return await self.services.turns.start(ME, text=message, **options)

    async def hear(self, ref: TurnRef) -> TurnRef:
        async for _ in self.services.turns.events(ME, ref.turn_id):
            pass
        self.shown = ref
        return ref

    async def ask(self, message: str, reply: str, **given: Any) -> TurnRef:
        self.engine.say(reply)
        return await self.hear(await self.send(message, **given))

    @property
    def prompt(self) -> list[str]:
        """What the model read last."""
        return [message["content"] for message in self.engine.calls[-1][0]]


@pytest.fixture
def page(services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(services, engine, monkeypatch)


async def test_the_model_reads_all_that_was_said(page: Page) -> None:
    await page.ask("one", "1")
    await page.ask("two", "2")
    page.reads = 0
    await page.ask("three", "3")
    assert page.prompt == ["one", "1", "two", "2", "three"]
    assert page.reads == 0
    remembered = page.engine.calls[-1][0]
    await page.hear(await page.services.turns.regenerate(ME, page.shown.message_id))  # type: ignore[union-attr]
    assert page.engine.calls[-1][0] == remembered  # with the same token ids


async def test_a_conversation_that_somebody_else_moved_on_is_not_followed(page: Page) -> None:
    first = await page.ask("one", "1")
    second = await page.ask("two", "2")
    await _set(page, first.conversation_id, tip_message_id=first.message_id)  # as a deletion does
    with pytest.raises(Conflict, match="changed elsewhere"):
        await page.send("three")
    page.shown = first
    await page.ask("two again", "II")
    assert page.prompt == ["one", "1", "two again"]
    assert second.turn_id != first.turn_id


async def test_a_conversation_that_is_gone_is_not_followed(page: Page, stranger: str) -> None:
    first = await page.ask("one", "1")
    with pytest.raises(NotFound):
        await page.services.turns.start(
            stranger, text="mine", conversation_id=first.conversation_id, tip_id=first.message_id, settings=SETTINGS
        )
    await page.services.database.write(
        lambda session: session.execute(text("DELETE FROM conversation WHERE id = :id"), {"id": first.conversation_id})
    )
    with pytest.raises(NotFound):
        await page.send("two")


async def test_settings_that_were_changed_since_are_used(page: Page) -> None:
    first = await page.ask("one", "1")
    await _set(page, first.conversation_id, settings={"temperature": 1.5})
    await page.ask("two", "2", settings=None)
    params = page.engine.calls[-1][1]
    assert params is not None
    assert params.temperature == 1.5


async def test_a_reply_that_went_on_is_followed_as_it_is_now(page: Page) -> None:
    page.engine.say("half ", "and more", gates={1: asyncio.Event()})
    ref = await page.send("one")
    await anext(page.services.turns.events(ME, ref.turn_id))
    await page.services.turns.stop(ME, ref.turn_id)
    page.engine.say("whole")
    await page.hear(await page.services.turns.resume(ME, ref.message_id))
    await page.ask("two", "2")
    assert page.prompt == ["one", "half whole", "two"]


async def test_a_message_that_comes_twice_is_sent_once(page: Page) -> None:
    await page.ask("one", "1")
    before = page.shown
    again: dict[str, Any] = {"request_id": "r"}
    gate = asyncio.Event()
    page.engine.say("2", gates={0: gate})
    second = await page.send("two", **again)
    assert await page.send("two", **again) == second  # while its reply is being written
    gate.set()
    await page.hear(second)
    page.shown = before
    assert await page.send("two", **again) == second  # and after
    await _set(page, second.conversation_id, tip_message_id=before.message_id)  # type: ignore[union-attr]
    assert await page.send("two", **again) == second  # even where the conversation has gone back meanwhile
    assert await page.services.database.read(lambda session: session.scalar(select(func.count(Turn.id)))) == 2


async def _set(page: Page, conversation_id: str, **values: object) -> None:
    changed = update(Conversation).where(Conversation.id == conversation_id).values(**values)
    await page.services.database.write(lambda session: session.execute(changed))


async def test_the_next_prompt_continues_the_last_one(page: Page, stranger: str) -> None:
    """Also where another process may write, because only the text decides whether it really does."""
    first = await page.ask("one", "1")
    assert page.engine.previous == [None]
    await page.ask("two", "2")
    second = page.shown
    assert second is not None
    assert page.engine.previous[-1] is not None
    assert [message["content"] for message in page.engine.previous[-1].messages] == ["one"]
    await page.hear(await page.services.turns.regenerate(ME, second.message_id))
    assert page.engine.previous[-1] is not None
    assert [message["content"] for message in page.engine.previous[-1].messages] == ["one", "1", "two"]
    with pytest.raises(NotFound):
        await page.services.turns.start(stranger, text="mine", conversation_id=first.conversation_id)
    await page.ask("elsewhere", "3", conversation_id=None, tip_id=None)
    assert page.engine.previous[-1] is None


async def test_old_ones_are_forgotten(engine: FakeEngine) -> None:
    prompt = await engine.prepare([{"role": "user", "content": "hi"}])

    def context(length: int) -> TurnContext:
        path = (PathMessage(Role.USER, "x" * length),)
        return TurnContext(parent_id="tip", path=path, settings=SETTINGS, streaming=False)

    recent = RecentContexts(max_chars=100)
    for number in range(10):
        recent.keep(ME, str(number), context(40), prompt)
    kept = [False] * 8 + [True] * 2
    assert [recent.find(ME, str(number), "tip") is not None for number in range(10)] == kept
    assert [recent.previous_prompt(ME, str(number)) is prompt for number in range(10)] == kept
    assert recent.find(ME, "9", "another tip") is None
    assert recent.find("somebody else", "9", "tip") is None
    assert recent.previous_prompt("somebody else", "9") is None
    recent.keep(ME, "9", context(101), prompt)
    assert recent.find(ME, "9", "tip") is None
    recent.keep(ME, "8", context(100), prompt)
    recent.forget(ME, "8")
    recent.keep(ME, "7", context(100), prompt)  # nothing of what was forgotten counts
    assert recent.find(ME, "7", "tip") is not None


async def test_a_system_prompt_counts(engine: FakeEngine) -> None:
    """It is the longest part of a short chat at a desk with long instructions, and each chat's prompt holds it."""
    prompt = await engine.prepare([{"role": "system", "content": "x" * 40}, {"role": "user", "content": "hi"}])
    path = (PathMessage(Role.USER, "hi"), PathMessage(Role.ASSISTANT, "hello"))
    recent = RecentContexts(max_chars=100)
    for number in range(10):
        recent.keep(ME, str(number), TurnContext("tip", path, SETTINGS, streaming=False), prompt)
    kept = [recent.previous_prompt(ME, str(number)) is not None for number in range(10)]
    assert kept == [False] * 8 + [True] * 2


async def test_a_conversation_deleted_as_its_reply_ends_is_not_kept(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = page.services.turns
    finish, deletions = turns._records.finish, []

    async def finish_then_delete(user_id: str, turn_id: str, outcome: TurnOutcome) -> bool:
        is_saved = await finish(user_id, turn_id, outcome)
        deletions.append(asyncio.create_task(turns.delete_conversation(ME, ref.conversation_id)))
        await eventually(lambda: turns._live.by_id[turn_id]._deleted)
        return is_saved

    monkeypatch.setattr(turns._records, "finish", finish_then_delete)
    gate = asyncio.Event()
    page.engine.say("1", gates={0: gate})
    ref = await page.send("one")
    gate.set()
    await page.hear(ref)
    await asyncio.gather(*deletions)
    await eventually(lambda: not turns.running_turn_ids())
    assert turns._recent.previous_prompt(ME, ref.conversation_id) is None
