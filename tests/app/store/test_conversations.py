"""The repository of conversations, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import Role
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.db.models import Conversation, Message
from app.turns.turn_requests import ToolDecision
from testing.fake_engine import FakeEngine
from tests.app.conftest import add_user


async def chat(services: Services, text: str, conversation_id: str | None = None) -> str:
    """Send a message and wait for the reply; returns the conversation's id."""
    ref = await services.turns.start(ME, text=text, conversation_id=conversation_id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    return ref.conversation_id


async def fill(services: Services, *, messages: int, title: str = "Long") -> tuple[str, list[str]]:
    """A conversation of ``messages`` messages, written past the engine; its id and theirs."""
    conversation_id, now = new_id(), datetime.now(UTC)
    ids = [new_id() for _ in range(messages)]
    rows = [
        {
            "id": id,
            "conversation_id": conversation_id,
            "parent_id": ids[index - 1] if index else None,
            "role": Role.ASSISTANT if index % 2 else Role.USER,
            "status": "complete",
            "content": f"message {index}",
            "position": index,
            "created_at": now,
        }
        for index, id in enumerate(ids)
    ]
    conversation = Conversation(
        id=conversation_id,
        user_id=ME,
        title=title,
        settings={},
        tip_message_id=ids[-1],
        created_at=now,
        updated_at=now,
    )

    def work(session):  # type: ignore[no-untyped-def]
        session.add(conversation)
        session.flush()
        session.execute(insert(Message), rows)

    await services.database.write(work)
    return conversation_id, ids


async def test_the_list_is_newest_first_and_pages_meet_without_gap_or_overlap(services: Services) -> None:
    created = [await chat(services, f"number {number}") for number in range(7)]
    await chat(services, "again", created[2])  # activity brings it to the top
    expected = [created[2], *(id for id in reversed(created) if id != created[2])]

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await services.conversations.list(ME, limit=3, cursor=cursor)
        seen += [item.id for item in page.items]
        assert all(item.snippet == () for item in page.items)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == expected


async def test_pages_split_conversations_of_one_moment(services: Services) -> None:
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    ids = [new_id() for _ in range(5)]
    await services.database.write(
        lambda session: session.add_all(
            Conversation(id=id, user_id=ME, title="t", settings={}, created_at=moment, updated_at=moment) for id in ids
        )
    )
    first = await services.conversations.list(ME, limit=2)
    second = await services.conversations.list(ME, limit=2, cursor=first.next_cursor)
    third = await services.conversations.list(ME, limit=2, cursor=second.next_cursor)
    found = [item.id for page in (first, second, third) for item in page.items]
    assert found == ids[::-1]
    assert third.next_cursor is None
    assert first.items[0].updated_at == moment


@pytest.mark.parametrize("cursor", ["nonsense", "bm9uc2Vuc2U=", "MjAyNi0wNS0wMVQwMDowMDowMHx4", "é", "\ud800"])
async def test_a_cursor_that_no_page_gave_is_refused(services: Services, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await services.conversations.list(ME, cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 501])
async def test_limits_out_of_range_are_refused(services: Services, limit: int) -> None:
    with pytest.raises(InvalidInput, match=str(limit)):
        await services.conversations.list(ME, limit=limit)
    with pytest.raises(InvalidInput, match=str(limit)):
        await services.conversations.get(ME, new_id(), limit=limit)


@pytest.mark.parametrize(
    ("query", "hit"),
    [
        ("KÄSE", "käse"),
        ("100% brot", "100"),
        ("%", "%"),
        ("c:\\temp", "C:\\temp"),
        ("under_score", "under_score"),
        ("ПРИВЕТ", "привет"),
    ],
)
async def test_search_finds_text_whatever_the_case_and_takes_wildcards_literally(
    services: Services, query: str, hit: str
) -> None:
    texts = [
        "Wer mag käse und 100% Brot?",
        "look in C:\\temp first",
        "an under_score here",
        "привет, мир",
        "underXscore, 1000 times, nothing else",
    ]
    for text in texts:
        await chat(services, text)
    page = await services.conversations.list(ME, query=query)
    assert len(page.items) == 1
    assert hit in [part.text for part in page.items[0].snippet if part.hit]
    text = next(text for text in texts if hit in text)
    assert "".join(part.text for part in page.items[0].snippet) == text


async def test_search_finds_titles_and_shows_the_surroundings_in_long_texts(
    services: Services, engine: FakeEngine
) -> None:
    engine.say("x" * 5000 + " the needle lies here " + "y" * 5000)
    hay = await chat(services, "Where is it?")
    await services.conversations.rename(ME, hay, "Needlework")
    titled = await chat(services, "Something else")
    await services.conversations.rename(ME, titled, "About NEEDLES")
    found = {item.id: item.snippet for item in (await services.conversations.list(ME, query="needle")).items}
    assert found.keys() == {hay, titled}
    assert found[titled] == ()
    shown = "".join(part.text for part in found[hay])
    assert "the needle lies here" in shown
    assert len(shown) < 200


async def test_search_pages_too(services: Services) -> None:
    ids = [await chat(services, f"apple {number}") for number in range(3)]
    first = await services.conversations.list(ME, limit=2, query="apple")
    second = await services.conversations.list(ME, limit=2, query="apple", cursor=first.next_cursor)
    assert [item.id for page in (first, second) for item in page.items] == ids[::-1]


async def test_search_copes_with_what_databases_do_not(services: Services) -> None:
    await chat(services, "plain")
    assert (await services.conversations.list(ME, query="pl\0ain")).items  # NUL is dropped, as in what is stored
    assert not (await services.conversations.list(ME, query="\ud800")).items
    assert (await services.conversations.list(ME, query="   ")).items


async def test_a_long_conversation_opens_at_its_end_and_pages_upwards(services: Services) -> None:
    conversation_id, ids = await fill(services, messages=25)
    seen: list[str] = []
    before: str | None = None
    while True:
        view = await services.conversations.get(ME, conversation_id, limit=10, before=before)
        seen = [message.id for message in view.messages] + seen
        if not view.has_earlier:
            break
        before = view.messages[0].id
    assert seen == ids
    top = await services.conversations.get(ME, conversation_id, before=ids[0])
    assert top.messages == ()
    assert not top.has_earlier


async def test_before_must_be_a_message_of_this_conversation(services: Services) -> None:
    conversation_id, _ = await fill(services, messages=2)
    _, other_ids = await fill(services, messages=2)
    for before in (other_ids[0], new_id(), "x", "\0"):
        with pytest.raises(NotFound):
            await services.conversations.get(ME, conversation_id, before=before)


async def test_thousands_of_messages_in_one_chain_are_deleted(services: Services) -> None:
    conversation_id, ids = await fill(services, messages=3000)
    await services.turns.delete_conversation(ME, conversation_id)
    with pytest.raises(NotFound):
        await services.conversations.get_message(ME, ids[1500])
    assert not (await services.conversations.list(ME)).items


async def test_renaming_keeps_the_place_in_the_list_and_tidies_the_title(services: Services) -> None:
    first = await chat(services, "first")
    second = await chat(services, "second")
    await services.conversations.rename(ME, first, "  A\n\tbetter\0 title ")
    items = (await services.conversations.list(ME)).items
    assert [(item.id, item.title) for item in items] == [(second, "second"), (first, "A better title")]


@pytest.mark.parametrize("title", ["", " \n", "\0", "x" * 201])
async def test_titles_nobody_can_use_are_refused(services: Services, title: str) -> None:
    conversation_id = await chat(services, "kept")
    with pytest.raises(InvalidInput):
        await services.conversations.rename(ME, conversation_id, title)
    assert (await services.conversations.get(ME, conversation_id)).title == "kept"


async def test_settings_come_back_as_they_were_saved(services: Services) -> None:
    conversation_id = await chat(services, "hello")
    saved = ChatSettings(
        preset="precise", temperature=0.0, top_k=0, stop=("\n\n", "Ende…"), seed=2**63 - 1, system_prompt="Kurz! 🙂"
    )
    await services.conversations.save_settings(ME, conversation_id, saved)
    assert await services.conversations.settings_of(ME, conversation_id) == saved
    assert (await services.conversations.get(ME, conversation_id)).settings == saved


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", -1.0), ("temperature", float("nan")), ("top_p", 1.5), ("seed", 2**63)]
)
async def test_settings_out_of_range_are_refused_by_name(services: Services, field: str, value: float) -> None:
    conversation_id = await chat(services, "hello")
    with pytest.raises(InvalidInput, match=field):
        await services.conversations.save_settings(ME, conversation_id, ChatSettings(**{field: value}))
    assert await services.conversations.settings_of(ME, conversation_id) == ChatSettings()


