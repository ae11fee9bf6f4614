"""The chat's own API over a real socket: turns, their events, conversations, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import structlog

from app.api import sse
from app.domain.ids import LOCAL_USER_ID
from app.main import create_app, wind_down
from app.settings import AppSettings
from engine import EngineError, EngineOverloadedError, PrefillProgress
from testing.fake_engine import Thought
from testing.json_events import JsonEvent, read_json_events
from testing.waiting import eventually
from tests.app.live_server import RunningApp, live_server, reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


async def events(
    live: RunningApp,
    path: str,
    last_event_id: str | None = None,
    limit: int | None = None,
    into: list[JsonEvent] | None = None,
) -> list[JsonEvent]:
    """Read a stream to its end, or leave after ``limit`` events. ``into`` gets them as they come."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    found: list[JsonEvent] = [] if into is None else into
    async with live.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        async for event in read_json_events(response.aiter_bytes()):
            found.append(event)
            if limit is not None and len(found) >= limit:
                return found
    return found


def text_of(found: list[JsonEvent]) -> str:
    return "".join(event.data["text"] for event in found if event.name == "text")


async def start(live: RunningApp, text: str = "hello", **fields: Any) -> dict[str, str]:
    response = await live.http.post("/api/turns", json={"text": text, **fields})
    assert response.status_code == 201, response.text
    ids: dict[str, Any] = response.json()
    assert ids.pop("omitted_messages") == 0
    assert ids.pop("context_length") == 4096
    assert ids.pop("model") == "fake"
    assert ids.pop("has_system_prompt") is False
    assert set(ids) == {"turn_id", "conversation_id", "user_message_id", "message_id", "in_stream"}
    return ids


async def test_a_turn_from_first_word_to_last(live: RunningApp) -> None:
    live.engine.say("Hello", " you", progress=[PrefillProgress(3, 9)])
    turn = await start(live)
    found = await events(live, f"/api/turns/{turn['turn_id']}/events")
    assert text_of(found) == "Hello you"
    end = found[-1]
    assert end.name == "end"
    assert end.data["status"] == "complete"
    assert end.data["message_id"] == turn["message_id"]
    assert end.data["stats"]["finish_reason"] == "stop"
    assert end.data["offset"] == int(end.id) == 9
    shown = (await live.http.get(f"/api/conversations/{turn['conversation_id']}")).json()
    assert [message["content"] for message in shown["messages"]] == ["hello", "Hello you"]
    assert shown["active_turn_id"] is None


