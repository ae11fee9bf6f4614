"""Signing in and out, sessions, links, passwords, roles and API keys, through the doors that people use."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
import structlog

from app.auth import rate_limits
from app.auth.rate_limits import RateLimit
from app.domain.audit import AuditAction
from app.domain.ids import LOCAL_USER_ID
from app.domain.roles import UserRole
from app.store.db.models import AuditEvent, Conversation
from app.store.db.sign_in_models import ApiKey, Invitation, LoginSession
from testing.waiting import eventually
from tests.app.desk import METRICS_TOKEN, PASSWORD, Desk, desk, sign_in
from tests.app.live_server import reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "another four words here"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data")) as running:
        await running.add("ada", UserRole.ADMIN)
        await running.add("ben", UserRole.AGENT)
        await running.add("cyd", UserRole.VIEWER)
        yield running


@pytest.fixture
def here(opened: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    reset_engine(opened.live.engine)
    opened.accounts._rate_limiter = rate_limits.RateLimiter()
    return opened


@pytest.fixture
def names() -> Iterator[str]:
    return (f"new{number}" for number in range(1000))


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"].endswith(".")
    return error


async def rows(here: Desk, statement: Any) -> list[Any]:
    return await here.services.database.read(lambda session: list(session.scalars(statement)))


async def actions(here: Desk, target: str | None) -> list[str]:
    wanted = sa.select(AuditEvent.action).where(AuditEvent.target == target).order_by(AuditEvent.id)
    return await rows(here, wanted)


# ---- coming in


async def test_the_cookie_is_the_browsers_alone_and_the_token_is_nowhere(here: Desk) -> None:
    async with here.client() as http:
        answer = await sign_in(http, "BEN ")
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Path=/" in cookie
        token = http.cookies["deskmate_session"]
        assert len(token) >= 40
        assert token not in str([(one.id, one.token_hash) for one in await rows(here, sa.select(LoginSession))])
        me = (await http.get("/api/account")).json()
        assert (me["name"], me["role"], me["accounts"]) == ("ben", "agent", True)


async def test_what_is_wrong_is_not_said(here: Desk) -> None:
    await here.accounts.create("shut", None, UserRole.AGENT, PASSWORD)
    await here.accounts.set_disabled((await here.accounts.records.credentials("shut")).user_id, True, actor_id=None)  # type: ignore[union-attr]
    answers = []
    for name, password in (("ben", "wrong words here"), ("nobody", PASSWORD), ("shut", PASSWORD), ("local", "")):
        async with here.client() as http:
            answer = await sign_in(http, name, password)
            assert not http.cookies
            answers.append((answer.status_code, answer.json()))
    assert answers == [answers[0]] * len(answers)
    assert answers[0][0] == 401


async def test_whoever_is_meant_a_password_is_verified(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time it takes is that of argon2, and argon2 runs once for each of them."""
    runs: list[str] = []
    hasher = here.accounts._passwords._hasher
    verify, update = hasher.verify, hasher.verify_and_update
    monkeypatch.setattr(hasher, "verify", lambda *given: runs.append("verify") or verify(*given))
    monkeypatch.setattr(hasher, "verify_and_update", lambda *given: runs.append("verify") or update(*given))
    async with here.client() as http:
        for name in ("ben", "nobody at all", "local"):
            runs.clear()
            assert (await sign_in(http, name, "wrong words here")).status_code == 401
            assert runs == ["verify"]


@pytest.mark.parametrize("rates", ["SIGN_INS_BY_ACCOUNT", "SIGN_INS_BY_ADDRESS"])
async def test_too_many_tries_are_refused_before_the_password_is_looked_at(
    here: Desk, monkeypatch: pytest.MonkeyPatch, rates: str
) -> None:
    monkeypatch.setattr(f"app.auth.accounts.{rates}", (RateLimit(3, 60, rates),))
    async with here.client() as http:
        for _ in range(3):
            assert (await sign_in(http, "ben", "wrong words here")).status_code == 401
        refused = await sign_in(http, "ben")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "Try again in" in error_of(refused)["message"]
        other = await sign_in(http, "cyd")
        assert other.status_code == (204 if rates == "SIGN_INS_BY_ACCOUNT" else 429)


