"""Stored responses through the API: read again, continued, referred to, deleted; in the quota; nothing half-stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from app.auth.request_body import MAX_BODY_BYTES
from app.domain.accounts import Scope
from app.domain.ids import LOCAL_USER_ID
from app.domain.roles import UserRole
from app.errors import StorageUnavailable
from app.services.container import Services
from engine import FinishReason, ToolCall
from testing.fake_engine import Piece, Thought, call_pieces
from testing.json_events import parse_json_events, read_json_events
from testing.waiting import eventually
from tests.app.desk import Desk, desk
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

MISSING = "resp_01a21344c7f77100a64cbc47f7b5afb3"


@pytest_asyncio.fixture(loop_scope="module")
async def client(live: RunningApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def post(live: RunningApp, **fields: Any) -> httpx.Response:
    return await live.http.post("/v1/responses", json={"input": "Hi", **fields})


def services_of(live: RunningApp) -> Services:
    services: Services = live.app.state.services
    return services


async def count_stored(live: RunningApp) -> int:
    return len([one async for one in services_of(live).responses.read_all(LOCAL_USER_ID)])


async def test_a_response_is_read_again_as_it_was_sent(live: RunningApp) -> None:
    pieces: tuple[Piece, ...] = (Thought("Hm \0 ünd"), "Grüße \0 🦜", *call_pieces("now", "{}"))
    for stream in (False, True):
        live.engine.say(*pieces)
        answer = await post(live, stream=stream, metadata={"ä": "ö"}, instructions="Be \0 brief.")
        sent = parse_json_events(answer.content)[-1].data["response"] if stream else answer.json()
        assert sent["store"] is True
        assert (await live.http.get(f"/v1/responses/{sent['id']}")).json() == sent


async def test_the_client_reads_lists_and_deletes(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    call: Any = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "Rain"}
    thought: Any = {"type": "reasoning", "id": "x", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]}
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        thought,
        call,
        output,
        {"role": "assistant", "content": "It rains."},
    ]
    made = await client.responses.create(model="fake", input=items)
    again = await client.responses.retrieve(made.id)
    assert again.to_dict() == made.to_dict()
    OpenAIResponse.model_validate(again.to_dict(), strict=True)
    listed = [item async for item in await client.responses.input_items.list(made.id, order="asc", limit=2)]
    assert [item.type for item in listed] == [
        *("message", "reasoning", "function_call", "function_call_output", "message")
    ]
    TypeAdapter(list[ResponseItem]).validate_python([item.to_dict() for item in listed])
    newest = await client.responses.input_items.list(made.id, limit=1)
    assert newest.data[0].to_dict() == listed[-1].to_dict()
    assert newest.has_more
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(made.id)


@pytest.mark.parametrize("id", [MISSING, "resp_1", MISSING.upper(), f"{MISSING}0", "x" * 200, "resp_%00", "é"])
async def test_an_id_of_nothing(live: RunningApp, id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        answer = await live.http.request(method, f"/v1/responses/{id}{path}")
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
    answer = await post(live, previous_response_id=id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert answer.json()["error"]["param"] == "previous_response_id"
    answer = await post(live, input=[{"type": "item_reference", "id": id}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].id")
    assert live.engine.calls == []


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")]
)
async def test_parameters_of_the_list(live: RunningApp, query: str, param: str) -> None:
    id = (await post(live)).json()["id"]
    answer = await live.http.get(f"/v1/responses/{id}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = await live.http.get(f"/v1/responses/{id}?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


async def test_a_chain_is_the_conversation(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say(Thought("Look up."), *call_pieces("weather", '{"city": "Oslo"}', id="c1"))
    first = await client.responses.create(model="fake", input="Weather?", instructions="Be brief.")
    result: list[Any] = [{"type": "function_call_output", "call_id": "c1", "output": "Rain"}]
    live.engine.say("It rains.")
    second = await client.responses.create(model="fake", input=result, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    await client.responses.create(
        model="fake", input="Sure?", previous_response_id=second.id, instructions="Be long.", store=False
    )
    assert live.engine.calls[2][0] == [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "Look up.",
            "tool_calls": (ToolCall("c1", "weather", '{"city": "Oslo"}'),),
        },
        {"role": "tool", "content": "Rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Sure?"},
    ]
    # Another branch of the same conversation, without new input.
    await client.responses.create(model="fake", previous_response_id=first.id)
    assert len(live.engine.calls[3][0]) == 2
    # What is deleted is gone from the conversation, which therefore ends.
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="continues one that has been deleted"):
        await client.responses.create(model="fake", input="And?", previous_response_id=second.id)
    assert (await client.responses.retrieve(second.id)).previous_response_id == first.id


async def test_a_response_that_was_deleted_meanwhile_is_not_continued(live: RunningApp) -> None:
    first = (await post(live)).json()["id"]
    gate = asyncio.Event()
    live.engine.started.clear()
    live.engine.say("a", gates={0: gate})
    asking = asyncio.create_task(post(live, previous_response_id=first))
    await live.engine.started.wait()
    await live.http.delete(f"/v1/responses/{first}")
    gate.set()
    second = (await asking).json()["id"]
    assert (await live.http.get(f"/v1/responses/{second}")).status_code == 200
    assert (await post(live, previous_response_id=second)).status_code == 400


async def test_references_make_no_conversation_that_could_not_be_sent(live: RunningApp) -> None:
    """A request of some kilobytes with a thousand references to a long item once took all memory."""
    live.engine.say("Yes")
    stored = (await post(live, input="x" * (MAX_BODY_BYTES // 3))).json()["id"]
    [item] = (await live.http.get(f"/v1/responses/{stored}/input_items")).json()["data"]
    reference = {"type": "item_reference", "id": item["id"]}
    live.engine.say("Yes")
    answer = await post(live, input=[reference, reference], store=False)
    assert answer.status_code == 200, answer.text
    calls = len(live.engine.calls)
    for fields in ({"input": [reference] * 1000}, {"input": [reference] * 3, "previous_response_id": stored}):
        answer = await post(live, truncation="auto", **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "4,194,304 characters, the maximum" in answer.json()["error"]["message"]
    assert len(live.engine.calls) == calls


async def test_items_can_be_referred_to(live: RunningApp) -> None:
    live.engine.say(Thought("Hm."), "Rain", *call_pieces("now", "{}", id="c1"))
    first = (await post(live, input=[{"role": "user", "content": "Weather?"}])).json()
    listed = (await live.http.get(f"/v1/responses/{first['id']}/input_items")).json()
    ids = [listed["data"][0]["id"], *(item["id"] for item in first["output"])]
    items = [*({"type": "item_reference", "id": id} for id in ids)]
    output = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
    answer = await post(live, input=[*items, output])
    assert answer.status_code == 200, answer.text
    assert live.engine.calls[1][0] == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Rain", "reasoning": "Hm.", "tool_calls": (ToolCall("c1", "now", "{}"),)},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]
    for wrong in (f"{ids[1]}9", ids[1].replace("rs_", "fc_")):
        assert (await post(live, input=[{"id": wrong}])).status_code == 400


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
async def test_a_call_that_is_not_whole_does_not_break_the_chain(live: RunningApp, reason: FinishReason) -> None:
    live.engine.say("Wait. ", *call_pieces("now", '{"a', id="c1"), finish_reason=reason)
    first = (await post(live)).json()["id"]
    answer = await post(live, previous_response_id=first)
    assert answer.status_code == 200, answer.text
    reply = live.engine.calls[1][0][1]
    assert reply.get("tool_calls", ()) == ((ToolCall("c1", "now", "{}"),) if reason is FinishReason.STOP else ())


async def test_nothing_is_stored_unless_it_is_asked_for_and_ended(live: RunningApp) -> None:
    before = await count_stored(live)
    unstored = (await post(live, store=False)).json()
    assert unstored["store"] is False
    assert (await live.http.get(f"/v1/responses/{unstored['id']}")).status_code == 404
    for stream in (False, True):
        live.engine.say("Hel", "lo", fail_at=1)
        await post(live, stream=stream)
    for stream in (False, True):
        live.engine.started.clear()
        live.engine.aborted = 0
        live.engine.say("a", "b", gates={1: asyncio.Event()})
        asking = asyncio.create_task(post(live, stream=stream))
        await live.engine.started.wait()
        asking.cancel()
        await eventually(lambda: live.engine.aborted == 1)
    assert await count_stored(live) == before


def hold_back(live: RunningApp, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Makes storing slow: returns an event that says when it begins, and one that lets it go on."""
    records = services_of(live).responses
    add, begun, go = records.add, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> None:
        begun.set()
        await go.wait()
        await add(*arguments)

    monkeypatch.setattr(records, "add", slow)
    return begun, go


