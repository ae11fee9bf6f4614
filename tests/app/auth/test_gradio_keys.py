"""Who may call ``/chat``, and what a key that may does not get to besides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from gradio_client.exceptions import AppError, AuthenticationError

from app.auth import rate_limits
from app.auth.policy import RULES, Access
from app.domain.roles import UserRole
from app.store.db.models import Conversation, Message
from app.store.db.sign_in_models import ApiKey
from testing.waiting import eventually
from tests.app.api.test_doors import path_of
from tests.app.desk import PASSWORD, Desk, desk
from tests.app.gradio_calls import call_of, chat_index, connect, messages_of, next_of, predict, result_of
from tests.app.live_server import reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDED_TO_KEYS = [rule for rule in RULES if rule.scope is not None and not rule.path.startswith(("/v1", "/tok"))]
GRADIO = [rule for rule in RULES if rule.path == "/config" or rule.path.startswith("/gradio_api/")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data"), messages_per_minute=None) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


@pytest.fixture
def here(opened: Desk) -> Desk:
    reset_engine(opened.live.engine)
    opened.accounts._rate_limiter = rate_limits.RateLimiter()
    return opened


async def make_key(here: Desk, name: str, **fields: Any) -> dict[str, Any]:
    answer = await here.clients[name].post("/api/account/keys", json={"name": "program", "scopes": ["chat"], **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def titles(http: httpx.AsyncClient) -> list[str]:
    return [one["title"] for one in (await http.get("/api/conversations")).json()["items"]]


async def outputs_of(http: httpx.AsyncClient, session: str, headers: dict[str, str]) -> dict[str, Any]:
    """The end of a session's only event."""
    async with aclosing(messages_of(http, session, headers)) as messages:
        async for message in messages:
            if message["msg"] == "process_completed":
                return message
    raise AssertionError("it never ended")


# ---- with a key


async def test_a_key_starts_an_ordinary_turn_of_its_owner(here: Desk) -> None:
    key = await make_key(here, "ben")
    client = await connect(here.live.url, key["key"])
    gate = asyncio.Event()
    here.live.engine.say("Hello", ", Ben.", gates={1: gate})
    job = client.submit("by a program", api_name="/chat")
    assert await next_of(job) == "Hello"
    gate.set()
    assert await result_of(job) == "Hello, Ben."
    await asyncio.to_thread(client.close)
    assert "by a program" in await titles(here.clients["ben"])
    assert "by a program" not in await titles(here.clients["ada"])
    [listed] = [one for one in (await here.clients["ben"].get("/api/account/keys")).json() if one["id"] == key["id"]]
    assert listed["last_used_at"] is not None


async def test_a_key_that_is_none_opens_nothing(here: Desk) -> None:
    for key in (None, "x", "dmk_x", (await make_key(here, "ben"))["key"] + "x"):
        with pytest.raises(AuthenticationError):
            await connect(here.live.url, key)
    with pytest.raises(ValueError, match="Could not login"):  # there is no such route
        await connect(here.live.url, auth=("ben", PASSWORD))


@pytest.mark.parametrize("how", ["wrong", "expired", "revoked", "other scope", "disabled"])
async def test_a_key_that_does_not_count_is_refused_at_every_route(here: Desk, how: str) -> None:
    owner, expected = "ben", 401
    if how == "disabled":
        owner = "gone"
        await here.add(owner, UserRole.AGENT)
    made = await make_key(here, owner, **({"scopes": ["models"]} if how == "other scope" else {}))
    key, index = made["key"], await chat_index(here.clients["ben"])
    match how:
        case "wrong":
            key = key[:-1]
        case "expired":
            past = datetime.now(UTC) - timedelta(seconds=1)
            change = sa.update(ApiKey).where(ApiKey.id == made["id"]).values(expires_at=past)
            await here.services.database.write(lambda session: session.execute(change))
            here.accounts.key_cache.invalidate()
        case "revoked":
            assert (await here.clients["ben"].delete(f"/api/account/keys/{made['id']}")).status_code == 204
        case "other scope":
            expected = 403
        case "disabled":
            await here.accounts.set_disabled(here.ids[owner], True, actor_id=None)
    async with here.client() as program:
        for rule in HANDED_TO_KEYS:
            if rule not in GRADIO:
                continue
            [method] = rule.methods
            body = call_of(index, "s-refused") if method == "POST" else None
            path = path_of(rule, session_hash="s-refused")
            answer = await program.request(
                method, path, json=body, params={"session_hash": "s-refused"}, headers=bearer(key)
            )
            assert answer.status_code == expected, path
            said = "lacks the required scope" if expected == 403 else "Incorrect API key"
            assert said in answer.json()["error"]["message"]
    # A key that is shown counts, whatever cookie comes along.
    assert (await here.clients["ada"].get("/config", headers=bearer(key))).status_code == expected
    assert here.live.engine.calls == []