async def test_a_session_that_was_planted_is_not_the_one_that_begins(here: Desk) -> None:
    async with here.client() as http:
        http.cookies.set("deskmate_session", "planted", domain="127.0.0.1")
        assert (await http.get("/api/account")).status_code == 401
        answer = await sign_in(http, "ben")
        assert "planted" not in answer.headers["set-cookie"]
        before = answer.cookies["deskmate_session"]
        again = await sign_in(http, "ben")  # and the one before ends
        assert again.cookies["deskmate_session"] != before
    async with here.client() as thief:
        thief.cookies.set("deskmate_session", before)
        assert (await thief.get("/api/account")).status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "é", "a" * 5000, "' OR 1=1 --", '"quoted"', "a b"])
async def test_a_cookie_of_nobodys_opens_nothing(here: Desk, cookie: str) -> None:
    async with here.client() as http:
        answer = await http.get("/api/account", headers={b"Cookie": f"deskmate_session={cookie}".encode()})
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "not_signed_in"


async def test_a_cookie_that_no_header_may_hold_opens_nothing(here: Desk) -> None:
    async with here.client() as http:
        assert (await http.get("/api/account", headers={b"Cookie": b"deskmate_session=\x7f"})).status_code == 400


async def test_a_page_leads_to_the_way_in_and_back(here: Desk) -> None:
    async with here.client() as http:
        answer = await http.get("/?c=1&m=a%20b")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/sign-in?next=%2F%3Fc%3D1%26m%3Da%2520b"
        for page in ("/sign-in", "/setup", "/invitation/x"):
            shown = await http.get(page)
            assert shown.status_code == 200
            assert "script-src 'self';" in shown.headers["content-security-policy"]
            # A page that the browser had kept from before an update would not fit the new scripts.
            assert shown.headers["cache-control"] == "no-cache"
        for asked in ("/api/conversations", "/config", "/ui/options", "/nowhere"):
            assert (await http.get(asked)).status_code == (404 if asked == "/nowhere" else 401)
        openai = await http.get("/v1/models")
        assert openai.status_code == 401
        assert openai.headers["www-authenticate"] == "Bearer"
        assert set(openai.json()["error"]) == {"message", "type", "param", "code"}


# ---- sessions


@pytest.mark.slow
async def test_sessions_outlive_the_server(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False) as first:
        http = await first.add("ada", UserRole.ADMIN)
        token = http.cookies["deskmate_session"]
    for secret, status in (({}, 200), ({"secret_key": "b8Yq2mVbT9rLw4ZpYs8NdGhJ3fCeA6uQ1oRi5"}, 401)):
        async with desk(tmp_path, gradio=False, **secret) as second, second.client() as http:
            http.cookies.set("deskmate_session", token)
            assert (await http.get("/api/account")).status_code == status


async def test_sessions_are_listed_and_ended_one_by_one_and_all_at_once(here: Desk) -> None:
    await here.add("many", UserRole.AGENT)
    here.clients["many"].headers["User-Agent"] = "first"
    other, third = await here.signed_in("many"), await here.signed_in("many")
    mine = here.clients["many"]
    sessions = (await mine.get("/api/account/sessions")).json()
    assert len(sessions) == 3
    assert [one["current"] for one in sessions].count(True) == 1
    [theirs] = [one for one in (await other.get("/api/account/sessions")).json() if one["current"]]
    # Another's session is none, as far as anybody can tell.
    assert (await here.clients["ben"].delete(f"/api/account/sessions/{theirs['id']}")).status_code == 404
    assert (await other.get("/api/account")).status_code == 200
    assert (await mine.delete(f"/api/account/sessions/{theirs['id']}")).status_code == 204
    assert (await other.get("/api/account")).status_code == 401
    assert (await third.post("/api/account/sign-out-everywhere")).status_code == 204
    for http in (mine, third):
        assert (await http.get("/api/account")).status_code == 401
    assert AuditAction.SIGNED_OUT_EVERYWHERE in await actions(here, here.ids["many"])


