"""The guard by itself, in front of an application that would answer anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from app.auth.gradio_sessions import SessionOwners
from app.auth.guard import Guard
from app.auth.headers import SecurityHeaders
from app.auth.identity import Authenticator, Identity, LocalUser, user_id_of
from app.auth.origins import own_addresses
from app.auth.policy import Access, rule_on
from app.auth.revocable import RevocableRequests
from app.domain.accounts import Scope as KeyScope
from app.domain.roles import UserRole
from app.errors import TooLarge

OWN = "http://127.0.0.1:7860"
EVIL = "https://evil.example"

#: Every kind of door: the chat's API, OpenAI's, Gradio's, a probe, the page.
READS = [
    "/api/conversations",
    "/api/conversations/c1/export",
    "/api/export",
    "/api/turns/t1/events",
    "/api/events?turn=t1:0",
    "/v1/models",
    "/config",
    "/gradio_api/queue/data?session_hash=s1",
    "/gradio_api/heartbeat/s1",
    "/metrics",
    "/health",
    "/ui/options",
]
WRITES = [
    ("POST", "/api/turns"),
    ("POST", "/api/turns/t1/stop"),
    ("PATCH", "/api/conversations/c1"),
    ("DELETE", "/api/conversations/c1"),
    ("POST", "/api/import"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/run/predict"),
]


class Permissive:
    """Answers every request, says whose it was, and allows every origin, as Gradio does."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        request = Request(scope, receive)
        self.seen.append((request.method, request.url.path))
        named = request.scope.get("state")
        body = {"user": user_id_of(request) if named else None, "body": (await request.body()).decode()}
        headers = [
            (b"content-type", b"application/json"),
            (b"access-control-allow-origin", request.headers.get("origin", "*").encode()),
            (b"Access-Control-Allow-Credentials", b"true"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@pytest.fixture
def inner() -> Permissive:
    return Permissive()


@pytest.fixture
async def client(inner: Permissive) -> Any:
    guard = Guard(inner, authenticator=LocalUser("me"), allowed_hosts=["desk.example"], max_body_bytes=1000)
    app = SecurityHeaders(guard)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=OWN) as http:
        yield http


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["message"].endswith(".")
    return error


@pytest.mark.parametrize("path", READS)
async def test_our_own_page_reads(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path, headers={"Sec-Fetch-Site": "same-origin"})
    assert response.status_code == 200
    rule = rule_on("GET", path.partition("?")[0]).rule
    assert rule is not None
    nobodys = rule.access in (Access.OPEN, Access.METRICS)
    assert response.json()["user"] == (None if nobodys else "me")


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "cross-site", "Origin": OWN},
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:7861"},
        {"Origin": "http://127.0.0.1.evil.example:7860"},
        {"Origin": "garbage"},
    ],
)
async def test_another_site_reads_nothing(
    client: httpx.AsyncClient, inner: Permissive, path: str, headers: dict[str, str]
) -> None:
    response = await client.get(path, headers=headers)
    assert response.status_code == 403
    assert error_of(response)["code"] == "cross_site"
    assert inner.seen == []


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://[broken"},
    ],
)
async def test_another_site_writes_nothing(
    client: httpx.AsyncClient, inner: Permissive, method: str, path: str, headers: dict[str, str]
) -> None:
    response = await client.request(method, path, json={}, headers=headers)
    assert response.status_code == 403
    assert inner.seen == []


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-origin", "Origin": OWN}, {"Origin": OWN}])
async def test_programs_and_our_own_page_write(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    response = await client.request(method, path, json={"a": 1}, headers=headers)
    assert response.status_code == 200
    assert json.loads(response.json()["body"]) == {"a": 1}


async def test_a_link_on_another_site_opens_the_page_and_only_the_page(client: httpx.AsyncClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.get("/", headers=link)).status_code == 200
    assert (await client.get("/", headers={**link, "Sec-Fetch-Dest": "iframe"})).status_code == 403
    assert (await client.get("/", headers={**link, "Sec-Fetch-Mode": "no-cors"})).status_code == 403


@pytest.mark.parametrize("origin", [EVIL, OWN])
async def test_no_cors_permission_leaves(client: httpx.AsyncClient, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        response = await client.request(
            method,
            "/v1/models" if method == "GET" else "/v1/chat/completions",
            json={} if method == "POST" else None,
            headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
        )
        assert not [name for name in response.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7860",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "127.0.0.1/x",
        "",
        "[::1",
    ],
)
async def test_wrong_hosts_are_refused_everywhere(client: httpx.AsyncClient, inner: Permissive, host: str) -> None:
    for path in [*READS, "/", "/nowhere"]:
        response = await client.get(path, headers={"Host": host})
        assert response.status_code == 421
        assert error_of(response)["code"] == "wrong_host"
    assert inner.seen == []


@pytest.mark.parametrize(
    "host",
    ["localhost:7860", "LOCALHOST", "127.0.0.1", "[::1]:7860", "desk.example", "desk.example.", "Desk.example:80"],
)
async def test_our_hosts_are_answered(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/health", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_writes_must_be_json(
    client: httpx.AsyncClient, inner: Permissive, method: str, path: str, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = await client.request(method, path, content=b'{"text": "hi"}', headers=headers)
    assert response.status_code == 415
    assert inner.seen == []


async def test_a_write_without_a_body_needs_no_type(client: httpx.AsyncClient) -> None:
    assert (await client.post("/api/turns/t1/stop")).status_code == 200
    assert (await client.delete("/api/conversations/c1")).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_large_bodies_are_refused(client: httpx.AsyncClient, inner: Permissive, declared: bool) -> None:
    async def pieces() -> Any:
        for _ in range(11):
            yield b"x" * 100

    content = b"x" * 1001 if declared else pieces()
    response = await client.post("/api/turns", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert inner.seen == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api", 404),
        ("GET", "//api/conversations", 404),
        ("GET", "/api/conversations/c1/more", 404),
        ("GET", "/gradio_api/call/predict/e1", 404),
        ("POST", "/gradio_api/upload", 404),
        ("POST", "/gradio_api/vibe-code", 404),
        ("GET", "/gradio_api/file/etc/passwd", 404),
        ("GET", "/monitoring", 404),
        ("POST", "/login", 404),
        ("PUT", "/api/turns", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/api/turns", 405),
        ("TRACE", "/", 405),
    ],
)
async def test_what_is_not_in_the_table_does_not_exist(
    client: httpx.AsyncClient, inner: Permissive, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert inner.seen == []
    if status == 405:
        assert "GET" in response.headers["allow"] or "POST" in response.headers["allow"]


async def test_every_answer_carries_the_security_headers(client: httpx.AsyncClient) -> None:
    for path in ("/", "/api/conversations", "/nowhere"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "object-src 'none'" in headers["content-security-policy"]
    assert (await client.get("/api/conversations")).headers["cache-control"] == "no-store"


async def test_errors_below_v1_have_openais_shape(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/files")
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def session_requests(session_hash: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    body = {"session_hash": session_hash, "event_id": "e", "fn_index": 0, "data": []}
    return [
        ("POST", "/gradio_api/queue/join", body),
        ("GET", f"/gradio_api/queue/data?session_hash={session_hash}", None),
        ("GET", f"/gradio_api/queue/data?session_hash=mine&session_hash={session_hash}", None),
        ("POST", "/gradio_api/run/predict", body),
        ("POST", "/gradio_api/cancel", body),
        ("GET", f"/gradio_api/heartbeat/{session_hash}", None),
    ]


async def test_a_gradio_session_belongs_to_whoever_named_it_first(inner: Permissive) -> None:
    sessions = SessionOwners()
    first = Guard(inner, authenticator=LocalUser("first"), sessions=sessions)
    second = Guard(inner, authenticator=LocalUser("second"), sessions=sessions)
    alice = httpx.AsyncClient(transport=httpx.ASGITransport(app=first), base_url=OWN)
    bob = httpx.AsyncClient(transport=httpx.ASGITransport(app=second), base_url=OWN)
    async with alice, bob:
        for method, path, body in session_requests("s-alice"):
            assert (await alice.request(method, path, json=body)).status_code == 200
        inner.seen.clear()
        for method, path, body in session_requests("s-alice"):
            assert (await bob.request(method, path, json=body)).status_code == 404
        assert inner.seen == []
        assert (await bob.get("/gradio_api/heartbeat/s-bob")).status_code == 200


async def test_a_users_browser_and_each_of_their_keys_have_sessions_of_their_own() -> None:
    sessions = SessionOwners()
    callers = [
        Identity("ben", UserRole.AGENT, session_id="s1"),
        Identity("ben", UserRole.AGENT, key_id="k1", scopes=frozenset({KeyScope.CHAT})),
        Identity("ben", UserRole.AGENT, key_id="k2", scopes=frozenset({KeyScope.CHAT})),
        Identity("ada", UserRole.AGENT, session_id="s2"),
    ]
    for number, owner in enumerate(callers):
        assert sessions.claim(f"of {number}", owner)
    for number, owner in enumerate(callers):
        assert [one for one in callers if sessions.claim(f"of {number}", one)] == [owner]
    again = Identity("ben", UserRole.AGENT, session_id="s3")  # the open page of who signed in again
    assert sessions.claim("of 0", again)


PUBLIC = 7


#: What is not the id of the public endpoint, though Gradio may read some of it so.
WRONG: list[object] = [PUBLIC + 1, str(PUBLIC), float(PUBLIC), True, 1, None, [PUBLIC], {}, -1]


@pytest.mark.parametrize("fields", [{}, *[{"fn_index": wrong} for wrong in WRONG]])
@pytest.mark.parametrize("key_id", [None, "k1"])
async def test_a_key_runs_public_endpoints_alone(inner: Permissive, key_id: str | None, fields: dict[str, Any]) -> None:
    identity = Identity("ben", UserRole.ADMIN, key_id=key_id, scopes=frozenset({KeyScope.CHAT}))
    guard = Guard(inner, authenticator=AsTold(identity), public_endpoints=lambda: frozenset({PUBLIC}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=OWN) as http:
        for path in ("/gradio_api/queue/join", "/gradio_api/queue/join/"):
            answer = await http.post(path, json={"session_hash": "s", "data": [], **fields})
            assert answer.status_code == (200 if key_id is None else 403)
            assert (
                await http.post(path, json={"session_hash": "s", "data": [], "fn_index": PUBLIC})
            ).status_code == 200


@pytest.mark.parametrize("body", [b"{", b"[1]", b"null", b'{"session_hash": 7}', b"[" * 900])
async def test_a_body_that_names_no_session_is_left_to_the_route(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/gradio_api/queue/join", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200


class Known:
    """Who comes is who the header says."""

    key_hint = ""

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        role = dict(scope["headers"]).get(b"x-role")
        return Identity("someone", UserRole(role.decode())) if role else None

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:
        return False

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:
        return nullcontext()


class AsTold(Known):
    """Who comes is who the test says."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        return self.identity


#: What a caller must be, and an example.
NEEDS = [
    (Access.OPEN, "GET", "/health"),
    (Access.USER, "GET", "/api/conversations"),
    (Access.WRITER, "POST", "/api/turns"),
    (Access.WRITER, "DELETE", "/api/conversations/c1"),
    (Access.WRITER, "POST", "/v1/chat/completions"),
    (Access.ADMIN, "POST", "/api/engine/swap"),
    (Access.ADMIN, "DELETE", "/api/engine/adapters/team/sql"),
]


@pytest.mark.parametrize("role", [None, *UserRole])
@pytest.mark.parametrize(("access", "method", "path"), NEEDS)
async def test_roles_open_what_the_table_says(
    inner: Permissive, access: Access, method: str, path: str, role: UserRole | None
) -> None:
    authenticator: Authenticator = Known()
    guard = Guard(inner, authenticator=authenticator)
    enough = {
        Access.OPEN: {None, *UserRole},
        Access.USER: {*UserRole},
        Access.WRITER: {UserRole.ADMIN, UserRole.AGENT},
        Access.ADMIN: {UserRole.ADMIN},
    }[access]
    headers = {"X-Role": role.value} if role else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=OWN) as http:
        response = await http.request(method, path, headers=headers)
    expected = 200 if role in enough else 401 if role is None else 403
    assert response.status_code == expected
    assert bool(inner.seen) is (expected == 200)
    if expected != 200:
        assert error_of(response)["code"] == ("not_signed_in" if role is None else "not_allowed")


async def test_websockets_are_refused(inner: Permissive) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await Guard(inner, authenticator=LocalUser("me"))({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_an_upload_is_not_kept_by_the_guard_but_limited(inner: Permissive) -> None:
    guard = Guard(inner, authenticator=LocalUser("me"), max_body_bytes=10, max_upload_bytes=100)
    headers = {"Content-Type": "application/octet-stream"}

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=OWN) as http:
        answer = await http.post("/api/import", content=pieces(100), headers=headers)
        assert answer.json()["body"] == "x" * 100
        for body in (pieces(101), b"x" * 101):
            with pytest.raises(TooLarge):
                await http.post("/api/import", content=body, headers=headers)


def test_a_server_that_listens_everywhere_answers_to_its_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_addresses("127.0.0.1") == frozenset()
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert own_addresses("0.0.0.0") >= {"127.0.0.1"}
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.name.invalid")
    assert own_addresses("0.0.0.0") == frozenset()


async def test_a_user_has_so_many_streams_and_takes_none_of_anothers() -> None:
    opened, over = asyncio.Semaphore(0), asyncio.Event()

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        opened.release()
        if scope["path"] == "/api/events":
            await over.wait()
        await send({"type": "http.response.body"})

    def guard_of(user_id: str, revocable: RevocableRequests) -> Guard:
        guard = Guard(streams, authenticator=LocalUser(user_id))
        guard._revocable = revocable
        return guard

    revocable = RevocableRequests(2)
    ben, ada = (
        httpx.AsyncClient(transport=httpx.ASGITransport(app=guard_of(name, revocable)), base_url=OWN)
        for name in ("ben", "ada")
    )
    async with ben, ada:
        under_way = [asyncio.create_task(ben.get("/api/events?stream_id=a")) for _ in range(2)]
        for _ in under_way:
            await opened.acquire()
        refused = await ben.get("/api/events?stream_id=b")
        assert refused.status_code == 429
        assert "2 streams open already" in error_of(refused)["message"]
        assert refused.headers["retry-after"] == "5"
        assert (await ben.get("/api/conversations")).status_code == 200  # which is no stream
        under_way.append(asyncio.create_task(ada.get("/api/events?stream_id=c")))
        await opened.acquire()
        await opened.acquire()
        over.set()
        assert [answer.status_code for answer in await asyncio.gather(*under_way)] == [200] * 3
        assert (await ben.get("/api/events?stream_id=d")).status_code == 200
