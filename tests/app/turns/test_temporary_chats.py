"""Chats that are kept in memory only: everything works there, and nothing of them reaches the disk."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID as ME
from app.errors import NotFound
from app.services.container import Services
from app.store.db.models import Conversation, Message, Turn
from testing.fake_engine import FakeEngine
from tests.app.live_server import RunningApp, live_server
from tests.app.store.test_conversations import chat

SECRET = "a secret that no disk may hold"


async def begin(services: Services, text: str = SECRET) -> str:
    chats = await services.temporary.begin(ME)
    ref = await chats.turns.start(ME, text=text)
    async for _ in chats.turns.events(ME, ref.turn_id):
        pass
    return ref.conversation_id


async def test_nothing_of_it_is_stored_listed_or_found(services: Services) -> None:
    kept = await chat(services, "kept")
    conversation_id = await begin(services)
    assert await services.chats_with(kept) is services.chats
    chats = await services.chats_with(conversation_id)
    assert (await chats.conversations.get(ME, conversation_id)).messages[0].content == SECRET
    assert [item.id for item in (await services.conversations.list(ME)).items] == [kept]
    assert (await services.conversations.list(ME, query="secret")).items == ()
    for table, count in ((Conversation, 1), (Message, 2), (Turn, 1)):
        counted = select(func.count()).select_from(table)
        assert await services.database.read(partial(Session.scalar, statement=counted)) == count


async def test_it_is_forgotten_after_a_day_and_not_before(services: Services) -> None:
    old, young = await begin(services), await begin(services)
    chats = await services.chats_with(old)
    long_ago = datetime.now(UTC) - timedelta(hours=25)
    database = chats.conversations._database
    await database.write(
        lambda session: session.execute(update(Conversation).where(Conversation.id == old).values(updated_at=long_ago))
    )
    await services.temporary.delete_expired()
    assert await services.chats_with(old) is services.chats
    assert await services.chats_with(young) is chats


async def test_two_first_ones_at_once_share_one_memory(services: Services) -> None:
    first, second = await asyncio.gather(services.temporary.begin(ME), services.temporary.begin(ME))
    assert first is second


async def test_another_user_sees_nothing_of_it(services: Services, stranger: str) -> None:
    conversation_id = await begin(services)
    chats = await services.temporary.begin(stranger)
    with pytest.raises(NotFound):
        await chats.conversations.get(stranger, conversation_id)


async def test_a_reply_in_flight_is_ended_when_the_server_closes(services: Services, engine: FakeEngine) -> None:
    engine.say("slow", gates={0: asyncio.Event()})
    chats = await services.temporary.begin(ME)
    object.__setattr__(services.settings, "shutdown_seconds", 0.1)
    await chats.turns.start(ME, text="hi")
    await services.close()
    assert engine.running == 0


def files_with(text: str, folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


async def _whole_chat(live: RunningApp) -> httpx.Response:
    http = live.http
    turn = (await http.post("/api/turns", json={"text": SECRET, "temporary": True})).json()
    conversation_id, reply_id = turn["conversation_id"], turn["message_id"]
    events = await http.get("/api/events", params={"turn": f"{turn['turn_id']}:0"})
    assert "event: end" in events.text
    assert "event: end" in (await http.get(f"/api/turns/{turn['turn_id']}/events")).text
    assert (await http.post(f"/api/turns/{turn['turn_id']}/stop", json={})).status_code == 204
    more = await http.post("/api/turns", json={"text": "and more", "conversation_id": conversation_id})
    await http.get(f"/api/turns/{more.json()['turn_id']}/events")
    again = await http.post(f"/api/messages/{reply_id}/regenerate", json={})
    await http.get(f"/api/turns/{again.json()['turn_id']}/events")
    assert (await http.post(f"/api/messages/{reply_id}/show", json={})).status_code == 204
    deleted = await http.delete(f"/api/messages/{reply_id}")
    assert (await http.post(f"/api/deletions/{deleted.json()['deletion_id']}/undo", json={})).status_code == 200
    branched = await http.post(f"/api/messages/{reply_id}/branch", json={})
    assert (await http.get(f"/api/conversations/{branched.json()['conversation_id']}")).json()["temporary"]
    path = f"/api/conversations/{conversation_id}"
    assert (await http.patch(path, json={"title": "Renamed", "settings": {"temperature": 0}})).status_code == 204
    view = await http.get(path)
    assert (view.json()["title"], view.json()["temporary"]) == ("Renamed", True)
    assert (await http.delete(path)).status_code == 204
    return await http.get(path)


@pytest.mark.slow
async def test_every_door_works_for_it_and_no_file_ever_holds_it(tmp_path: Path) -> None:
    async with live_server(tmp_path, gradio=False) as live:
        gone = await _whole_chat(live)
        assert gone.status_code == 404
        turn = (await live.http.post("/api/turns", json={"text": SECRET, "temporary": True})).json()
        await live.http.get(f"/api/turns/{turn['turn_id']}/events")
        assert (await live.http.get("/api/conversations")).json()["items"] == []
        assert files_with(SECRET, tmp_path) == []
        await live.http.post("/api/turns", json={"text": "kept on disk"})
        assert files_with("kept on disk", tmp_path) != []
    async with live_server(tmp_path, gradio=False) as live:  # after a restart it is gone
        assert (await live.http.get(f"/api/conversations/{turn['conversation_id']}")).status_code == 404