async def test_signing_out_ends_the_session_and_not_only_the_cookie(here: Desk) -> None:
    http = await here.signed_in("ben")
    token = http.cookies["deskmate_session"]
    answer = await http.post("/api/account/sign-out")
    assert answer.status_code == 204
    assert 'deskmate_session=""' in answer.headers["set-cookie"]
    http.cookies.set("deskmate_session", token)
    assert (await http.get("/api/account")).status_code == 401


async def test_a_session_ends_by_itself_and_lasts_longer_with_each_visit(here: Desk) -> None:
    http = await here.add("away", UserRole.AGENT)
    mine = LoginSession.user_id == here.ids["away"]
    long_ago = datetime.now(UTC) - timedelta(days=10)
    await here.services.database.write(
        lambda session: session.execute(
            sa.update(LoginSession).where(mine).values(last_seen_at=long_ago, expires_at=long_ago + timedelta(days=14))
        )
    )
    assert (await http.get("/api/account")).status_code == 200

    async def expiry() -> datetime:
        [found] = await rows(here, sa.select(LoginSession.expires_at).where(mine))
        assert isinstance(found, datetime)
        return found

    deadline = asyncio.get_running_loop().time() + 20
    while await expiry() < datetime.now(UTC) + timedelta(days=13):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    await here.services.database.write(
        lambda session: session.execute(sa.update(LoginSession).where(mine).values(expires_at=datetime.now(UTC)))
    )
    here.accounts.session_cache.invalidate()  # nobody waits for it here
    assert (await http.get("/api/account")).status_code == 401
    await here.accounts.sessions.purge()
    assert await rows(here, sa.select(LoginSession).where(mine)) == []


async def test_a_new_password_ends_every_other_session(here: Desk) -> None:
    http = await here.add("turn", UserRole.AGENT)
    other = await here.signed_in("turn")
    wrong = await http.post("/api/account/password", json={"present": "not it at all", "new": OTHER})
    assert wrong.status_code == 422
    for refused in ("short", "a" * 12, "turn", "password1234", "x" * 257):
        answer = await http.post("/api/account/password", json={"present": PASSWORD, "new": refused})
        assert answer.status_code == 422
    assert (await http.post("/api/account/password", json={"present": PASSWORD, "new": OTHER})).status_code == 204
    assert (await http.get("/api/account")).status_code == 200
    assert (await other.get("/api/account")).status_code == 401
    assert (await sign_in(other, "turn")).status_code == 401
    assert (await sign_in(other, "turn", OTHER)).status_code == 204


# ---- streams


async def begun(here: Desk, http: httpx.AsyncClient) -> tuple[asyncio.Event, str]:
    """A reply that does not end, and its turn."""
    gate = asyncio.Event()
    here.live.engine.say("first", "last", gates={1: gate})
    answer = await http.post("/api/turns", json={"text": "hello"})
    assert answer.status_code == 201, answer.text
    return gate, answer.json()["turn_id"]


