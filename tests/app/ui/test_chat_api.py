"""``/chat``, as programs call it with Gradio's client; its keys are in ``tests/app/auth/test_gradio_keys.py``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from gradio_client import Client
from gradio_client.exceptions import AppError
from starlette.routing import Mount

from app.domain.ids import LOCAL_USER_ID
from app.domain.listings import PASSAGES_FOUND
from app.ui import chat_api
from app.ui.chat_api import MAX_CALLS, STREAM_SECONDS
from testing.knowledge import ScriptedSearch, passage
from testing.waiting import eventually
from tests.app.gradio_calls import call_of, chat_index, connect, messages_of, next_of, predict, rest_of, result_of
from tests.app.live_server import RunningApp, live_server, reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningApp, Client]]:
    async with live_server(tmp_path_factory.mktemp("data"), max_message_chars=1000) as running:
        client = await connect(running.url)
        yield running, client
        await asyncio.to_thread(client.close)


@pytest.fixture
def live(server: tuple[RunningApp, Client]) -> RunningApp:
    reset_engine(server[0].engine)
    return server[0]


@pytest.fixture
def client(server: tuple[RunningApp, Client]) -> Client:
    return server[1]


async def shown(live: RunningApp, conversation_id: str) -> list[tuple[str, str]]:
    """The status and the text of each message."""
    answer = await live.http.get(f"/api/conversations/{conversation_id}")
    return [(one["status"], one["content"]) for one in answer.json()["messages"]]


async def newest(live: RunningApp) -> str:
    items = (await live.http.get("/api/conversations")).json()["items"]
    return str(items[0]["id"])


def readers(live: RunningApp) -> int:
    """How many read the replies that are being written."""
    return sum(len(one.buffer._readers) for one in live.app.state.services.turns._live.by_id.values())


async def test_the_reply_comes_while_it_is_written(live: RunningApp, client: Client) -> None:
    gates = {index: asyncio.Event() for index in (1, 2)}
    live.engine.say("Hello", ", you", " there.", gates=gates)
    job = client.submit("hello", api_name="/chat")
    assert await next_of(job) == "Hello"
    gates[1].set()
    assert await next_of(job) == "Hello, you"
    assert not job.done()
    gates[2].set()
    assert (await rest_of(job))[-1] == "Hello, you there."
    assert await result_of(job) == "Hello, you there."
    assert await shown(live, await newest(live)) == [("complete", "hello"), ("complete", "Hello, you there.")]


async def test_a_caller_gets_the_passages_that_the_stored_listing_leaves_to_its_citations(
    live: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = live.app.state.services
    found = passage("Refunds take 5 days.", heading="Policy")
    monkeypatch.setattr(services.sources, "retriever", ScriptedSearch(found, members={"ours": {LOCAL_USER_ID}}))
    monkeypatch.setattr(live.engine, "_info", replace(live.engine.info, num_parameters=135_000_000))
    text = await predict(client, "How long do refunds take?", settings={"collections": ["ours"]})
    assert text == f"{PASSAGES_FOUND}\n\n**Returns \\> Policy** [1]\n\n> Refunds take 5 days."
    [_, (_, stored)] = await shown(live, await newest(live))
    assert stored == f"{PASSAGES_FOUND}\n\n- **Returns** [1]"


async def test_a_call_begins_a_conversation_or_continues_one(live: RunningApp, client: Client) -> None:
    assert await predict(client, "one") == "Hello, world."
    first = await predict(client, "two", include_ids=True)
    assert first.keys() == {"text", "conversation_id", "message_id"}
    assert first["text"] == "Hello, world."
    live.engine.say("And again.")
    assert await predict(client, "three", first["conversation_id"]) == "And again."
    assert [text for _, text in await shown(live, first["conversation_id"])] == [
        *("two", "Hello, world.", "three", "And again.")
    ]
    asked, _ = live.engine.calls[-1]
    assert [message["content"] for message in asked] == ["two", "Hello, world.", "three"]


async def test_its_settings_are_the_conversations(live: RunningApp, client: Client) -> None:
    settings = {"system_prompt": "Be brief.", "temperature": 0.25}
    await predict(client, "hello", settings=settings)
    asked, params = live.engine.calls[-1]
    assert asked[0] == {"role": "system", "content": "Be brief."}
    assert params is not None
    assert params.temperature == 0.25


async def test_a_temporary_conversation_is_in_no_list(live: RunningApp, client: Client) -> None:
    first = await predict(client, "nobody shall know", temporary=True, include_ids=True)
    assert first["conversation_id"] not in (await live.http.get("/api/conversations")).text
    await predict(client, "go on", first["conversation_id"])
    assert len(await shown(live, first["conversation_id"])) == 4


async def test_a_reply_without_text_is_one(live: RunningApp, client: Client) -> None:
    live.engine.say("")
    assert await predict(client, "hello") == ""


async def test_what_comes_quickly_is_put_together(live: RunningApp, client: Client) -> None:
    live.engine.say(*["word "] * 500)
    started = time.monotonic()
    job = client.submit("hello", api_name="/chat")
    outputs = await rest_of(job)
    assert len(outputs) <= (time.monotonic() - started) / STREAM_SECONDS + 2
    assert outputs[-1] == "word " * 500
    assert all(later.startswith(earlier) for earlier, later in pairwise(outputs))


async def test_two_replies_come_side_by_side(live: RunningApp, client: Client) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    jobs = []
    for name, gate in zip("ab", gates, strict=True):
        live.engine.say(f"{name}1 ", f"{name}2", gates={1: gate})
        jobs.append(client.submit(name, api_name="/chat"))
        assert await next_of(jobs[-1]) == f"{name}1 "
    assert live.engine.running == 2
    for gate in reversed(gates):
        gate.set()
    assert [await result_of(job) for job in jobs] == ["a1 a2", "b1 b2"]


async def test_a_job_that_is_cancelled_leaves_its_reply_alone(live: RunningApp, client: Client) -> None:
    gate = asyncio.Event()
    live.engine.say("begun ", "ended", gates={1: gate})
    job = client.submit("hello", api_name="/chat")
    assert await next_of(job) == "begun "
    assert await asyncio.to_thread(job.cancel)
    await eventually(lambda: readers(live) == 0)
    assert live.engine.running == 1
    conversation = await newest(live)
    gate.set()
    await eventually(lambda: live.engine.running == 0)
    assert live.engine.aborted == 0
    await eventually(lambda: not live.app.state.services.turns._live.by_id)
    assert await shown(live, conversation) == [("complete", "hello"), ("complete", "begun ended")]
    assert await predict(client, "still there?") == "Hello, world."


async def test_a_program_that_is_killed_leaves_its_reply_alone(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("begun ", "more ", "ended", gates={1: gate})
    body = call_of(await chat_index(live.http), "killed")
    assert (await live.http.post("/gradio_api/queue/join", json=body)).status_code == 200
    async with aclosing(messages_of(live.http, "killed")) as messages:
        async for message in messages:
            if message["msg"] == "process_generating":
                break
    gate.set()
    await eventually(lambda: not live.app.state.services.turns._live.by_id)
    assert await shown(live, await newest(live)) == [("complete", "hello"), ("complete", "begun more ended")]
    await eventually(lambda: not any(page_of(live)._queue.active_jobs))


async def test_for_a_program_that_does_not_read_little_is_kept(
    live: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_api, "MAX_UNREAD", 5)
    monkeypatch.setattr(chat_api, "STREAM_SECONDS", 0)
    live.engine.say(*["word "] * 200, delay=0.002)
    body = call_of(await chat_index(live.http), "silent")
    assert (await live.http.post("/gradio_api/queue/join", json=body)).status_code == 200
    await eventually(lambda: live.engine.started.is_set() and not any(page_of(live)._queue.active_jobs))
    assert page_of(live)._queue.pending_messages_per_session["silent"].qsize() <= 5 + 2  # the whole text, and the end
    async with aclosing(messages_of(live.http, "silent")) as messages:
        late = [message async for message in messages]
    ended = next(message for message in late if message["msg"] == "process_completed")
    assert ended["output"]["data"] == ["word " * 200]


def page_of(live: RunningApp) -> Any:
    """Gradio's own application."""
    [mounted] = [route for route in live.app.routes if isinstance(route, Mount) and not route.path]
    return mounted.app.get_blocks()  # type: ignore[attr-defined]