async def test_the_last_event_is_sent_when_it_is_stored(live: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = hold_back(live, monkeypatch)
    seen: list[str] = []

    async def read() -> None:
        async with live.http.stream("POST", "/v1/responses", json={"input": "Hi", "stream": True}) as answer:
            async for event in read_json_events(answer.aiter_bytes()):
                seen.append(event.name)

    reading = asyncio.create_task(read())
    await begun.wait()
    await eventually(lambda: "response.output_item.done" in seen)
    await asyncio.sleep(0.05)
    before = seen[-1]
    go.set()
    await reading
    assert before == "response.output_item.done"
    assert seen[-1] == "response.completed"


async def test_a_client_that_leaves_while_it_is_stored_has_it_stored(
    live: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await count_stored(live)
    begun, go = hold_back(live, monkeypatch)
    asking = asyncio.create_task(post(live))
    await begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0.1)  # the server notices
    go.set()
    await services_of(live).response_writer.close()
    assert await count_stored(live) == before + 1


async def test_a_response_that_cannot_be_stored_is_an_error(live: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*arguments: Any) -> None:
        raise StorageUnavailable("The disk is full.")

    monkeypatch.setattr(services_of(live).responses, "add", broken)
    answer = await post(live)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
    events = parse_json_events((await post(live, stream=True)).content)
    assert [event.name for event in events[-2:]] == ["response.failed", "error"]
    assert events[-2].data["response"]["error"]["message"] == "The disk is full."
    assert (await post(live, store=False)).status_code == 200


async def test_replies_in_parallel_are_stored_each(live: RunningApp) -> None:
    first = (await post(live)).json()["id"]
    answers = await asyncio.gather(*(post(live, previous_response_id=first, input=f"{n}") for n in range(8)))
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 8
    for id in ids:
        assert (await live.http.get(f"/v1/responses/{id}")).status_code == 200


@pytest_asyncio.fixture(loop_scope="module")
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, gradio=False, storage_mb_per_user=1) as running:
        yield running


