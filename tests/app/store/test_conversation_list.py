"""Pins, archive, tags, unread marks and the model's titles."""

from __future__ import annotations

import asyncio

import pytest

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.text import as_title
from app.errors import InvalidInput
from app.services.container import Services
from app.settings import AppSettings
from testing.fake_engine import FakeEngine
from testing.waiting import eventually
from tests.app.conftest import Open
from tests.app.store.test_conversations import chat


async def listed(services: Services, **how: object) -> list[str]:
    return [item.title for item in (await services.conversations.list(ME, **how)).items]  # type: ignore[arg-type]


async def test_pinned_ones_come_first_on_every_page(services: Services) -> None:
    ids = {name: await chat(services, name) for name in "abcdef"}
    for name in "bd":
        await services.conversations.mark(ME, ids[name], pinned=True)
    pages, cursor = [], None
    while True:
        page = await services.conversations.list(ME, limit=1, cursor=cursor)
        pages += [item.title for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == ["d", "b", "f", "e", "c", "a"]
    await services.conversations.mark(ME, ids["d"], pinned=False)
    assert await listed(services) == ["b", "f", "e", "d", "c", "a"]


async def test_archived_ones_leave_the_list_until_someone_writes_there(services: Services) -> None:
    ids = {name: await chat(services, name) for name in "abc"}
    await services.conversations.mark(ME, ids["b"], archived=True)
    assert await listed(services) == ["c", "a"]
    assert await listed(services, archived=True) == ["b"]
    await chat(services, "back", ids["b"])
    assert await listed(services) == ["b", "c", "a"]


async def test_tags_are_set_filtered_by_and_counted(services: Services) -> None:
    ids = {name: await chat(services, name) for name in "abc"}
    await services.conversations.set_tags(ME, ids["a"], ["work", " Two\n words ", "work"])
    await services.conversations.set_tags(ME, ids["c"], ["work"])
    assert await listed(services, tag="work") == ["c", "a"]
    assert await services.conversations.tags(ME) == {"Two words": 1, "work": 2}
    assert (await services.conversations.get(ME, ids["a"])).tags == ("Two words", "work")
    await services.conversations.set_tags(ME, ids["a"], [])
    assert await listed(services, tag="work") == ["c"]
    assert await listed(services, tag="nobody's") == []


async def test_tags_nobody_can_use_are_refused(services: Services) -> None:
    conversation_id = await chat(services, "kept")
    await services.conversations.set_tags(ME, conversation_id, ["kept"])
    for tags in ([""], [" "], ["x" * 51], [str(number) for number in range(21)]):
        with pytest.raises(InvalidInput):
            await services.conversations.set_tags(ME, conversation_id, tags)
    assert await services.conversations.tags(ME) == {"kept": 1}


async def test_a_reply_that_ended_is_unread_until_someone_looks(services: Services, engine: FakeEngine) -> None:
    hold = asyncio.Event()
    engine.say("slow", gates={0: hold})
    ref = await services.turns.start(ME, text="question")
    assert not (await services.conversations.list(ME)).items[0].unread
    hold.set()
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert (await services.conversations.list(ME)).items[0].unread
    await services.conversations.mark(ME, ref.conversation_id, unread=False)
    assert not (await services.conversations.list(ME)).items[0].unread


@pytest.fixture
async def entitling(settings: AppSettings, open_services: Open) -> Services:
    object.__setattr__(settings, "auto_titles", True)
    return await open_services()


async def test_the_model_is_asked_for_a_title_once(entitling: Services, engine: FakeEngine) -> None:
    engine.say("Sort with sorted().")
    engine.say('"Sorting Lists in Python"')
    conversation_id = await chat(entitling, "How do I sort a list in Python?")
    await eventually(lambda: len(engine.calls) == 2 and engine.running == 0)
    for _ in range(500):
        if await listed(entitling) == ["Sorting Lists in Python"]:
            break
        await asyncio.sleep(0.02)
    assert "How do I sort a list in Python?" in engine.calls[1][0][0]["content"]
    await chat(entitling, "And backwards?", conversation_id)
    assert len(engine.calls) == 3
    assert len((await entitling.conversations.get(ME, conversation_id)).messages) == 4
    assert await listed(entitling, query="sorting lists") == ["Sorting Lists in Python"]


async def test_a_persons_title_stays(entitling: Services, engine: FakeEngine) -> None:
    hold = asyncio.Event()
    engine.say("Because.")
    engine.say("Why The Sky Is Blue", gates={0: hold})
    conversation_id = await chat(entitling, "Why is the sky blue?")
    await eventually(lambda: len(engine.calls) == 2)
    await entitling.conversations.rename(ME, conversation_id, "Mine")
    hold.set()
    await eventually(lambda: engine.running == 0)
    assert not await entitling.conversations.set_generated_title(ME, conversation_id, "Why The Sky Is Blue")
    assert await listed(entitling) == ["Mine"]


async def test_a_title_that_fails_or_is_none_changes_nothing(entitling: Services, engine: FakeEngine) -> None:
    engine.say("Because.")
    engine.say("never said", fail_at=0)
    await chat(entitling, "Why is the sky blue?")
    engine.say("Of course.")
    engine.say("I am a tiny demo model, and I cannot answer that.")
    await chat(entitling, "Can you help me?")
    await eventually(lambda: len(engine.calls) == 4 and engine.running == 0)
    assert await listed(entitling) == ["Can you help me?", "Why is the sky blue?"]


async def test_closing_does_not_wait_for_titles(entitling: Services, engine: FakeEngine) -> None:
    engine.say("Because.")
    engine.say("A title", gates={0: asyncio.Event()})
    await chat(entitling, "Why?")
    async with asyncio.timeout(20):
        await eventually(lambda: len(engine.calls) == 2)
        await entitling.close()
    assert engine.running == 0


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Sorting a list", "Sorting a list"),
        ('  "Sorting a List"\n', "Sorting a List"),
        ("Title: **How to sort**", "How to sort"),
        ("„Listen sortieren“ list", "Listen sortieren“ list"),
        ("", None),
        ("Sorting\nis easy", None),
        ("You can sort a list with sorted().", None),
        ("Would you like to sort?", None),
        ("sort " * 20, None),
        ("Cooking pasta", None),
        ("list " * 11, None),
    ],
)
def test_only_titles_become_titles(said: str, title: str | None) -> None:
    assert as_title(said, about="How do I sort a list? Use sorted().") == title