async def test_readers_work_while_someone_writes(services: Services) -> None:
    conversation_id = await chat(services, "hello")
    writers = [services.conversations.rename(ME, conversation_id, f"title {number}") for number in range(20)]
    readers = [services.conversations.list(ME) for _ in range(20)]
    await asyncio.gather(*writers, *readers)
    assert (await services.conversations.get(ME, conversation_id)).title.startswith("title")


async def test_times_keep_their_zone(services: Services) -> None:
    conversation_id = await chat(services, "hello")
    view = await services.conversations.get(ME, conversation_id)
    for message in view.messages:
        assert message.created_at.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - message.created_at) < timedelta(minutes=5)


async def test_nobody_meets_another_users_conversations(services: Services, engine: FakeEngine) -> None:
    """Every method of both services, as someone else: as if there was nothing, and nothing changes."""
    hold = asyncio.Event()
    engine.say("secret", " words", gates={1: hold})
    ref = await services.turns.start(ME, text="my secret")
    done_id = await chat(services, "another secret")
    done = (await services.conversations.get(ME, done_id)).messages[-1]
    stranger = await add_user(services.database)
    conversations, deletions, turns = services.conversations, services.deletions, services.turns
    await conversations.set_tags(ME, done_id, ["private"])
    gone = await chat(services, "a third secret")
    deleted = await deletions.delete(ME, (await conversations.get(ME, gone)).messages[-1].id)

    async def read(turn_id: str | None) -> None:
        assert turn_id is not None
        async for _ in turns.events(stranger, turn_id):
            pytest.fail("another user's reply was read")

    async def follow(turn_id: str | None) -> None:
        assert turn_id is not None
        changed = asyncio.Event()
        reader = turns.reader(stranger, turn_id, 0, lambda _now: changed.set())
        try:
            async with asyncio.timeout(60):
                await changed.wait()
            assert reader.take() == []
        finally:
            await reader.close()

    two = (ChatSettings(), ChatSettings(temperature=1.0))
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "conversations.get": lambda: conversations.get(stranger, ref.conversation_id),
        "conversations.get_message": lambda: conversations.get_message(stranger, ref.message_id),
        "conversations.rename": lambda: conversations.rename(stranger, ref.conversation_id, "mine"),
        "conversations.save_settings": lambda: conversations.save_settings(
            stranger, ref.conversation_id, ChatSettings()
        ),
        "conversations.settings_of": lambda: conversations.settings_of(stranger, ref.conversation_id),
        "conversations.show": lambda: conversations.show(stranger, ref.user_message_id),
        "conversations.branch": lambda: conversations.branch(stranger, done.id),
        "conversations.mark": lambda: conversations.mark(stranger, ref.conversation_id, pinned=True),
        "conversations.set_tags": lambda: conversations.set_tags(stranger, ref.conversation_id, ["mine"]),
        "conversations.get at a message": lambda: conversations.get(stranger, done_id, at=done.id),
        "deletions.delete": lambda: deletions.delete(stranger, done.id),
        "conversations.move": lambda: conversations.move(stranger, ref.conversation_id, None),
        "deletions.delete_conversations": lambda: deletions.delete_conversations(stranger, [ref.conversation_id]),
        "deletions.undo": lambda: deletions.undo(stranger, deleted.deletion_id),
        "turns.edit": lambda: turns.edit(stranger, done.parent_id or "", text="hi"),
        "turns.resume": lambda: turns.resume(stranger, done.id),
        "turns.decide": lambda: turns.decide(stranger, done.id, ToolDecision(frozenset("x"), frozenset())),
        "turns.branch_at": lambda: turns.branch_at(stranger, done.id, index=0, token_id=5),
        "conversations.versions": lambda: conversations.versions(stranger, done.id),
        "turns.rewrite": lambda: turns.rewrite(stranger, done.id, text="hi"),
        "turns.resume_as_version": lambda: turns.resume_as_version(stranger, done.id),
        "turns.compare": lambda: turns.compare(stranger, two, text="hi", conversation_id=done_id),
        "turns.compare_again": lambda: turns.compare_again(stranger, done.id, two),
        "turns.regenerate": lambda: turns.regenerate(stranger, done.id),
        "turns.start": lambda: turns.start(stranger, text="hi", conversation_id=done_id),
        "turns.events": lambda: read(ref.turn_id),
        "turns.events of a finished one": lambda: read(done.turn_id),
        "turns.reader": lambda: follow(ref.turn_id),
        "turns.reader of a finished one": lambda: follow(done.turn_id),
        "turns.snapshot": lambda: turns.snapshot(stranger, ref.turn_id),
        "turns.stop": lambda: turns.stop(stranger, ref.turn_id),
        "turns.delete_conversation": lambda: turns.delete_conversation(stranger, ref.conversation_id),
    }
    methods = {
        f"{name}.{method}"
        for name, service in (("conversations", conversations), ("deletions", deletions), ("turns", turns))
        for method in vars(type(service))
        if not method.startswith("_")
    }
    classified = {name.split(" ")[0] for name in attempts} | {
        "conversations.create",  # makes one's own
        "conversations.list",
        "conversations.tags",
        "conversations.set_generated_title",
        "deletions.purge",
        "turns.leave_conversations",  # those that a deletion of one's own returned
        "turns.close",
        "turns.running_turn_ids",  # for the sweeper, which takes nobody's
        "turns.count_running",  # counts one's own
    }
    assert methods == classified, "a method that this test does not know"

    for attempt in attempts.values():
        with pytest.raises(NotFound):
            await attempt()
    assert (await conversations.list(stranger)).items == ()
    for query in ("secret", "%", "e"):
        assert (await conversations.list(stranger, query=query)).items == ()
    assert (await conversations.list(stranger, tag="private")).items == ()
    assert await conversations.tags(stranger) == {}
    assert not await conversations.set_generated_title(stranger, done_id, "Taken over")
    # A parent in another's conversation, and a stranger's message there, are no more reachable.
    own = await turns.start(stranger, text="own")
    async for _ in turns.events(stranger, own.turn_id):
        pass
    with pytest.raises(NotFound):
        await turns.start(stranger, text="hi", conversation_id=own.conversation_id, parent_id=done.id)

    hold.set()
    text = "".join([event.text async for event in turns.events(ME, ref.turn_id) if hasattr(event, "text")])
    assert text == "secret words"
    assert [item.title for item in (await conversations.list(ME)).items] == [
        "a third secret",
        "another secret",
        "my secret",
    ]


async def test_a_conversation_with_a_running_reply_says_so(services: Services, engine: FakeEngine) -> None:
    hold = asyncio.Event()
    engine.say("never", gates={0: hold})
    ref = await services.turns.start(ME, text="hello")
    assert (await services.conversations.list(ME)).items[0].streaming
    assert (await services.conversations.get(ME, ref.conversation_id)).active_turn_id == ref.turn_id
    with pytest.raises(Conflict):
        await services.turns.start(ME, text="more", conversation_id=ref.conversation_id)
    hold.set()
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert not (await services.conversations.list(ME)).items[0].streaming
    assert (await services.conversations.get(ME, ref.conversation_id)).active_turn_id is None