@pytest.mark.parametrize("how", ["revoked", "disabled", "signed out everywhere", "another password"])
async def test_a_live_stream_ends_with_its_session(here: Desk, how: str) -> None:
    name = f"live-{how.replace(' ', '-')}"
    http = await here.add(name, UserRole.AGENT)
    reader = await here.signed_in(name)
    user_id = here.ids[name]
    gate, turn = await begun(here, http)
    async with reader.stream("GET", f"/api/events?turn={turn}:0") as response:
        lines = response.aiter_lines()
        while "first" not in await anext(lines):
            pass
        if how == "revoked":
            [session] = [one for one in (await reader.get("/api/account/sessions")).json() if one["current"]]
            await http.delete(f"/api/account/sessions/{session['id']}")
        elif how == "disabled":
            await here.clients["ada"].patch(f"/api/people/{user_id}", json={"disabled": True})
        elif how == "another password":
            await http.post("/api/account/password", json={"present": PASSWORD, "new": OTHER})
        else:
            await here.clients["ada"].delete(f"/api/people/{user_id}/sessions")
        async with asyncio.timeout(20):
            rest = [line async for line in lines]  # the stream ends
        assert not any("last" in line or "event: end" in line for line in rest)
    gate.set()
    await eventually(lambda: here.live.engine.running == 0)


