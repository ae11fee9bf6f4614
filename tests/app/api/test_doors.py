"""Every rule of the policy, as nobody, as each role, and as another person."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send

from app.auth.guard import Guard
from app.auth.identity import Identity
from app.auth.policy import RULES, Access, Rule
from app.domain.accounts import Scope as KeyScope
from app.domain.roles import UserRole
from app.error_format import is_openai_path
from tests.app.auth.test_policy import routes_of
from tests.app.desk import Desk, desk

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Who may, by what a rule asks for. None is nobody in particular.
ENOUGH: dict[Access, set[UserRole | None]] = {
    Access.OPEN: {None, *UserRole},
    Access.USER: {*UserRole},
    Access.WRITER: {UserRole.ADMIN, UserRole.AGENT},
    Access.DESK_READER: {UserRole.ADMIN, UserRole.VIEWER},
    Access.ADMIN: {UserRole.ADMIN},
    Access.VISITOR: set(),  # a visitor's token, which is no user's
    Access.METRICS: set(),
    Access.DENIED: set(),
}
EVERY = [(rule, method) for rule in RULES for method in sorted(rule.methods)]


def path_of(rule: Rule, **ids: str) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: ids.get(match[1], "x1"), rule.path)


class AsTold:
    """Who comes is who the test says."""

    key_hint = ""

    def __init__(self, identity: Identity | None) -> None:
        self.identity = identity

    async def identify(self, scope: Mapping[str, Any]) -> Identity | None:
        return self.identity

    def may_read_metrics(self, scope: Mapping[str, Any]) -> bool:
        return False

    def watch(self, identity: Identity) -> AbstractContextManager[asyncio.Event | None]:
        return nullcontext()


#: What gradio_client requests to call /chat.
GRADIO_CLIENT = {
    "/config",
    "/gradio_api/info",
    "/gradio_api/heartbeat/x1",
    "/gradio_api/queue/join",
    "/gradio_api/queue/data",
    "/gradio_api/cancel",
    "/gradio_api/reset",
}
#: What a program reads of a desk, and what it does there. Figures, merging, what the model writes, contacts' data and
#: all that admins set up are not a key's.
CASES_READ = {
    "/api/inboxes",
    "/api/cases/tags",
    "/api/cases",
    "/api/cases/events",
    "/api/cases/x1",
    "/api/cases/x1/events",
    "/api/cases/x1/attachments/x1",
}
CASES_WRITE = {
    "/api/cases",
    "/api/cases/x1",
    *(f"/api/cases/x1/{act}" for act in ("messages", "notes", "assign", "snooze", "resolve", "reopen")),
}
PUBLIC = 7  #: the one endpoint of Gradio's that keys may run


async def reached(identity: Identity | None) -> set[tuple[str, str]]:
    """The rules whose routes a caller gets to; what is refused is refused for the right reason."""
    found: set[tuple[str, str]] = set()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        found.add((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def unknown(_token: str) -> None:
        return None

    guard = Guard(inner, authenticator=AsTold(identity), find_visitor=unknown, public_endpoints=lambda: {PUBLIC})
    transport = httpx.ASGITransport(app=guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for rule, method in EVERY:
            upload = "multipart/form-data; boundary=b" if rule.form else "application/octet-stream"
            headers = {"Content-Type": upload} if rule.upload else {}
            body = {"fn_index": PUBLIC} if rule.runs_endpoint else None
            answer = await http.request(method, path_of(rule), json=body, headers=headers)
            if answer.status_code == 204:
                continue
            expected = 404 if rule.access is Access.DENIED else 401 if identity is None else 403
            if rule.access in (Access.METRICS, Access.VISITOR):
                expected = 401
            if rule.linkable and expected == 401:
                expected = 303
            assert answer.status_code == expected, f"{method} {rule.path}"
    return found


@pytest.mark.parametrize("role", [None, *UserRole])
async def test_each_role_gets_to_what_the_table_says_and_no_further(role: UserRole | None) -> None:
    identity = Identity("someone", role, session_id="s1") if role is not None else None
    allowed = {(method, path_of(rule)) for rule, method in EVERY if role in ENOUGH[rule.access]}
    assert await reached(identity) == allowed


@pytest.mark.parametrize("scope", [None, *KeyScope])
async def test_a_key_gets_to_what_it_was_made_for_and_no_further(scope: KeyScope | None) -> None:
    scopes = frozenset([scope.value]) if scope is not None else frozenset[str]()
    identity = Identity("someone", UserRole.ADMIN, key_id="k1", scopes=scopes)
    opened = {(method, path_of(rule)) for rule, method in EVERY if rule.scope is not None and rule.scope == scope}
    to_all = {(method, path_of(rule)) for rule, method in EVERY if rule.access is Access.OPEN}
    assert await reached(identity) == opened | to_all
    beside = {path for _, path in opened if not is_openai_path(path)}
    expected = {KeyScope.CHAT: GRADIO_CLIENT, KeyScope.CASES_READ: CASES_READ, KeyScope.CASES_WRITE: CASES_WRITE}
    assert beside == (expected.get(scope, set()) if scope is not None else set())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


async def test_nobody_gets_to_any_route_there_is(here: Desk) -> None:
    """As they are, libraries' included: not by the table alone."""
    opened = {(method, rule.path) for rule, method in EVERY if rule.access is Access.OPEN}
    async with here.client() as http:
        for method, template in sorted(set(routes_of(here.live.app.routes))):
            path = template.rstrip("/") or "/"
            if (("GET" if method == "HEAD" else method), path) in opened:
                continue
            answer = await http.request(method, re.sub(r"\{[^}]*\}", "x1", template))
            assert answer.status_code in (303, 401, 404), f"{method} {template}"