async def test_how_far_the_prompt_is_read_is_told_on_the_way(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("Hello", gates={0: gate}, progress=[PrefillProgress(3, 9)])
    turn = await start(live)
    [told] = await events(live, f"/api/events?turn={turn['turn_id']}:0", limit=1)
    assert (told.name, told.data) == ("progress", {"turn_id": turn["turn_id"], "processed": 3, "total": 9})
    gate.set()
    assert text_of(await events(live, f"/api/turns/{turn['turn_id']}/events")) == "Hello"


async def test_a_reader_that_was_cut_off_goes_on_where_it_was(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("The first half, ", "the second half.", gates={1: gate})
    turn = await start(live)
    path = f"/api/turns/{turn['turn_id']}/events"
    before = [event for event in await events(live, path, limit=1) if event.name == "text"]
    gate.set()
    # The URL still says 0, as a browser's EventSource repeats it; what it saw last beats that.
    after = await events(live, f"{path}?offset=0", last_event_id=before[-1].id)
    assert text_of(before) + text_of(after) == "The first half, the second half."
    assert text_of(before) == "The first half, "
    middle = await events(live, f"{path}?offset=4")
    assert text_of(middle) == "first half, the second half."


async def test_a_reader_that_was_cut_off_in_the_middle_of_a_thought_goes_on(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say(Thought("Half a "), Thought("thought."), "42", gates={1: gate})
    turn = await start(live)
    path = f"/api/turns/{turn['turn_id']}/events"
    before = [event for event in await events(live, path, limit=1) if event.name == "reasoning"]
    gate.set()
    after = await events(live, path, last_event_id=before[-1].id)
    thoughts = [event for event in before + after if event.name == "reasoning"]
    assert "".join(event.data["text"] for event in thoughts) == "Half a thought."
    assert [event.data["ended"] for event in thoughts][-1]
    assert text_of(after) == "42"
    middle = await events(live, f"{path}?offset=1&reasoning_offset=5")
    assert [event.data["text"] for event in middle if event.name == "reasoning"] == ["a thought."]
    assert text_of(middle) == "2"
    view = (await live.http.get(f"/api/conversations/{turn['conversation_id']}")).json()
    assert view["messages"][-1]["reasoning"] == "Half a thought."


async def test_the_end_is_told_again_to_whoever_comes_late(live: RunningApp) -> None:
    turn = await start(live)
    path = f"/api/turns/{turn['turn_id']}/events"
    end = (await events(live, path))[-1]
    again = await events(live, path, last_event_id=end.id)
    assert [event.name for event in again] == ["end"]


async def test_leaving_the_stream_leaves_the_reply_alone(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("kept ", "whole", gates={1: gate})
    turn = await start(live)
    path = f"/api/turns/{turn['turn_id']}/events"
    await events(live, path, limit=1)
    gate.set()
    assert text_of(await events(live, path)) == "kept whole"
    assert live.engine.aborted == 0


async def test_several_turns_in_one_stream(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("slow ", "one", gates={1: gate})
    live.engine.say("quick")
    slow, quick = await start(live, "a"), await start(live, "b")
    path = f"/api/events?turn={slow['turn_id']}:0&turn={quick['turn_id']}:2&turn=unknown:0"
    waiting = asyncio.create_task(events(live, path))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    gate.set()
    found = await waiting
    by_turn = {
        turn: [event for event in found if event.data["turn_id"] == turn]
        for turn in (slow["turn_id"], quick["turn_id"], "unknown")
    }
    assert text_of(by_turn[slow["turn_id"]]) == "slow one"
    assert text_of(by_turn[quick["turn_id"]]) == "ick"
    assert by_turn[slow["turn_id"]][-1].name == by_turn[quick["turn_id"]][-1].name == "end"
    assert [event.name for event in by_turn["unknown"]] == ["gone"]
    assert by_turn["unknown"][0].data["code"] == "not_found"

    middle = next(event for event in found if event.name == "text" and event.data["turn_id"] == slow["turn_id"])
    seen = [event for event in found[: found.index(middle) + 1] if event.data["turn_id"] == slow["turn_id"]]
    resumed = await events(live, path, last_event_id=middle.id)
    assert (
        text_of(seen) + text_of([event for event in resumed if event.data["turn_id"] == slow["turn_id"]]) == "slow one"
    )


async def test_messages_are_answered_in_a_stream_that_is_open(live: RunningApp) -> None:
    found: list[JsonEvent] = []
    reading = asyncio.create_task(events(live, "/api/events?stream_id=mine", into=found))
    await eventually(lambda: live.app.state.open_streams.find(LOCAL_USER_ID, "mine"))
    turns = []
    for text in ("one", "two"):
        live.engine.say(f"answer {text}")
        turns.append(await start(live, text, stream_id="mine"))
        assert turns[-1]["in_stream"]
        await eventually(lambda: [event.name for event in found].count("end") == len(turns))
    assert not (await start(live, "three", stream_id="yours"))["in_stream"]
    assert not (await start(live, "four"))["in_stream"]
    for turn, text in zip(turns, ("one", "two"), strict=True):
        assert text_of([event for event in found if event.data["turn_id"] == turn["turn_id"]]) == f"answer {text}"

    # Cut off, it goes on where it was, although its address names no turn.
    gate = asyncio.Event()
    live.engine.say("The first half, ", "the second half.", gates={1: gate})
    turn = await start(live, "five", stream_id="mine")
    await eventually(lambda: found[-1].name == "text")
    before = found[-1]
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await eventually(lambda: live.app.state.open_streams.find(LOCAL_USER_ID, "mine") is None)
    rest: list[JsonEvent] = []
    path = "/api/events?stream_id=mine"
    reading = asyncio.create_task(events(live, path, last_event_id=before.id, into=rest))
    gate.set()
    await eventually(lambda: bool(rest) and rest[-1].name == "end")
    assert {event.data["turn_id"] for event in rest} == {turn["turn_id"]}
    assert text_of([before, *rest]) == "The first half, the second half."
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_stop_keeps_what_was_said(live: RunningApp) -> None:
    live.engine.say("kept", "never said", gates={1: asyncio.Event()})
    turn = await start(live)
    path = f"/api/turns/{turn['turn_id']}"
    await events(live, f"{path}/events", limit=1)
    assert (await live.http.post(f"{path}/stop")).status_code == 204
    found = await events(live, f"{path}/events")
    assert text_of(found) == "kept"
    assert found[-1].data["status"] == "stopped"
    assert (await live.http.post(f"{path}/stop")).status_code == 204
    assert live.engine.aborted == 1


async def test_conversations_from_list_to_delete(live: RunningApp) -> None:
    turn = await start(live, "a question about marmots", settings={"temperature": 0.25, "seed": 7})
    await events(live, f"/api/turns/{turn['turn_id']}/events")
    path = f"/api/conversations/{turn['conversation_id']}"
    assert (await live.http.patch(path, json={"title": "Marmots"})).status_code == 204
    shown = (await live.http.get(path)).json()
    assert shown["title"] == "Marmots"
    assert shown["settings"]["temperature"] == 0.25
    assert (await live.http.patch(path, json={"settings": {"top_k": 3}})).status_code == 204
    settings = (await live.http.get(path)).json()["settings"]
    assert (settings["top_k"], settings["temperature"]) == (3, None)

    # All of a change, or nothing.
    refused = await live.http.patch(path, json={"title": "Not this", "settings": {"top_p": 7}})
    assert refused.status_code == 422
    assert (await live.http.get(path)).json()["title"] == "Marmots"
    assert (await live.http.get("/api/conversations", params={"query": "m" * 201})).status_code == 422

    first = (await live.http.get("/api/conversations?limit=1")).json()
    assert first["items"][0]["id"] == turn["conversation_id"]
    await start(live, "another")
    second = (await live.http.get("/api/conversations?limit=1")).json()
    assert second["next_cursor"]
    rest = (await live.http.get("/api/conversations", params={"limit": 1, "cursor": second["next_cursor"]})).json()
    assert rest["items"][0]["id"] == turn["conversation_id"]
    hits = (await live.http.get("/api/conversations", params={"query": "marmots"})).json()["items"]
    assert [hit["id"] for hit in hits] == [turn["conversation_id"]]

    assert (await live.http.delete(path)).status_code == 204
    assert (await live.http.get(path)).status_code == 404
    assert (await live.http.delete(path)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"text": ""}, 422, "empty"),
        ({"text": "  \n "}, 422, "empty"),
        ({}, 422, "'text' is missing"),
        ({"text": 5}, 422, "'text' is not valid"),
        ({"text": "x", "colour": "red"}, 422, "Unknown field 'colour'"),
        ({"text": "x", "settings": {"temperature": 99}}, 422, "temperature"),
        ({"text": "x", "settings": {"heat": 1}}, 422, "settings.heat"),
        ({"text": "x", "conversation_id": "nope"}, 404, "."),
        ({"text": "word " * 6000}, 422, "4096"),
        ([1], 422, "."),
    ],
)
async def test_a_turn_that_cannot_be_is_refused_with_a_sentence(
    live: RunningApp, body: Any, status: int, words: str
) -> None:
    before = (await live.http.get("/api/conversations?limit=200")).json()["items"]
    response = await live.http.post("/api/turns", json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"code", "message"}
    assert words in error["message"]
    assert error["message"].endswith((".", "?", "!"))
    assert (await live.http.get("/api/conversations?limit=200")).json()["items"] == before


async def test_a_full_engine_refuses_and_saves_nothing(live: RunningApp) -> None:
    before = (await live.http.get("/api/conversations?limit=200")).json()["items"]
    live.engine.refuse = EngineOverloadedError("The engine is full.")
    response = await live.http.post("/api/turns", json={"text": "hi"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "overloaded"
    assert (await live.http.get("/api/conversations?limit=200")).json()["items"] == before


async def test_one_reply_at_a_time_in_a_conversation(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("one", gates={0: gate})
    turn = await start(live)
    again = {"text": "and", "conversation_id": turn["conversation_id"]}
    response = await live.http.post("/api/turns", json=again)
    assert response.status_code == 409
    gate.set()
    await events(live, f"/api/turns/{turn['turn_id']}/events")
    await start(live, **again)


async def test_an_engine_failure_ends_the_turn_and_keeps_the_text(live: RunningApp) -> None:
    live.engine.say("half", "never", fail_at=1, error=EngineError("The engine ran out of memory."))
    turn = await start(live)
    found = await events(live, f"/api/turns/{turn['turn_id']}/events")
    assert text_of(found) == "half"
    assert found[-1].data["status"] == "error"
    assert "memory" in found[-1].data["error"]


@pytest.mark.parametrize(
    ("path", "last_event_id", "status"),
    [
        ("/api/turns/unknown/events", None, 404),
        ("/api/turns/unknown/events?offset=-1", None, 422),
        ("/api/turns/unknown/events?offset=x", None, 422),
        ("/api/turns/unknown/events", "garbage", 422),
        ("/api/turns/unknown/events", "1.", 422),
        ("/api/turns/unknown/events", "1.2.3", 422),
        ("/api/turns/unknown/events", "99999999999999999999", 422),
        ("/api/events", None, 422),
        ("/api/events?turn=abc", None, 422),
        ("/api/events?turn=abc:-1", None, 422),
        ("/api/events?turn=abc:0", "abc", 422),
        ("/api/events?" + "&".join(f"turn=t{n}:0" for n in range(101)), None, 422),
        ("/api/conversations?limit=0", None, 422),
        ("/api/conversations?cursor=garbage", None, 422),
        ("/api/conversations/unknown", None, 404),
        ("/api/conversations/unknown?limit=1000", None, 422),
    ],
)
async def test_wrong_reads_are_refused_with_a_sentence(
    live: RunningApp, path: str, last_event_id: str | None, status: int
) -> None:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    response = await live.http.get(path, headers=headers)
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


async def test_an_idle_stream_is_kept_alive(live: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.02)
    gate = asyncio.Event()
    live.engine.say("late", gates={0: gate})
    turn = await start(live)
    pings = 0
    async with live.http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as response:
        async for line in response.aiter_lines():
            pings += line == ": ping"
            if pings == 3:
                gate.set()
    assert pings >= 3


async def test_readers_are_counted_and_let_go(live: RunningApp) -> None:
    gate = asyncio.Event()
    live.engine.say("a", "b", gates={1: gate})
    turn = await start(live)
    gauge = live.app.state.http_metrics.event_streams
    async with live.http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as response:
        lines = response.aiter_lines()  # held: collecting it would close the response
        await anext(lines)
        await eventually(lambda: gauge._value.get() == 1)  # that of the test before may just be going
        metrics = (await live.http.get("/metrics")).text
        assert "deskmate_event_streams 1.0" in metrics
    await eventually(lambda: gauge._value.get() == 0)
    gate.set()
    await events(live, f"/api/turns/{turn['turn_id']}/events")


async def test_health_and_readiness(live: RunningApp) -> None:
    assert (await live.http.get("/health")).json() == {"status": "ok"}
    assert (await live.http.get("/ready")).json() == {"status": "ready", "model": "fake"}
    live.engine.ready = False
    unready = await live.http.get("/ready")
    assert unready.status_code == 503
    assert unready.json()["reason"]
    assert (await live.http.get("/health")).status_code == 200


async def test_metrics_parse(live: RunningApp) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    response = await live.http.get("/metrics")
    names = {family.name for family in text_string_to_metric_families(response.text)}
    assert {"deskmate_http_requests", "deskmate_event_streams"} <= names


async def test_the_openapi_page_is_data_alone(live: RunningApp) -> None:
    described = (await live.http.get("/api/openapi.json")).json()["paths"]
    assert {"/api/turns", "/api/events", "/v1/chat/completions", "/health"} <= set(described)
    assert (await live.http.get("/docs")).status_code == 404
    assert (await live.http.get("/redoc")).status_code == 404


async def test_a_mistake_of_ours_shows_an_id_and_nothing_else(
    live: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(live.app.state.services.conversations, "list", broken)
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logged:
        response = await live.http.get("/api/conversations", params={"query": "what somebody typed"})
    assert response.status_code == 500
    assert "secret" not in response.text
    request_id = response.headers["x-request-id"]
    assert request_id in response.json()["error"]["message"]
    assert response.headers["x-content-type-options"] == "nosniff"
    failure = next(entry for entry in logged if entry["log_level"] == "error")
    assert failure["request_id"] == request_id
    assert failure["exc_info"]
    assert "typed" not in str(logged)


async def test_another_user_finds_nothing(live: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await start(live, "mine alone")
    await events(live, f"/api/turns/{turn['turn_id']}/events")
    monkeypatch.setattr("app.main.LOCAL_USER_ID", "00000000-0000-7000-8000-0000000000ff")
    settings: AppSettings = live.app.state.services.settings
    theirs = create_app(settings, live.engine)
    theirs.state.services, theirs.state.closing = live.app.state.services, live.app.state.closing
    turn_path, conversation = f"/api/turns/{turn['turn_id']}", f"/api/conversations/{turn['conversation_id']}"
    transport = httpx.ASGITransport(app=theirs)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
        assert (await other.get("/api/conversations")).json()["items"] == []
        assert (await other.get("/api/conversations?query=alone")).json()["items"] == []
        for method, path, body in [
            ("GET", conversation, None),
            ("GET", f"{conversation}?before={turn['message_id']}", None),
            ("PATCH", conversation, {"title": "taken"}),
            ("PATCH", conversation, {"settings": {"seed": 1}}),
            ("DELETE", conversation, None),
            ("GET", f"{turn_path}/events", None),
            ("POST", f"{turn_path}/stop", None),
            ("POST", "/api/turns", {"text": "x", "conversation_id": turn["conversation_id"]}),
        ]:
            response = await other.request(method, path, json=body)
            assert response.status_code == 404, (method, path, response.text)
        gone = await other.get(f"/api/events?turn={turn['turn_id']}:0")
        assert gone.text.startswith("event: gone\n")
    shown = (await live.http.get(conversation)).json()
    assert shown["title"] != "taken"
    assert shown["settings"]["seed"] is None


async def test_streams_end_when_the_server_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False, shutdown_seconds=0.1) as live:
        live.engine.say("begun", "never", gates={1: asyncio.Event()})
        live.engine.say("begun", "never", gates={1: asyncio.Event()})
        turn = await start(live)
        reading = asyncio.create_task(events(live, f"/api/turns/{turn['turn_id']}/events"))
        both = asyncio.create_task(events(live, f"/api/events?turn={turn['turn_id']}:0"))
        chat = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        program = asyncio.create_task(live.http.post("/v1/chat/completions", json=chat))
        lasting = asyncio.create_task(events(live, "/api/events?stream_id=mine"))
        open_streams = live.app.state.http_metrics.event_streams
        await eventually(lambda: live.engine.running == 2 and open_streams._value.get() == 3)
        await wind_down(live.app)
        assert await lasting == []
        for found in await asyncio.gather(reading, both):
            assert text_of(found) == "begun"
            assert found[-1].name == "end"
            assert found[-1].data["status"] == "interrupted"
        # A program must not take a reply that was cut off for a whole one.
        assert "shutting down" in (await program).text.strip().splitlines()[-1]
        assert live.engine.running == 0