async def test_a_session_that_another_process_ended_ends_its_stream_here(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.auth.revocation_watcher.POLL_SECONDS", 0.05)
    here.accounts.revocation_watcher.check_now()  # from now on often
    http = await here.add("far", UserRole.AGENT)
    gate, turn = await begun(here, http)
    async with http.stream("GET", f"/api/turns/{turn}/events") as response:
        lines = response.aiter_lines()
        while "first" not in await anext(lines):
            pass
        await here.services.database.write(
            lambda session: session.execute(sa.delete(LoginSession).where(LoginSession.user_id == here.ids["far"]))
        )
        async with asyncio.timeout(20):
            assert not any("event: end" in line for line in [line async for line in lines])
    gate.set()
    await eventually(lambda: here.live.engine.running == 0)


# ---- people


async def test_an_invitation_makes_one_account_and_no_second(here: Desk) -> None:
    admin = here.clients["ada"]
    made = await admin.post("/api/people/invitations", json={"role": "viewer", "note": "for dot"})
    link = made.json()["link"]
    assert link.startswith(f"{here.live.url}/invitation/")
    token = link.rpartition("/")[2]
    [listed] = [one for one in (await admin.get("/api/people")).json()["invitations"] if one["note"] == "for dot"]
    assert token not in json.dumps(listed)
    assert token not in str([one.token_hash for one in await rows(here, sa.select(Invitation))])
    async with here.client() as http:
        looked = (await http.post("/api/links/look", json={"token": token})).json()
        assert (looked["purpose"], looked["role"], looked["local_conversations"]) == ("invitation", "viewer", 0)
        for name, password in (("dot", "short"), ("ben", PASSWORD), ("with blank", PASSWORD), ("local", PASSWORD)):
            use = {"token": token, "name": name, "password": password}
            assert (await http.post("/api/links/use", json=use)).status_code in (409, 422)
        uses = [
            http.post("/api/links/use", json={"token": token, "name": name, "password": PASSWORD})
            for name in ("Dot@Example.com", "dot2")
        ]
        answers = await asyncio.gather(*uses)
        assert sorted(answer.status_code for answer in answers) == [204, 404]
        assert (await http.get("/api/account")).json()["role"] == "viewer"
        assert (await http.post("/api/links/look", json={"token": token})).status_code == 404


@pytest.mark.parametrize("how", ["taken back", "expired", "wrong"])
async def test_a_link_that_does_not_work(here: Desk, how: str) -> None:
    admin = here.clients["ada"]
    token = (await admin.post("/api/people/invitations", json={})).json()["link"].rpartition("/")[2]
    newest = (await admin.get("/api/people")).json()["invitations"][0]["id"]
    if how == "taken back":
        assert (await admin.delete(f"/api/people/invitations/{newest}")).status_code == 204
    elif how == "expired":
        past = datetime.now(UTC) - timedelta(seconds=1)
        await here.services.database.write(
            lambda session: session.execute(
                sa.update(Invitation).where(Invitation.id == newest).values(expires_at=past)
            )
        )
    else:
        token += "x"
    async with here.client() as http:
        for path, body in (("look", {}), ("use", {"name": "late", "password": PASSWORD})):
            answer = await http.post(f"/api/links/{path}", json={"token": token, **body})
            assert answer.status_code == 404
            assert "link" in error_of(answer)["message"]
    assert await here.accounts.records.credentials("late") is None


async def test_a_reset_link_changes_the_password_and_signs_out(here: Desk) -> None:
    http = await here.add("lost", UserRole.AGENT)
    path = f"/api/people/{here.ids['lost']}/reset-link"
    first = (await here.clients["ada"].post(path)).json()["link"].rpartition("/")[2]
    second = (await here.clients["ada"].post(path)).json()["link"].rpartition("/")[2]
    async with here.client() as anywhere:
        assert (
            await anywhere.post("/api/links/look", json={"token": first})
        ).status_code == 404  # the later one counts
        looked = (await anywhere.post("/api/links/look", json={"token": second})).json()
        assert (looked["purpose"], looked["name"]) == ("reset", "lost")
        # It changes no name and no role, whatever else is sent.
        use = {"token": second, "password": OTHER, "name": "taken", "with_history": True}
        assert (await anywhere.post("/api/links/use", json=use)).status_code == 204
        assert (await anywhere.get("/api/account")).json()["name"] == "lost"
    assert (await http.get("/api/account")).status_code == 401
    assert AuditAction.PASSWORD_RESET in await actions(here, here.ids["lost"])


async def test_a_disabled_account_is_out_at_once_whatever_it_holds(here: Desk) -> None:
    http = await here.add("gone", UserRole.AGENT)
    key = (await http.post("/api/account/keys", json={"name": "tool"})).json()["key"]
    bearer = {"Authorization": f"Bearer {key}"}
    async with here.client() as program:
        assert (await program.get("/v1/models", headers=bearer)).status_code == 200
        path = f"/api/people/{here.ids['gone']}"
        token = (await here.clients["ada"].post(f"{path}/reset-link")).json()["link"].rpartition("/")[2]
        assert (await here.clients["ada"].patch(path, json={"disabled": True})).status_code == 204
        assert (await http.get("/api/account")).status_code == 401
        assert (await program.get("/v1/models", headers=bearer)).status_code == 401
        assert (await sign_in(http, "gone")).status_code == 401
        use = await program.post("/api/links/use", json={"token": token, "password": OTHER})
        assert use.status_code == 401
        assert not program.cookies
        assert (await here.clients["ada"].patch(path, json={"disabled": False})).status_code == 204
        assert (await sign_in(http, "gone", OTHER)).status_code == 204
        assert (await program.get("/v1/models", headers=bearer)).status_code == 200


async def test_a_role_holds_from_the_next_request_on(here: Desk) -> None:
    http = await here.add("step", UserRole.AGENT)
    path = f"/api/people/{here.ids['step']}"
    for role, status in (("viewer", 403), ("agent", 404), ("admin", 404)):
        assert (await here.clients["ada"].patch(path, json={"role": role})).status_code == 204
        assert (await http.delete("/api/conversations/none")).status_code == status
    assert (await http.get("/api/people")).status_code == 200
    assert (await actions(here, here.ids["step"])).count(AuditAction.ROLE_CHANGED) == 3
    await here.accounts.set_disabled(here.ids["step"], True, actor_id=None)


@pytest.mark.parametrize("change", [{"role": "agent"}, {"disabled": True}])
async def test_the_last_admin_stays(here: Desk, change: dict[str, Any]) -> None:
    admin = here.clients["ada"]
    path = f"/api/people/{here.ids['ada']}"
    refused = await admin.patch(path, json=change)
    assert refused.status_code == 409
    assert "last admin" in error_of(refused)["message"]
    assert (await admin.patch(f"/api/people/{LOCAL_USER_ID}", json=change)).status_code == 404


# ---- the first admin


@pytest.mark.parametrize("taken", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_the_first_admin_is_offered_what_was_said_before(tmp_path: Path, taken: bool) -> None:
    async with desk(tmp_path, gradio=False) as first:
        now = datetime.now(UTC)
        kept = Conversation(
            id="c1", user_id=LOCAL_USER_ID, title="Old words", settings={}, created_at=now, updated_at=now
        )
        await first.services.database.write(lambda session: session.add(kept))
        token = await first.accounts.setup_token()
        async with first.client() as http:
            looked = (await http.post("/api/links/look", json={"token": token})).json()
            assert (looked["purpose"], looked["role"], looked["local_conversations"]) == ("setup", "admin", 1)
            use = {"token": token, "name": "boss", "password": PASSWORD, "with_history": taken}
            assert (await http.post("/api/links/use", json=use)).status_code == 204
            listed = (await http.get("/api/conversations")).json()["items"]
            assert [item["title"] for item in listed] == ["Old words"] * taken
            assert (await http.get("/api/people")).json()["local_conversations"] == (0 if taken else 1)
            if not taken:
                assert (await http.post("/api/people/local-history")).json() == {"conversations": 1}
                assert len((await http.get("/api/conversations")).json()["items"]) == 1
            assert await first.accounts.setup_token() is None


@pytest.mark.full
async def test_two_setup_links_make_one_admin(tmp_path: Path) -> None:
    """As two servers print them that start at the same moment."""
    async with desk(tmp_path, gradio=False) as first, first.client() as http:
        tokens = [await first.accounts.setup_token() for _ in range(2)]
        uses = [
            http.post("/api/links/use", json={"token": token, "name": f"boss{number}", "password": PASSWORD})
            for number, token in enumerate(tokens)
        ]
        answers = await asyncio.gather(*uses)
        assert sorted(answer.status_code for answer in answers) == [204, 409]
        [admin] = await first.accounts.records.list()
        assert admin.role is UserRole.ADMIN


# ---- keys


async def test_a_key_opens_what_it_was_made_for_and_no_page(here: Desk) -> None:
    http = await here.add("maker", UserRole.AGENT)
    both = (await http.post("/api/account/keys", json={"name": "both", "days": None})).json()
    models = (await http.post("/api/account/keys", json={"name": "models", "scopes": ["models"]})).json()
    assert both["key"].startswith("dmk_")
    assert both["key"] not in str([one.token_hash for one in await rows(here, sa.select(ApiKey))])
    assert both["key"] not in (await http.get("/api/account/keys")).text
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    async with here.client() as program:
        for key, status in ((both, 200), (models, 403)):
            bearer = {"Authorization": f"Bearer {key['key']}"}
            assert (await program.get("/v1/models", headers=bearer)).status_code == 200
            answer = await program.post("/v1/chat/completions", json=chat, headers=bearer)
            assert answer.status_code == status
            for path in ("/api/account", "/api/conversations", "/", "/gradio_api/app_id", "/api/people"):
                assert (await program.get(path, headers=bearer)).status_code in (303, 401)
            assert (await program.get("/config", headers=bearer)).status_code == status
        for wrong in ("x", "", both["key"][:-1], both["key"] + "x", "é"):
            answer = await program.get("/v1/models", headers={b"Authorization": f"Bearer {wrong}".strip().encode()})
            assert answer.status_code == 401
            assert ("Incorrect API key" in error_of(answer)["message"]) == bool(wrong)
            assert error_of(answer)["code"] == "invalid_api_key"
        for headers, said in (({}, "Send an API key"), ({"Authorization": both["key"]}, "holds no Bearer key")):
            answer = await program.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert said in error_of(answer)["message"]
    # A key that is wrong is refused, whatever cookie comes along; with none, the cookie counts.
    assert (await http.get("/v1/models", headers={"Authorization": "Bearer wrong"})).status_code == 401
    assert (await http.get("/v1/models")).status_code == 200
    used = {key["name"]: key["last_used_at"] for key in (await http.get("/api/account/keys")).json()}
    assert set(used) == {"both", "models"}


async def test_a_key_is_its_owners_to_see_and_revoke(here: Desk) -> None:
    made = (await here.clients["ben"].post("/api/account/keys", json={"name": "mine"})).json()
    other = here.clients["ada"]
    assert (await other.get("/api/account/keys")).json() == []
    assert (await other.delete(f"/api/account/keys/{made['id']}")).status_code == 404
    bearer = {"Authorization": f"Bearer {made['key']}"}
    async with here.client() as program:
        assert (await program.get("/v1/models", headers=bearer)).status_code == 200
        assert (await here.clients["ben"].delete(f"/api/account/keys/{made['id']}")).status_code == 204
        assert (await program.get("/v1/models", headers=bearer)).status_code == 401


async def test_a_key_ends_and_a_viewers_key_writes_nothing(here: Desk) -> None:
    made = (await here.clients["cyd"].post("/api/account/keys", json={"name": "reads", "days": 1})).json()
    bearer = {"Authorization": f"Bearer {made['key']}"}
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    async with here.client() as program:
        assert (await program.get("/v1/models", headers=bearer)).status_code == 200
        assert (await program.post("/v1/chat/completions", json=chat, headers=bearer)).status_code == 403
        past = datetime.now(UTC) - timedelta(seconds=1)
        await here.services.database.write(
            lambda session: session.execute(sa.update(ApiKey).where(ApiKey.id == made["id"]).values(expires_at=past))
        )
        here.accounts.key_cache.invalidate()
        assert (await program.get("/v1/models", headers=bearer)).status_code == 401


async def test_metrics_want_their_token(here: Desk, tmp_path: Path) -> None:
    async with here.client() as http:
        assert "Send the value" in error_of(await http.get("/metrics"))["message"]
        refused = await http.get("/metrics", headers={"Authorization": "Bearer wrong"})
        assert refused.status_code == 401
        assert "is not the value of APP_METRICS_TOKEN" in error_of(refused)["message"]
        shown = await http.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        assert shown.status_code == 200
        assert "deskmate_http_requests" in shown.text
    assert (await here.clients["ada"].get("/metrics")).status_code == 401
    async with desk(tmp_path, gradio=False, metrics_token=None) as closed, closed.client() as http:
        for token in ("", "None", "x"):
            assert (await http.get("/metrics", headers={"Authorization": f"Bearer {token}".strip()})).status_code == 401


async def test_nothing_that_was_typed_is_in_the_audit(here: Desk) -> None:
    async with here.client() as http:
        await sign_in(http, "my password by mistake", "another secret")
    events = await rows(here, sa.select(AuditEvent))
    written = json.dumps([[one.actor_id, one.target, one.action, one.details] for one in events])
    for typed in ("my password", "secret", PASSWORD, OTHER):
        assert typed not in written
    assert {AuditAction.SIGNED_IN, AuditAction.SIGN_IN_FAILED} <= {one.action for one in events}


async def test_no_log_has_what_makes_a_link_one(here: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "app.http"), structlog.testing.capture_logs() as logged:
        async with here.client() as http:
            assert (await http.get("/invitation/the-token-itself")).status_code == 200
        await eventually(lambda: "/invitation/..." in str(logged))
    assert "the-token-itself" not in str(logged)


async def test_without_accounts_there_is_one_person_and_no_door(tmp_path: Path) -> None:
    async with desk(tmp_path, accounts=False, secret_key=None) as laptop, laptop.client() as http:
        assert (await http.get("/")).status_code == 200
        me = (await http.get("/api/account")).json()
        assert (me["accounts"], me["role"], me["name"]) == (False, "admin", None)
        answer = await sign_in(http, "ada")
        assert answer.status_code == 501
        assert "APP_ACCOUNTS" in error_of(answer)["message"]
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer whatever"})).status_code == 200
