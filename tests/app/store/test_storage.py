"""What each person has stored: counted exactly whatever happens to it, limited with a sentence, told beforehand."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, event, select, text
from sqlalchemy.orm import Session

from app.domain import storage
from app.domain.chat_settings import MAX_SYSTEM_PROMPT_CHARS, ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.roles import UserRole
from app.domain.storage import MIB, StorageLimits, StorageUse
from app.errors import InvalidInput, LimitReached
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat.conversations import Conversations
from app.store.chat.storage_use import StorageUsageRecords
from app.store.db import driver
from app.store.db.database import sqlite_engine
from app.store.db.models import Conversation, Message
from app.store.knowledge.source_rights import SourceRights
from app.store.maintenance.migrate import alembic_config, migrate
from app.turns import storage_quota as room
from testing.fake_engine import FakeEngine
from tests.app.auth.test_quotas import send
from tests.app.desk import SECRET, Desk, desk, wait_for_replies
from tests.app.store.test_conversations import fill


def counted(session: Session, user_id: str) -> int:
    """The same the long way: every text is read."""
    total = 0
    for conversation in session.scalars(select(Conversation).where(Conversation.user_id == user_id)):
        query = text("SELECT CAST(settings AS TEXT) FROM conversation WHERE id = :id")
        total += storage.CONVERSATION_BYTES + len(session.scalars(query, {"id": conversation.id}).one().encode())
        for message in session.scalars(select(Message).where(Message.conversation_id == conversation.id)):
            total += storage.MESSAGE_BYTES + len(message.content.encode()) + 4 * len(message.token_ids or ())
        query = text("SELECT CAST(params AS TEXT) FROM turn WHERE conversation_id = :id")
        total += sum(len(params.encode()) for params in session.scalars(query, {"id": conversation.id}))
    return total


async def test_what_is_stored_is_counted_through_all_that_happens_to_it(
    services: Services, engine: FakeEngine, stranger: str
) -> None:
    uses = StorageUsageRecords(services.database)

    async def use_of(user_id: str = ME) -> StorageUse:
        use = await uses.of(user_id)
        assert use.bytes == await services.database.read(lambda session: counted(session, user_id))
        return use

    assert await use_of() == StorageUse(0, 0, 0)
    engine.say("Ünïcode ", "🦜")
    first = await services.turns.start(ME, text="Grüße, 世界", settings=ChatSettings(temperature=0.5))
    await _ended(services)
    one = await use_of()
    assert one.conversations == 1
    assert one.bytes > storage.CONVERSATION_BYTES + 2 * storage.MESSAGE_BYTES
    again = await services.turns.regenerate(ME, first.message_id)
    await _ended(services)
    two = await use_of()
    assert two.bytes > one.bytes + storage.MESSAGE_BYTES
    await services.conversations.set_tags(ME, first.conversation_id, ["a", "b"])
    copy_id = await services.conversations.branch(ME, again.message_id)
    await services.conversations.set_tags(ME, copy_id, ["b", "c"])
    both = await use_of()
    assert (both.conversations, both.tags) == (2, 3)
    assert both.bytes > two.bytes
    assert await uses.of_conversation(ME, first.conversation_id) == two.bytes
    assert await uses.of_conversation(stranger, first.conversation_id) == 0
    export = await services.transfers.export_all(ME, "json")
    data = b"".join([piece async for piece in export.pieces])
    await services.transfers.import_file(stranger, io.BytesIO(data))
    theirs = await use_of(stranger)
    assert (theirs.conversations, theirs.tags) == (2, 3)
    await services.turns.delete_conversation(ME, first.conversation_id)
    left = await use_of()
    assert left.conversations == 1
    assert left.bytes == both.bytes - two.bytes
    await services.turns.delete_conversation(ME, copy_id)
    assert await use_of() == StorageUse(0, 0, 0)
    assert await use_of(stranger) == theirs


async def _ended(services: Services) -> None:
    while services.turns.running_turn_ids():
        await asyncio.gather(*services.turns._live.tasks, return_exceptions=True)


async def test_counting_reads_no_text(tmp_path: Path) -> None:
    """On SQLite sizes come from an index; a row may be long."""
    url = f"sqlite:///{tmp_path / 'count.db'}"
    await asyncio.to_thread(migrate, url)
    with sqlite_engine(url, connections=1).connect() as connection:
        for table, column in (
            *(("message", "conversation_id"), ("turn", "conversation_id")),
            *(("conversation", "user_id"), ("response", "user_id")),
        ):
            plan = connection.execute(
                text(f"EXPLAIN QUERY PLAN SELECT sum(stored_bytes) FROM {table} WHERE {column} = 'x'")
            ).all()
            assert f"ix_{table}_{column}_stored_bytes" in str(plan)


async def test_a_database_from_before_is_counted_too(tmp_path: Path) -> None:
    """The migration needs nobody to write anything again."""
    from alembic import command

    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = sqlite_engine(url, connections=1)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0005")
    now = "2026-01-01 00:00:00.000000"
    with sqlite3.connect(tmp_path / "old.db") as old:
        old.execute(
            "INSERT INTO conversation (id, user_id, title, settings, created_at, updated_at) VALUES (?,?,?,?,?,?)",
            ("c", ME, "T", "{}", now, now),
        )
        old.execute(
            "INSERT INTO message (id, conversation_id, role, status, content, position, created_at) "
            "VALUES ('m', 'c', 'user', 'complete', 'ü', 0, ?)",
            (now,),
        )
    old.close()
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")
        assert connection.scalar(text("SELECT stored_bytes FROM message")) == 2
        assert connection.scalar(text("SELECT stored_bytes FROM conversation")) == 2
        command.downgrade(alembic_config(connection), "0005")
        assert connection.scalar(text("SELECT content FROM message")) == "ü"


@pytest.mark.slow
async def test_who_has_no_room_is_told_and_loses_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, storage_mb_per_user=1) as here:
        ben, ada = await here.add("ben", UserRole.AGENT), await here.add("ada", UserRole.ADMIN)
        gate = asyncio.Event()
        here.live.engine.say("a", "b" * 200_000, gates={1: gate})
        sent = (await send(ben, "x" * 150_000)).json()
        await _fill_up(here, ben)
        refused = await send(ben, "one more")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "limit_reached"
        assert "Your storage is full: 1.0 MiB of 1.0 MiB" in refused.json()["error"]["message"]
        gate.set()  # the reply under way when the limit was met comes to its end
        await wait_for_replies(here)
        reply = await ben.get(f"/api/conversations/{sent['conversation_id']}")
        assert len(reply.json()["messages"][-1]["content"]) == 200_001
        for path in ("regenerate", "branch"):
            answer = await ben.post(f"/api/messages/{sent['message_id']}/{path}", json={})
            assert answer.status_code == 409, answer.text
        told = (await ben.get("/api/account/storage")).json()
        assert told["used_bytes"] > told["max_bytes"] == MIB
        # Programs store nothing, others have room, and what is deleted makes room at once.
        assert (await ben.post("/v1/chat/completions", json=_CHAT)).status_code == 200
        assert (await send(ada)).status_code == 201
        assert (await ben.delete(f"/api/conversations/{sent['conversation_id']}")).status_code == 204
        assert (await send(ben, "one more")).status_code == 201
        await wait_for_replies(here)


_CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def _fill_up(here: Desk, http: httpx.AsyncClient) -> None:
    for _ in range(8):
        here.live.engine.say("a")
        answer = await send(http, "y" * 150_000)
        if answer.status_code != 201:
            return
    raise AssertionError("it never became full")


async def test_conversations_have_a_number(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, conversations_per_user=2) as here:
        ben = await here.add("ben", UserRole.AGENT)
        first = (await send(ben)).json()
        assert (await send(ben)).status_code == 201
        await wait_for_replies(here)
        refused = await send(ben)
        assert refused.status_code == 409
        assert "You have 2 conversations, and 2 is the most" in refused.json()["error"]["message"]
        assert (await send(ben, conversation_id=first["conversation_id"])).status_code == 201
        await wait_for_replies(here)
        branched = await ben.post(f"/api/messages/{first['message_id']}/branch")
        assert branched.status_code == 409
        assert "you would have more than 2 conversations" in branched.json()["error"]["message"]
        assert len((await ben.get("/api/conversations")).json()["items"]) == 2


async def test_tags_have_a_number_and_prompts_a_length(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    id, _ = await fill(services, messages=1)
    other, _ = await fill(services, messages=1)
    services.conversations._limits = StorageLimits(max_tags=2, max_bytes=30_000)
    await services.conversations.set_tags(ME, id, ["a", "b"])
    await services.conversations.set_tags(ME, other, ["a"])
    with pytest.raises(LimitReached, match="3 different tags, and 2 is the most"):
        await services.conversations.set_tags(ME, other, ["c"])
    await services.conversations.save_settings(ME, id, ChatSettings(system_prompt="x" * 20_000))
    with pytest.raises(LimitReached, match="There isn't enough room"):
        await services.conversations.save_settings(ME, other, ChatSettings(system_prompt="x" * 20_000))
    assert (await services.conversations.settings_of(ME, other)).system_prompt == ""
    long = ChatSettings(system_prompt="x" * (MAX_SYSTEM_PROMPT_CHARS + 1))
    with pytest.raises(InvalidInput, match="system prompt is 200,001 characters long"):
        await services.conversations.save_settings(ME, id, long)
    with pytest.raises(InvalidInput, match="system prompt is 200,001"):
        await services.turns.start(ME, text="hi", settings=long)


async def test_one_conversation_and_temporary_ones_have_a_size(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_CONVERSATION_BYTES", 5000)
    sent = await services.turns.start(ME, text="x" * 5000)
    await _ended(services)
    await services.storage.use_of(ME)
    with pytest.raises(LimitReached, match="Continue in a new conversation"):
        await services.turns.start(ME, text="more", conversation_id=sent.conversation_id)
    await services.turns.start(ME, text="elsewhere")
    await _ended(services)
    chats = await services.temporary.begin(ME)
    assert chats.turns._starts._storage is not None
    chats.turns._starts._storage.limits = StorageLimits(max_bytes=1000, temporary=True)
    await chats.turns.start(ME, text="x" * 1000)
    with pytest.raises(LimitReached, match="temporary chats hold"):
        await chats.turns.start(ME, text="x")


async def test_a_count_is_used_again_only_where_there_is_much_room(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    of = StorageUsageRecords.of

    async def noted(self: StorageUsageRecords, user_id: str) -> StorageUse:
        nonlocal looks
        looks += 1
        return await of(self, user_id)

    monkeypatch.setattr(StorageUsageRecords, "of", noted)
    services.storage.limits = StorageLimits(max_bytes=1000 * MIB, max_conversations=1000)
    for _ in range(3):
        await services.storage.check(ME, None)
    assert looks == 1
    services.storage.limits = StorageLimits(max_bytes=10 * MIB)
    for _ in range(3):
        await services.storage.check(ME, None)
    assert looks == 4


def test_limits_are_for_accounts_and_zero_is_none() -> None:
    assert AppSettings(_env_file=None).storage_limits == StorageLimits()
    with_accounts: dict[str, Any] = {"accounts": True, "secret_key": SECRET, "_env_file": None}
    assert AppSettings(**with_accounts).storage_limits.max_bytes == 1024 * MIB
    free = AppSettings(**with_accounts, storage_mb_per_user=0, conversations_per_user=0).storage_limits
    assert (free.max_bytes, free.max_conversations) == (None, None)


async def test_every_role_sees_its_own_storage(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False) as here:
        people = {role: await here.add(role.value, role) for role in UserRole}
        assert (await send(people[UserRole.AGENT], "x" * 5000)).status_code == 201
        await wait_for_replies(here)
        used = {}
        for role, http in people.items():
            answer = await http.get("/api/account/storage")
            assert answer.status_code == 200
            used[role] = answer.json()["used_bytes"]
            assert answer.json()["max_bytes"] == 1024 * MIB
        assert used[UserRole.AGENT] > 5000
        assert used[UserRole.ADMIN] == used[UserRole.VIEWER] == 0
        async with here.client() as nobody:
            assert (await nobody.get("/api/account/storage")).status_code == 401


def test_a_change_that_makes_nothing_larger_may_stay_above_the_limit() -> None:
    limits = StorageLimits(max_bytes=100, max_conversations=2, max_tags=2)
    above = StorageUse(120, 3, 3)
    limits.require_kept(above, above)
    limits.require_kept(StorageUse(110, 3, 2), above)
    for larger in (StorageUse(121, 3, 3), StorageUse(120, 4, 3), StorageUse(120, 3, 4)):
        with pytest.raises(LimitReached):
            limits.require_kept(larger, above)


async def test_above_the_limit_tags_are_taken_off_and_a_prompt_is_shortened(services: Services) -> None:
    one = (await services.turns.start(ME, text="hello")).conversation_id
    await _ended(services)
    await services.conversations.set_tags(ME, one, ["a", "b"])
    await services.conversations.save_settings(ME, one, ChatSettings(system_prompt="x" * 50_000))
    rights = SourceRights(services.database)
    full = Conversations(services.database, rights.closed, StorageLimits(max_bytes=1, max_tags=1))
    await full.set_tags(ME, one, ["a"])
    await full.save_settings(ME, one, ChatSettings(system_prompt="x" * 40_000))
    with pytest.raises(LimitReached):
        await full.save_settings(ME, one, ChatSettings(system_prompt="x" * 60_000))
    with pytest.raises(LimitReached):
        await full.set_tags(ME, one, ["a", "c"])


async def test_branches_of_a_temporary_chat_count_against_what_temporary_chats_may_hold(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.chats.TEMPORARY_BYTES", 18_000)
    chats = await services.temporary.begin(ME)
    sent = await chats.turns.start(ME, text="x" * 5000)
    while chats.turns.running_turn_ids():
        await asyncio.gather(*chats.turns._live.tasks, return_exceptions=True)
    await chats.conversations.branch(ME, sent.message_id)
    with pytest.raises(LimitReached, match="temporary chats would hold"):
        await chats.conversations.branch(ME, sent.message_id)


async def test_a_users_storage_is_counted_by_one_statement(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    fetch = driver.fetch

    def noted(connection: Connection, statement: str, parameters: driver.Parameters = ()) -> list[tuple[Any, ...]]:
        statements.append(statement)
        return fetch(connection, statement, parameters)

    monkeypatch.setattr(driver, "fetch", noted)
    engine = services.database._reader
    event.listen(engine, "before_cursor_execute", lambda *of_statement: statements.append(of_statement[2]))
    await StorageUsageRecords(services.database).of(ME)
    assert len([statement for statement in statements if "stored_bytes" in statement]) == 1