#: What a request must say to be understood.
BODIES: dict[str, dict[str, Any]] = {
    "/api/messages/{message_id}/edit": {"text": "changed"},
    "/api/messages/{message_id}/branch-at": {"index": 0, "token_id": 1},
    "/api/messages/{message_id}/rewrite": {"text": "changed"},
    "/api/messages/{message_id}/compare": {"variants": [{}, {"temperature": 1}]},
    "/api/messages/{message_id}/feedback": {"rating": "down"},
    "/api/conversations/{conversation_id}": {"title": "taken"},
    "/api/conversations/{conversation_id}/draft": {"text": "Where is it?"},
    "/api/conversations/{conversation_id}/drafts/{draft_id}": {"text": "It is there.", "used_as": "copied"},
}
#: There, admins see what was said, or what becomes of a person.
FOR_THE_DESK = re.compile(r"/api/(desk|people|account)/")


@pytest.mark.parametrize("name", ["ada", "cyd"])
async def test_anothers_conversation_is_not_there(here: Desk, name: str) -> None:
    """Streamed, stopped, exported, searched, rated, whatever the role: the answer is that of what does not exist."""
    owner, other = here.clients["ben"], here.clients[name]
    stored = await owner.post("/v1/responses", json={"input": "marmots alone"})
    gate = asyncio.Event()
    here.live.engine.say("kept ", "whole", gates={1: gate})
    sent = await owner.post("/api/turns", json={"text": "marmots alone"})
    assert sent.status_code == 201, sent.text
    ids = {key: value for key, value in sent.json().items() if key.endswith("_id") and isinstance(value, str)}
    ids["response_id"], ids["index"] = stored.json()["id"], "0"
    touched = 0
    for rule, method in EVERY:
        if not re.search(r"\{(turn|message|conversation|response)_id\}", rule.path) or FOR_THE_DESK.match(rule.path):
            continue
        body = BODIES.get(rule.path, {}) if method in ("POST", "PUT", "PATCH") else None
        answer = await other.request(method, path_of(rule, **ids), json=body)
        expected = 403 if rule.access is Access.WRITER and name == "cyd" else 404
        assert answer.status_code == expected, f"{method} {rule.path}: {answer.text}"
        touched += 1
    assert touched > 13
    for query in ("", "?query=marmots", "?archived=true"):
        assert (await other.get(f"/api/conversations{query}")).json()["items"] == []
    assert "marmots" not in (await other.get("/api/export")).text
    gone = await other.get(f"/api/events?turn={ids['turn_id']}:0")
    assert "event: gone" in gone.text
    assert "kept" not in gone.text
    for field in ({"previous_response_id": ids["response_id"]}, {"input": [{"id": stored.json()["output"][0]["id"]}]}):
        answer = await other.post("/v1/responses", json={"input": "What was that?", **field})
        assert answer.status_code == (403 if name == "cyd" else 400), answer.text
    assert (await owner.get(f"/v1/responses/{ids['response_id']}")).json() == stored.json()
    gate.set()
    events = (await owner.get(f"/api/turns/{ids['turn_id']}/events")).text
    assert "kept" in events
    assert '"status":"complete"' in events
    shown = (await owner.get(f"/api/conversations/{ids['conversation_id']}")).json()
    assert [message["content"] for message in shown["messages"]] == ["marmots alone", "kept whole"]
    assert shown["title"] == "marmots alone"