async def test_a_token_that_is_not_ours_to_judge_leaves_the_cookie_in_charge(here: Desk) -> None:
    """A proxy in front of the page may send its own along with every request."""
    assert (await here.clients["ben"].get("/config", headers=bearer("eyJhbGciOi"))).status_code == 200
    async with here.client() as nobody:
        assert (await nobody.get("/config", headers=bearer("eyJhbGciOi"))).status_code == 401


async def test_a_key_acts_for_its_owner_in_another_users_browser(here: Desk) -> None:
    key, index = await make_key(here, "ben"), await chat_index(here.clients["ada"])
    body = call_of(index, "s-mixed", "whose is it?")
    answer = await here.clients["ada"].post("/gradio_api/queue/join", json=body, headers=bearer(key["key"]))
    assert answer.status_code == 200
    await outputs_of(here.clients["ada"], "s-mixed", bearer(key["key"]))
    assert "whose is it?" in await titles(here.clients["ben"])
    assert "whose is it?" not in await titles(here.clients["ada"])


async def test_a_key_gets_to_no_other_route_of_gradios(here: Desk) -> None:
    key, index = await make_key(here, "ada"), await chat_index(here.clients["ada"])
    touched = 0
    async with here.client() as program:
        for rule in GRADIO:
            if rule.scope is not None or rule.access is Access.OPEN:
                continue
            for method in rule.methods:
                path = path_of(rule, api_name="chat", session_hash="s-other")
                body = call_of(index, "s-other") if method == "POST" else None
                answer = await program.request(method, path, json=body, headers=bearer(key["key"]))
                assert answer.status_code == (404 if rule.access is Access.DENIED else 401), f"{method} {path}"
                touched += 1
    assert touched > 20
    assert here.live.engine.calls == []


async def test_a_key_runs_none_of_the_pages_listeners(here: Desk) -> None:
    key = await make_key(here, "ada")
    async with here.client() as program:
        program.headers.update(bearer(key["key"]))
        dependencies = (await program.get("/config")).json()["dependencies"]
        private = [one["id"] for one in dependencies if one["api_visibility"] == "private"]
        assert len(private) > 3
        [index] = here.live.app.state.public_endpoints
        for named in (*private, *map(str, private), str(index), float(index), True, None, [index], 9999, -1):
            body = {**call_of(index, "s-private"), "fn_index": named}
            answer = await program.post("/gradio_api/queue/join", json=body)
            assert answer.status_code == 403, named
            assert "only call the endpoint /chat" in answer.json()["error"]["message"]
        del body["fn_index"]
        assert (await program.post("/gradio_api/queue/join", json={**body, "api_name": "chat"})).status_code == 403
    assert here.live.engine.calls == []


# ---- sessions


async def test_a_session_is_its_openers_alone(here: Desk) -> None:
    """Ben's browser, two keys of his, and another user: none reads, cancels or joins what another opened."""
    index = await chat_index(here.clients["ben"])
    keys = [bearer((await make_key(here, "ben"))["key"]) for _ in range(2)]
    async with here.client() as program:
        callers: list[tuple[httpx.AsyncClient, dict[str, str]]] = [
            (here.clients["ben"], {}),
            (here.clients["ada"], {}),
            (program, keys[0]),
            (program, keys[1]),
        ]
        for number, (owner, headers) in enumerate(callers):
            session = f"s-owned-{number}"
            body = call_of(index, session, f"said by {number}")
            joined = await owner.post("/gradio_api/queue/join", json=body, headers=headers)
            assert joined.status_code == 200
            cancel = {"session_hash": session, "fn_index": index, "event_id": joined.json()["event_id"]}
            for other, theirs in callers[:number] + callers[number + 1 :]:
                for path in (f"/gradio_api/queue/data?session_hash={session}", f"/gradio_api/heartbeat/{session}"):
                    assert (await other.get(path, headers=theirs)).status_code == 404
                for path, sent in (("queue/join", body), ("cancel", cancel)):
                    answer = await other.post(f"/gradio_api/{path}", json=sent, headers=theirs)
                    assert answer.status_code == 404
            ended = await outputs_of(owner, session, headers)
            assert ended["output"]["data"] == ["Hello, world."]


async def test_a_body_says_nothing_about_who_sends_it(here: Desk) -> None:
    key, index = await make_key(here, "ben"), await chat_index(here.clients["ben"])
    ada = here.ids["ada"]
    identity: dict[str, Any] = {"user_id": ada, "role": "admin", "session_id": "s", "key_id": None, "scopes": []}
    forged = {
        "username": "ada",
        "user_id": ada,
        "identity": identity,
        "request": {"state": {"identity": identity}, "scope": {"state": {"identity": identity}}},
        "state": {"identity": identity},
        "event_data": {"identity": identity},
        "simple_format": True,
    }
    async with here.client() as program:
        program.headers.update(bearer(key["key"]))
        program.headers.update({"X-Gradio-User": "ada", "X-User": ada})
        body = call_of(index, "s-forged", "who am I?", **forged)
        assert (await program.post("/gradio_api/queue/join?user_id=ada", json=body)).status_code == 200
        await outputs_of(program, "s-forged", {})
        batch = call_of(index, "s-batched", "who are we?", batched=True)
        assert (await program.post("/gradio_api/queue/join", json=batch)).status_code == 200
        await outputs_of(program, "s-batched", {})
    assert {"who am I?", "who are we?"} <= set(await titles(here.clients["ben"]))
    saved = await here.services.database.read(
        lambda session: list(session.scalars(sa.select(Conversation.user_id).where(Conversation.title == "who am I?")))
    )
    assert saved == [here.ids["ben"]]