async def test_with_accounts_a_key_reads_what_its_user_stored_and_no_other(here: Desk) -> None:
    ada, ben = await here.add("ada", UserRole.ADMIN), await here.add("ben", UserRole.AGENT)

    async def key(owner: httpx.AsyncClient, scope: Scope) -> dict[str, str]:
        made = await owner.post("/api/account/keys", json={"name": "k", "scopes": [scope.value]})
        return {"Authorization": f"Bearer {made.json()['key']}"}

    hers, his, models = await key(ada, Scope.CHAT), await key(ben, Scope.CHAT), await key(ben, Scope.MODELS)
    async with here.client() as http:
        made = await http.post("/v1/responses", json={"input": "Hi"}, headers=his)
        path = f"/v1/responses/{made.json()['id']}"
        assert (await http.get(path, headers=his)).json() == made.json()
        assert (await ben.get(path)).json() == made.json()  # in the browser, too
        assert (await http.get(path, headers=models)).status_code == 403
        assert (await http.get(path)).status_code == 401
        for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            assert (await http.request(method, path + rest, headers=hers)).status_code == 404
        assert (await http.delete(path, headers=his)).json() == {
            "id": made.json()["id"],
            "object": "response",
            "deleted": True,
        }
        assert (await http.get(path, headers=his)).status_code == 404


async def test_it_is_in_the_quota_and_full_is_full(here: Desk) -> None:
    ben = await here.add("ben", UserRole.AGENT)
    large = "x" * 300_000
    ids = []
    for _ in range(4):
        answer = await ben.post("/v1/responses", json={"input": large})
        ids.append(answer.json()["id"])
    use = (await ben.get("/api/account/storage")).json()
    assert use["responses"] == 4
    assert use["used_bytes"] > 4 * 300_000
    for stream in (False, True):
        answer = await ben.post("/v1/responses", json={"input": "Hi", "stream": stream})
        assert answer.status_code == 409
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("limit_reached", "store")
        assert '"store": false' in error["message"]
    assert (await ben.post("/api/turns", json={"text": "Hi"})).status_code == 409
    assert (await ben.post("/v1/responses", json={"input": "Hi", "store": False})).status_code == 200
    for id in ids[:2]:
        await ben.delete(f"/v1/responses/{id}")
    assert (await ben.post("/v1/responses", json={"input": "Hi"})).status_code == 200
    assert (await ben.delete("/api/account/responses")).json() == {"deleted": 3}
    assert (await ben.get("/api/account/storage")).json()["used_bytes"] == 0