async def test_a_reply_that_was_stopped_ends_with_its_text(live: RunningApp, client: Client) -> None:
    gate = asyncio.Event()
    live.engine.say("begun ", "ended", gates={1: gate})
    job = client.submit("hello", api_name="/chat")
    assert await next_of(job) == "begun "
    [turn] = live.app.state.services.turns.running_turn_ids()
    assert (await live.http.post(f"/api/turns/{turn}/stop")).status_code == 204
    assert await result_of(job) == "begun "


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((" ",), "The message is empty"),
        (("x" * 1001,), "This message is 1,001 characters long; at most 1,000 are accepted"),
        ((None,), "The message must be a text"),
        (({"text": "hello", "files": []},), "The message must be a text"),
        (("hello", "none"), "There is no such conversation"),
        (("hello", 7), "The field 'conversation_id' is not valid"),
        (("hello", None, "perhaps"), "The field 'temporary' is not valid"),
        (("hello", None, False, {"temperature": -1}), "temperature"),
        (("hello", None, False, {"heat": 1}), "Unknown field 'settings.heat'"),
        (("hello", None, False, ["heat"]), "The field 'settings' is not valid"),
    ],
)
async def test_what_is_wrong_is_said(
    live: RunningApp, client: Client, capfd: pytest.CaptureFixture[str], args: tuple[Any, ...], said: str
) -> None:
    before = (await live.http.get("/api/conversations")).json()["items"]
    with pytest.raises(AppError, match=said) as caught:
        await predict(client, *args)
    assert str(caught.value).endswith(".")
    assert live.engine.calls == []
    assert (await live.http.get("/api/conversations")).json()["items"] == before
    assert "Traceback" not in capfd.readouterr().err


