"""What a signed-in user, or a program with a key, sends to Gradio's routes besides what the page sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from app.ui.gradio_patches import is_streaming
from app.ui.mount import MAX_SESSIONS
from testing.waiting import eventually
from tests.app.desk import Desk, desk
from tests.app.gradio_calls import call_of, chat_index, messages_of
from tests.app.live_server import reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = "/gradio_api/run/predict"
JOIN = "/gradio_api/queue/join"
BOTH = pytest.mark.parametrize("path", [RUN, JOIN])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


@pytest.fixture
def here(opened: Desk, capfd: pytest.CaptureFixture[str]) -> Desk:
    reset_engine(opened.live.engine)
    capfd.readouterr()
    return opened


@pytest.fixture
def ben(here: Desk) -> httpx.AsyncClient:
    return here.clients["ben"]


async def endpoint_of(http: httpx.AsyncClient, css_class: str, event: str) -> int:
    """The ``fn_index`` of a listener in Python."""
    config = (await http.get("/config")).json()
    target = next(one["id"] for one in config["components"] if css_class in (one["props"].get("elem_classes") or ()))
    return int(
        next(one["id"] for one in config["dependencies"] if [target, event] in one["targets"] and one["backend_fn"])
    )


async def send(http: httpx.AsyncClient, path: str, body: object, **options: Any) -> httpx.Response:
    """``body`` as Python writes it, also where that is no JSON."""
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    return await http.post(path, content=json.dumps(body), headers=headers, **options)


def assert_refused(answer: httpx.Response, capfd: pytest.CaptureFixture[str], *statuses: int) -> None:
    assert answer.status_code in (statuses or range(400, 500)), answer.text
    assert "Traceback" not in answer.text + "".join(capfd.readouterr())


@BOTH
@pytest.mark.parametrize("named", [9999, -1, 10**30, 10**4000, "abc", "0", 0.0, 1.5, True, None, [1], {}, float("nan")])
async def test_a_call_names_an_endpoint(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str, named: object
) -> None:
    body = {"fn_index": named, "session_hash": "names", "data": [None] * 20}
    assert_refused(await send(ben, path, body), capfd, 404)


@BOTH
async def test_a_listener_of_the_browser_is_no_endpoint(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    dependencies = (await ben.get("/config")).json()["dependencies"]
    browsers = [one["id"] for one in dependencies if not one["backend_fn"]]
    assert len(browsers) > 10
    for named in browsers:
        body = {"fn_index": named, "session_hash": "browser", "data": [None] * 20}
        assert_refused(await send(ben, path, body), capfd, 404)


@BOTH
async def test_a_call_without_an_id_is_not_looked_up_by_its_address(
    here: Desk, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    for address in (path, "/gradio_api/run/chat", "/gradio_api/run/x"):
        body = {"session_hash": "no id", "data": ["hi", None, False, None, False]}
        assert_refused(await send(here.clients["ben"], address, body), capfd, 404)
    assert here.live.engine.calls == []


@BOTH
@pytest.mark.parametrize("fields", [{"data": []}, {"data": None}, {"data": {"0": "precise"}}, {"data": "precise"}, {}])
async def test_a_call_has_the_values_of_its_endpoint(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str, fields: dict[str, Any]
) -> None:
    body = {"fn_index": await endpoint_of(ben, "dm-preset", "input"), "session_hash": "values", **fields}
    assert_refused(await send(ben, path, body), capfd, 422)


@BOTH
@pytest.mark.parametrize("field", ["trigger_id", "event_id", "batched", "simple_format", "session_hash"])
async def test_a_field_that_gradio_refuses_is_not_repeated(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str, field: str
) -> None:
    """NaN cannot be repeated as JSON."""
    listener = await endpoint_of(ben, "dm-preset", "input")
    for wrong in (float("nan"), float("inf"), ["x" * 1000], {"x" * 1000: 1}):
        body = {"fn_index": listener, "session_hash": "field", "data": ["precise"], field: wrong}
        answer = await send(ben, path, body)
        assert_refused(answer, capfd, 422)
        assert answer.json()["error"]["message"].startswith(f"The field '{field}'")
        assert "xxx" not in answer.text


async def test_chat_is_not_run_without_the_queue(here: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """The queue is what limits how many run at once."""
    for name, http in (("ben", here.clients["ben"]), ("cyd", here.clients["cyd"])):
        answer = await send(http, RUN, call_of(await chat_index(http), f"chat of {name}"))
        assert_refused(answer, capfd, 404)
    assert here.live.engine.calls == []


async def test_a_key_does_not_run_without_the_queue(here: Desk, ben: httpx.AsyncClient) -> None:
    key = (await ben.post("/api/account/keys", json={"name": "program", "scopes": ["chat", "models"]})).json()["key"]
    refresh, chat = await endpoint_of(ben, "dm-component-model", "refresh"), await chat_index(ben)
    async with here.client() as program:
        for headers in ({}, {"Authorization": f"Bearer {key}"}):
            for body in (call_of(chat, "of a key"), {"fn_index": refresh, "session_hash": "of a key", "data": []}):
                assert (await send(program, RUN, body, headers=headers)).status_code in (401, 403)
    assert here.live.engine.calls == []


@BOTH
async def test_anothers_session_is_not_there(here: Desk, path: str) -> None:
    body = {
        "fn_index": await endpoint_of(here.clients["ada"], "dm-component-model", "refresh"),
        "session_hash": f"adas {path[-4:]}",
        "data": [],
    }
    assert (await send(here.clients["ada"], path, body)).status_code == 200
    for other in ("ben", "cyd"):
        assert (await send(here.clients[other], path, body)).status_code == 404
    assert (await send(here.clients["ada"], path, body)).status_code == 200


@BOTH
@pytest.mark.parametrize("session", ["", "x" * 129, "x" * 1_000_000, "a<gradio-sep>b", "\ud800", "a\0", "é", "a\n"])
async def test_a_session_hash_is_a_short_name(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str, session: str
) -> None:
    listener = await endpoint_of(ben, "dm-component-model", "refresh")
    answer = await send(ben, path, {"fn_index": listener, "session_hash": session, "data": []})
    assert_refused(answer, capfd, 404)


@pytest.mark.parametrize("query", ["session_hash=", "session_hash=never", "session_hash=never&session_hash=ever"])
async def test_a_session_that_never_joined_has_no_stream(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], query: str
) -> None:
    assert_refused(await ben.get(f"/gradio_api/queue/data?{query}"), capfd, 404)


async def test_a_stream_that_was_hung_up_is_no_longer_there(
    here: Desk, ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    gate, page = asyncio.Event(), here.live.app.state.page
    here.live.engine.say("Hello", ", Ben.", gates={1: gate})
    assert (await send(ben, JOIN, call_of(await chat_index(ben), "hung-up"))).status_code == 200
    async with aclosing(messages_of(ben, "hung-up")) as messages:
        # The text is the last message before the gate. Where Gradio still has one to send it may notice the hang-up
        # by itself, and then keeps the empty stream (``sse_stream`` in ``gradio/routes.py``, line 1829).
        while (await anext(messages))["msg"] != "process_generating":
            pass
    await eventually(lambda: not is_streaming(page, "hung-up"))
    capfd.readouterr()
    assert_refused(await ben.get("/gradio_api/queue/data?session_hash=hung-up"), capfd, 404)
    gate.set()
    await eventually(lambda: here.live.engine.running == 0)


@pytest.mark.parametrize(
    "path",
    [
        "/assets/" + "a" * 5000,
        "/assets/" + "%C3%A9" * 200,
        "/static/" + "a" * 5000,
        "/gradio_api/run/a%00b",
        "/gradio_api/run/%0a",
        "/gradio_api/file=%00",
        "/gradio_api/file=/" + "a" * 5000,
    ],
)
async def test_an_address_that_gradio_fails_at_is_none(
    ben: httpx.AsyncClient, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    listener = await endpoint_of(ben, "dm-component-model", "refresh")
    if "/run/" in path:
        answer = await send(ben, path, {"fn_index": listener, "session_hash": "address", "data": []})
    else:
        answer = await ben.get(path)
    assert_refused(answer, capfd, 404)


async def test_no_file_of_the_server_is_served(here: Desk, ben: httpx.AsyncClient) -> None:
    data = here.services.settings.data_dir
    assert (data / "deskmate.db").is_file()
    for name in (data / "deskmate.db", Path(__file__), "/etc/passwd", ".env", "//etc/passwd", "/proc/self/environ"):
        for method in ("GET", "HEAD"):
            assert (await ben.request(method, f"/gradio_api/file={name}")).status_code == 403
    for address in ("http://127.0.0.1/", "https://example.com/", "http://169.254.169.254/"):
        assert (await ben.get(f"/gradio_api/file={address}")).status_code == 403
    for path in ("/assets/..%2f..%2f..%2froutes.py", "/static/..%2f__init__.py", "/svelte/..%2f..%2froutes.py"):
        assert (await ben.get(path)).status_code in (403, 404)  # by Gradio, or by what serves its scripts in its place


async def test_what_the_page_does_not_use_is_closed(ben: httpx.AsyncClient) -> None:
    config = (await ben.get("/config")).json()
    component = config["components"][0]
    body = {"session_hash": "closed", "component_id": component["id"], "fn_name": "postprocess", "data": {}}
    assert (await send(ben, "/gradio_api/component_server", body)).status_code == 404
    custom = f"/gradio_api/custom_component/{component['component_class_id']}/client/component/index.js"
    for path in (custom, "/gradio_api/startup-events", "/pwa_icon/192"):
        assert (await ben.get(path)).status_code == 404


def test_gradio_keeps_few_of_the_sessions_that_a_program_makes_up(here: Desk) -> None:
    assert here.live.app.state.page.state_holder.capacity == MAX_SESSIONS < 10_000