@pytest.mark.slow
async def test_gradios_sessions_and_endpoints_are_their_users(here: Desk) -> None:
    """Every endpoint of the page's, private ones too: a session that somebody opened is worth nothing to others."""
    ben, ada = here.clients["ben"], here.clients["ada"]
    endpoints = (await ben.get("/config")).json()["dependencies"]
    assert endpoints
    session = "a-session-of-bens"
    async with here.client() as nobody:
        for endpoint in endpoints:
            body = {"data": [], "fn_index": endpoint["id"], "session_hash": session, "event_data": None}
            for path in ("/gradio_api/queue/join", "/gradio_api/run/predict"):
                assert (await nobody.post(path, json=body)).status_code == 401
                mine = await ben.post(path, json=body)
                assert mine.status_code not in (401, 403)
                assert (await ada.post(path, json=body)).status_code == 404
        assert (await nobody.get(f"/gradio_api/queue/data?session_hash={session}")).status_code == 401
    assert (await ada.get(f"/gradio_api/queue/data?session_hash={session}")).status_code == 404
    assert (await ada.get(f"/gradio_api/heartbeat/{session}")).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/ui/static/page.py",
        "/ui/static/__init__.py",
        "/ui/static/../ui/page.py",
        "/ui/static/../page.py",
        "/ui/static/%2e%2e/page.py",
        "/ui/static/..%2fpage.py",
        "/ui/static/pages/..%5c..%5cpage.py",
        "/ui/static//etc/passwd",
        "/invitation/../../etc/passwd",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../etc/passwd",
        "/gradio_api/file=%2e%2e/%2e%2e/app/settings.py",
        "/assets/../../../../etc/passwd",
        "/static/..%2f..%2f..%2fetc/passwd",
        "/theme.css/../../../etc/passwd",
    ],
)
async def test_no_path_leads_out_of_its_folder(here: Desk, path: str) -> None:
    for http in (here.clients["ada"], here.clients["ben"]):
        # As it is written: httpx would tidy it up.
        request = http.build_request("GET", here.live.url)
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = await http.send(request)
        assert answer.status_code in (303, 400, 403, 404, 405), answer.text[:200]
        assert "root:" not in answer.text
        assert "import" not in answer.text


async def test_what_anybody_may_send_is_small(here: Desk) -> None:
    async with here.client() as http:
        for path in ("/api/account/sign-in", "/api/links/look", "/api/links/use"):
            answer = await http.post(path, json={"name": "x" * 70_000, "password": "y"})
            assert answer.status_code == 413
            assert (await http.post(path, json={"name": "x" * 300, "password": "y" * 300})).status_code == 422
        # Before it is read, it is known that nobody sent it.
        huge = await http.post("/api/turns", content=b" " * 3_000_000, headers={"Content-Type": "application/json"})
        assert huge.status_code == 401


async def test_a_body_that_does_not_come_is_not_waited_for(here: Desk) -> None:
    """And others are answered meanwhile."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it has no body")

    guard = Guard(inner, authenticator=AsTold(Identity("someone", UserRole.ADMIN)), body_seconds=0.05)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    transport = SlowTransport(guard)
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    answer = await transport.post("/api/turns", headers, pieces())
    assert answer == 408


class SlowTransport:
    """Sends a body piece by piece, as a slow line would."""

    def __init__(self, app: Guard) -> None:
        self._app = app

    async def post(self, path: str, headers: list[tuple[bytes, bytes]], pieces: AsyncIterator[bytes]) -> int:
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": await anext(pieces), "more_body": True}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        async with asyncio.timeout(20):
            await self._app(scope, receive, send)
        return status