# ---- roles, owners, limits


@pytest.mark.parametrize("by", ["key", "browser"])
async def test_a_viewer_reads_only(here: Desk, by: str) -> None:
    http, headers = here.clients["cyd"], {}
    if by == "key":
        http, headers = here.client(), bearer((await make_key(here, "cyd"))["key"])
    index = await chat_index(http, headers=headers)
    joined = await http.post("/gradio_api/queue/join", json=call_of(index, f"s-viewer-{by}"), headers=headers)
    assert joined.status_code == 200
    ended = await outputs_of(http, f"s-viewer-{by}", headers)
    assert ended["success"] is False
    assert "Your role is read-only" in ended["output"]["error"]
    assert here.live.engine.calls == []
    assert await titles(here.clients["cyd"]) == []
    if by == "key":
        await http.aclose()


async def test_anothers_conversation_is_not_there(here: Desk) -> None:
    client = await connect(here.live.url, (await make_key(here, "ada"))["key"])
    for temporary in (False, True):
        sent = await here.clients["ben"].post("/api/turns", json={"text": "Ben's alone", "temporary": temporary})
        ids = sent.json()
        await eventually(lambda: here.live.engine.running == 0)
        here.live.engine.calls.clear()
        for other in (ids["conversation_id"], ids["message_id"], ids["turn_id"]):
            with pytest.raises(AppError, match="There is no such conversation"):
                await predict(client, "let me in", other)
        assert here.live.engine.calls == []
        shown = await here.clients["ben"].get(f"/api/conversations/{ids['conversation_id']}")
        assert len(shown.json()["messages"]) == 2
    await asyncio.to_thread(client.close)


@pytest.mark.parametrize("how", ["revoked", "disabled"])
async def test_a_key_that_ends_meanwhile_ends_the_stream_and_not_the_reply(here: Desk, how: str) -> None:
    name = f"ends-{how}"
    http = await here.add(name, UserRole.AGENT)
    key = await make_key(here, name)
    client = await connect(here.live.url, key["key"])
    gate = asyncio.Event()
    here.live.engine.say("begun ", "the secret end", gates={1: gate})
    job = client.submit("hello", include_ids=True, api_name="/chat")
    first = await next_of(job)
    assert first["text"] == "begun "
    if how == "revoked":
        assert (await http.delete(f"/api/account/keys/{key['id']}")).status_code == 204
    else:
        await here.accounts.set_disabled(here.ids[name], True, actor_id=None)
    assert await asyncio.to_thread(job.future.exception, 60) is not None  # how the client tells that a stream ended
    assert here.live.engine.running == 1
    gate.set()
    await eventually(lambda: here.services.turns.count_running(here.ids[name]) == 0)
    assert not any("secret" in str(output) for output in job.outputs())
    saved = await here.services.database.read(lambda session: session.get_one(Message, first["message_id"]))
    assert (saved.status, saved.content) == ("complete", "begun the secret end")
    await asyncio.to_thread(client.close)


@pytest.mark.slow
async def test_its_limits_are_those_of_the_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.chats.TEMPORARY_BYTES", 1)
    limits: dict[str, Any] = {"messages_per_minute": 2, "concurrent_replies": 1, "conversations_per_user": 2}
    async with desk(tmp_path, **limits) as here:
        http = await here.add("ben", UserRole.AGENT)
        client = await connect(here.live.url, (await make_key(here, "ben"))["key"])
        gate = asyncio.Event()
        here.live.engine.say("begun ", "ended", gates={1: gate})
        job = client.submit("hello", api_name="/chat")
        assert await next_of(job) == "begun "
        with pytest.raises(AppError, match="You already have 1 reply in progress"):
            await predict(client, "another")
        gate.set()
        assert await result_of(job) == "begun ended"
        await eventually(lambda: here.services.turns.count_running(here.ids["ben"]) == 0)
        assert (await http.post("/api/turns", json={"text": "in the page"})).status_code == 201
        await eventually(lambda: here.services.turns.count_running(here.ids["ben"]) == 0)
        with pytest.raises(AppError, match="conversations"):
            await predict(client, "a third conversation")
        ids = (await http.get("/api/conversations")).json()["items"]
        with pytest.raises(AppError, match="too many messages in a minute"):
            await predict(client, "a third message", ids[0]["id"])
        with pytest.raises(AppError):
            await predict(client, "in memory", temporary=True)
        assert sorted(await titles(http)) == ["hello", "in the page"]
        await asyncio.to_thread(client.close)