async def test_a_reply_that_fails_says_why_after_its_text(live: RunningApp, client: Client) -> None:
    live.engine.say("begun ", "ended", fail_at=1)
    job = client.submit("hello", api_name="/chat")
    assert await next_of(job) == "begun "
    with pytest.raises(AppError, match="ran out of memory"):
        await result_of(job)
    assert await shown(live, await newest(live)) == [("complete", "hello"), ("error", "begun ")]


async def test_a_conversation_that_is_deleted_ends_the_call(live: RunningApp, client: Client) -> None:
    gate = asyncio.Event()
    live.engine.say("begun ", "ended", gates={1: gate})
    job = client.submit("hello", api_name="/chat")
    assert await next_of(job) == "begun "
    services, conversation = live.app.state.services, await newest(live)
    user_id = next(iter(services.turns._live.by_id.values())).user_id
    await services.turns.delete_conversation(user_id, conversation)
    assert await result_of(job) == "begun "  # as for the page: its reply was stopped
    assert live.engine.running == 0


async def test_a_busy_conversation_takes_no_second_message(live: RunningApp, client: Client) -> None:
    gate = asyncio.Event()
    live.engine.say("begun ", "ended", gates={1: gate})
    job = client.submit("hello", include_ids=True, api_name="/chat")
    conversation = (await next_of(job))["conversation_id"]
    with pytest.raises(AppError, match="reply"):
        await predict(client, "and", conversation)
    gate.set()
    assert (await result_of(job))["text"] == "begun ended"


async def test_a_defect_is_in_the_log_and_not_in_the_answer(
    live: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(chat_api, "begin_turn", broken)
    with pytest.raises(AppError, match="An internal error occurred") as caught:
        await predict(client, "hello")
    assert "secret" not in str(caught.value)
    assert "the secret of the house" in caplog.text


async def test_nothing_else_is_public_and_no_other_door_leads_there(live: RunningApp) -> None:
    dependencies = (await live.http.get("/config")).json()["dependencies"]
    assert {one["api_name"] for one in dependencies if one["api_visibility"] != "private"} == {"chat"}
    assert (await live.http.get("/gradio_api/info")).json()["named_endpoints"].keys() == {"/chat"}
    [index] = live.app.state.public_endpoints
    assert index == await chat_index(live.http)
    body = {"data": ["hello", None, False, None, False]}
    for path in ("run/chat", "api/chat", "call/chat", "call/v2/chat"):
        for given in (body, {**body, "session_hash": "s", "fn_index": index}):
            assert (await live.http.post(f"/gradio_api/{path}", json=given)).status_code == 404
    assert (await live.http.post("/gradio_api/run/predict", json={**body, "fn_index": index})).status_code == 404
    assert live.engine.calls == []


async def test_the_page_has_room_beside_the_calls(live: RunningApp) -> None:
    assert page_of(live).max_threads > MAX_CALLS


async def test_the_client_says_what_the_endpoint_takes(live: RunningApp, client: Client) -> None:
    endpoint = (await live.http.get("/gradio_api/info")).json()["named_endpoints"]["/chat"]
    assert endpoint["description"].startswith("Sends a message and streams its reply")
    assert all(one["python_type"]["description"] or one["label"] for one in endpoint["parameters"])
    [returned] = endpoint["returns"]
    assert returned["python_type"]["type"] == "str | dict(str, str)"
