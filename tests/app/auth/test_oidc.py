"""Signing in with a provider: what it proves, what it does not, and what becomes of accounts and roles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from fastapi import Response

from app.auth import rate_limits
from app.auth.oidc import provider_client
from app.auth.oidc.provider_client import Fetched
from app.auth.oidc.service import OidcSignIn, page_within
from app.auth.rate_limits import RateLimit
from app.domain.roles import UserRole
from app.store.db.models import Account, AuditEvent
from app.store.db.sign_in_models import ExternalIdentity, LoginSession
from tests.app.auth.scripted_provider import CLIENT_ID, CLIENT_SECRET, FORGED, ScriptedProvider, scripted_provider
from tests.app.desk import PASSWORD, Desk, desk, sign_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

START, CALLBACK = "/api/account/oidc/start", "/api/account/oidc/callback"
ROLES = "chiefs=admin, staff=agent, readers=viewer"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted() -> AsyncIterator[ScriptedProvider]:
    async with scripted_provider() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(scripted: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    settings = {
        "oidc_issuer": scripted.url,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_roles": ROLES,
        "oidc_name": "Acme",
    }
    async with desk(tmp_path_factory.mktemp("data"), gradio=False, **settings) as running:
        await running.add("ada", UserRole.ADMIN)
        yield running


@pytest.fixture
def provider(scripted: ScriptedProvider) -> ScriptedProvider:
    scripted.reset()
    return scripted


@pytest.fixture
def here(opened: Desk) -> Desk:
    forget(opened)
    opened.accounts._rate_limiter = rate_limits.RateLimiter()
    oidc_of(opened)._rate_limiter = rate_limits.RateLimiter()
    return opened


def oidc_of(here: Desk) -> OidcSignIn:
    oidc = here.services.oidc
    assert oidc is not None
    return oidc


def forget(here: Desk) -> None:
    """The provider's endpoints and keys are read again, as after a start."""
    client = oidc_of(here).client
    client._provider = Fetched(client._discover, time.monotonic)
    client._keys = Fetched(client._read_keys, time.monotonic)


async def begin(http: httpx.AsyncClient, next: str = "/") -> str:
    """Starts a sign-in; returns the provider's address."""
    answer = await http.get(START, params={"next": next})
    assert answer.status_code == 303
    return answer.headers["location"]


async def come_in(http: httpx.AsyncClient, provider: ScriptedProvider, subject: str, **claims: Any) -> str:
    """Signs in; returns where that leads to."""
    return await come_back(http, provider.answer(await begin(http), subject, **{"groups": ["staff"], **claims}))


async def come_back(http: httpx.AsyncClient, query: Mapping[str, str]) -> str:
    answer = await http.get(CALLBACK, params=dict(query))
    assert answer.status_code == 303, answer.text
    assert answer.headers["cache-control"] == "no-store"
    location: str = answer.headers["location"]
    return location


def problem_in(location: str) -> str | None:
    return dict(parse_qsl(urlsplit(location).query)).get("problem")


async def me(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/api/account")
    return answer.json() if answer.status_code == 200 else {}


async def rows(here: Desk, statement: Any) -> list[Any]:
    return await here.services.database.read(lambda session: list(session.scalars(statement)))


# ---- coming in


async def test_a_new_user_gets_an_account_with_the_role_of_their_groups(here: Desk, provider: ScriptedProvider) -> None:
    async with here.client() as http:
        address = await begin(http, "/account?x=1")
        query = dict(parse_qsl(urlsplit(address).query))
        assert urlsplit(address).path == "/authorize"
        assert query["scope"] == "openid profile email"
        assert query["redirect_uri"] == f"{here.live.url}{CALLBACK}"
        claims = {"groups": ["staff", "readers", "x"], "name": "Eve\nAdams", "preferred_username": "Eve"}
        assert await come_back(http, provider.answer(address, "s-eve", **claims)) == "/account?x=1"
        seen = await me(http)
        assert (seen["name"], seen["display_name"], seen["role"]) == ("eve", "Eve Adams", "agent")
        assert "deskmate_oidc" not in http.cookies
        assert (await http.get("/api/account/oidc")).json() == {
            "provider": "Acme",
            "connected_as": "Eve",
            "has_password": False,
        }
    async with here.client() as http:  # the same user again, under another name: found by the subject alone
        assert await come_in(http, provider, "s-eve", preferred_username="eva", groups=["chiefs"]) == "/"
        again = await me(http)
        assert (again["id"], again["name"], again["role"]) == (seen["id"], "eve", "admin")
        changes = sa.select(AuditEvent.details).where(
            AuditEvent.target == seen["id"], AuditEvent.action == "role_changed"
        )
        assert await rows(here, changes) == [{"before": "agent", "role": "admin", "by": "provider"}]
        await come_in(http, provider, "s-eve", groups=["readers"])
        assert (await me(http))["role"] == "viewer"


async def test_the_browsers_part_is_sealed_and_the_providers_token_is_nowhere(
    here: Desk, provider: ScriptedProvider, caplog: pytest.LogCaptureFixture
) -> None:
    tokens: list[str] = []
    forge = provider.forge
    provider.forge = lambda *given: tokens.append(forge(*given)) or tokens[-1]
    async with here.client() as http:
        answer = await http.get(START)
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Max-Age=600" in cookie
        query = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
        assert query["nonce"] not in cookie
        await come_back(http, provider.answer(answer.headers["location"], "s-sealed", groups=["staff"]))
        stored = (await rows(here, sa.select(LoginSession.id_token).where(LoginSession.id_token.is_not(None))))[-1]
        assert tokens[0].split(".")[1] not in stored
        assert tokens[0] not in caplog.text


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": None, "email": "Ola@Example.com"}, "ola@example.com"),
        ({"preferred_username": "two words", "email": "ole@example.com", "email_verified": True}, "ole@example.com"),
        ({"preferred_username": "local", "email": "boss@example.com", "email_verified": False}, None),
        ({"preferred_username": 7, "email": ["x"]}, None),
    ],
)
async def test_a_name_is_the_providers_if_it_is_one(
    here: Desk, provider: ScriptedProvider, claims: dict[str, Any], name: str | None
) -> None:
    async with here.client() as http:
        assert await come_in(http, provider, f"named {claims}", **claims) == "/"
        found = (await me(http))["name"]
        assert found == name if name is not None else found.startswith("user-")


# ---- what proves nothing


@pytest.mark.parametrize("kind", FORGED)
async def test_a_forged_token_opens_nothing(here: Desk, provider: ScriptedProvider, kind: str) -> None:
    provider.forge = FORGED[kind]
    await opens_nothing(here, provider, {})


NOW = int(time.time())


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": ["x"]},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": []},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"azp": "another"},
        {"exp": NOW - 3600},
        {"exp": None},
        {"exp": True},
        {"exp": "tomorrow"},
        {"iat": NOW + 36000},
        {"iat": None},
        {"nbf": NOW + 36000},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
    ],
)
async def test_a_token_for_another_or_from_another_time_opens_nothing(
    here: Desk, provider: ScriptedProvider, claims: dict[str, Any]
) -> None:
    await opens_nothing(here, provider, claims)


async def opens_nothing(here: Desk, provider: ScriptedProvider, claims: dict[str, Any]) -> None:
    before = await rows(here, sa.select(Account.id))
    async with here.client() as http:
        location = await come_in(http, provider, "s-forger", **claims)
        assert location == "/sign-in?problem=invalid"
        assert await me(http) == {}
        assert "deskmate_session" not in http.cookies
    assert await rows(here, sa.select(Account.id)) == before


async def test_clocks_may_be_a_minute_apart(here: Desk, provider: ScriptedProvider) -> None:
    now = int(time.time())
    async with here.client() as http:
        assert await come_in(http, provider, "s-late", iat=now + 30, nbf=now + 30, exp=now - 30) == "/"
        assert problem_in(await come_in(http, provider, "s-late", exp=now - 90)) == "invalid"


async def test_an_answer_belongs_to_the_browser_that_asked_and_is_good_once(
    here: Desk, provider: ScriptedProvider
) -> None:
    async with here.client() as http, here.client() as other:
        mine = provider.answer(await begin(http), "s-once", groups=["staff"])
        assert problem_in(await come_back(other, mine)) == "expired"  # no cookie
        await begin(other)
        assert problem_in(await come_back(other, mine)) == "expired"  # that of another sign-in
        assert await me(other) == {}
        cookie = http.cookies["deskmate_oidc"]
        assert await come_back(http, mine) == "/"
        assert problem_in(await come_back(http, mine)) == "expired"  # the cookie is gone
        http.cookies.set("deskmate_oidc", cookie, domain="127.0.0.1", path="/")
        assert problem_in(await come_back(http, mine)) == "invalid"  # and the code is used
        http.cookies.set("deskmate_oidc", cookie[:-4] + "AAAA", domain="127.0.0.1", path="/")
        assert problem_in(await come_back(http, mine)) == "expired"


async def test_a_sign_in_that_takes_too_long_is_begun_again(
    here: Desk, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.auth.oidc.pending.PENDING_SECONDS", -1)
    async with here.client() as http:
        answer = await http.get(START)
        sealed = answer.headers["set-cookie"].split("=", 1)[1].split(";")[0]
        http.cookies.set("deskmate_oidc", sealed, domain="127.0.0.1", path="/")
        back = provider.answer(answer.headers["location"], "s-slow", groups=["staff"])
        assert problem_in(await come_back(http, back)) == "expired"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"iss": "https://other.example"}, "invalid"),
        ({"iss": None}, "invalid"),
        ({"error": "access_denied"}, "denied"),
        ({"error": "<script>alert(1)</script>"}, "denied"),
        ({"error": "server_error"}, "unavailable"),
        ({"code": None}, "invalid"),
        ({"code": "made up"}, "invalid"),
        ({"state": "made up", "error": "access_denied"}, "expired"),
        ({"state": "é"}, "expired"),
    ],
)
async def test_a_redirect_that_is_wrong_leads_back_to_the_sign_in_page(
    here: Desk, provider: ScriptedProvider, changes: dict[str, str | None], problem: str
) -> None:
    async with here.client() as http:
        back = provider.answer(await begin(http, "/desk"), "s-wrong", groups=["staff"]) | changes
        location = await come_back(http, {name: value for name, value in back.items() if value is not None})
        assert problem_in(location) == problem
        assert "script" not in location
        if problem != "expired":
            assert dict(parse_qsl(urlsplit(location).query))["next"] == "/desk"


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/api/account",
        "/nothing",
        "/\n/x",
        "desk",
        "",
        "/é",
        "/api/account/oidc/callback",
    ],
)
async def test_no_other_place_is_opened_afterwards(path: str) -> None:
    assert page_within(path) == "/"


async def test_pages_are_opened_afterwards() -> None:
    for path in ("/", "/desk#usage", "/?c=1", "/account?connected"):
        assert page_within(path) == path


async def test_floods_are_refused(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.auth.oidc.service.OIDC_BY_ADDRESS", (RateLimit(2, 60, "o"),))
    async with here.client() as http:
        for _ in range(2):
            await begin(http)
        assert problem_in(await begin(http)) == "too_many"
        assert problem_in(await come_back(http, {})) == "too_many"
        assert (await sign_in(http, "ada")).status_code == 204


# ---- groups, roles, accounts


async def test_without_a_mapped_group_there_is_no_way_in_and_no_account(here: Desk, provider: ScriptedProvider) -> None:
    provider.user_info = {"sub": "s-nogroup"}
    async with here.client() as http:
        for groups in ([], ["x"], "x", {"staff": 1}, [["staff"]], None):
            assert problem_in(await come_in(http, provider, "s-nogroup", groups=groups)) == "no_role"
    assert await rows(here, sa.select(ExternalIdentity).where(ExternalIdentity.subject == "s-nogroup")) == []


async def test_a_user_who_lost_their_groups_is_signed_out_elsewhere_too(here: Desk, provider: ScriptedProvider) -> None:
    async with here.client() as http, here.client() as other:
        await come_in(http, provider, "s-left")
        assert (await me(http))["role"] == "agent"
        assert problem_in(await come_in(other, provider, "s-left", groups=["x"])) == "no_role"
        assert await me(http) == {}


async def test_groups_may_be_told_apart_from_the_token(here: Desk, provider: ScriptedProvider) -> None:
    provider.user_info = {"sub": "s-apart", "groups": ["readers"], "exp": 1, "iss": "x"}
    async with here.client() as http:
        assert await come_in(http, provider, "s-apart", groups=None) == "/"
        assert (await me(http))["role"] == "viewer"
        provider.user_info["sub"] = "s-another"
        assert problem_in(await come_in(http, provider, "s-apart", groups=None)) == "invalid"


async def test_a_disabled_account_stays_out(here: Desk, provider: ScriptedProvider) -> None:
    async with here.client() as http:
        await come_in(http, provider, "s-shut")
        user_id = (await me(http))["id"]
        await here.accounts.set_disabled(user_id, True, actor_id=None)
        assert await me(http) == {}
        assert problem_in(await come_in(http, provider, "s-shut", groups=["chiefs"])) == "disabled"
        assert await me(http) == {}


async def test_the_last_admin_stays_one_whatever_the_groups_say(here: Desk, provider: ScriptedProvider) -> None:
    async with here.client() as http:
        await come_in(http, provider, "s-chief", groups=["chiefs"])
        chief = (await me(http))["id"]
        others = [
            one.id for one in await here.accounts.records.list() if one.role is UserRole.ADMIN and one.id != chief
        ]
        for other in others:
            await here.accounts.set_disabled(other, True, actor_id=None)
        try:
            assert await come_in(http, provider, "s-chief", groups=["staff"]) == "/"
            assert (await me(http))["role"] == "admin"
        finally:
            for other in others:
                await here.accounts.set_disabled(other, False, actor_id=None)
        await come_in(http, provider, "s-chief", groups=["staff"])
        assert (await me(http))["role"] == "agent"


async def test_a_session_ends_some_time_after_the_sign_in_however_much_it_is_used(
    here: Desk, provider: ScriptedProvider
) -> None:
    async with here.client() as http:
        await come_in(http, provider, "s-day")
        user_id = (await me(http))["id"]
        (session,) = await rows(here, sa.select(LoginSession).where(LoginSession.user_id == user_id))
        assert session.expires_at == session.ends_at
        await here.accounts.sessions.touch(session.id, user_id)
        (after,) = await rows(here, sa.select(LoginSession).where(LoginSession.user_id == user_id))
        assert after.expires_at == session.ends_at
        assert after.last_seen_at > session.last_seen_at


# ---- connecting an account


async def connect(http: httpx.AsyncClient, provider: ScriptedProvider, subject: str, **claims: Any) -> str:
    answer = await http.post("/api/account/oidc", json={"password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return await come_back(http, provider.answer(answer.json()["address"], subject, **claims))


async def test_an_account_with_a_password_is_connected_by_its_owner_alone(
    here: Desk, provider: ScriptedProvider
) -> None:
    owner = await here.add("fay", UserRole.AGENT)
    fay = here.ids["fay"]
    async with here.client() as http:
        named = {"preferred_username": "fay", "email": "fay@example.com", "email_verified": True}
        assert problem_in(await come_in(http, provider, "s-fay", **named)) == "name_taken"
        wrong = await owner.post("/api/account/oidc", json={"password": "another one here"})
        assert wrong.status_code == 422
        assert (await http.post("/api/account/oidc", json={"password": PASSWORD})).status_code == 401
        assert await connect(owner, provider, "s-fay") == "/account?connected"
        assert (await owner.get("/api/account/oidc")).json()["connected_as"] == "s-fay"
        assert (await me(owner))["role"] == "agent"  # connecting is not signing in: no group is asked for
        assert await come_in(http, provider, "s-fay", groups=["readers"]) == "/"
        assert ((await me(http))["id"], (await me(http))["role"]) == (fay, "viewer")
        assert (await owner.post("/api/account/oidc", json={"password": PASSWORD})).status_code == 409
        other = await here.add("gil", UserRole.AGENT)
        assert await connect(other, provider, "s-fay") == "/account?problem=connected_elsewhere"
        assert (await owner.delete("/api/account/oidc")).status_code == 204
        assert await me(http) == {}
        assert (await owner.delete("/api/account/oidc")).status_code == 404
        assert problem_in(await come_in(http, provider, "s-fay", **named)) == "name_taken"


async def test_a_connection_is_finished_by_the_session_that_began_it(here: Desk, provider: ScriptedProvider) -> None:
    owner = await here.add("hal", UserRole.AGENT)
    answer = await owner.post("/api/account/oidc", json={"password": PASSWORD})
    back = provider.answer(answer.json()["address"], "s-hal")
    other = await here.signed_in("ada")
    owner.cookies.set("deskmate_session", other.cookies["deskmate_session"], domain="127.0.0.1", path="/")
    assert await come_back(owner, back) == "/account?problem=expired"
    assert await rows(here, sa.select(ExternalIdentity).where(ExternalIdentity.subject == "s-hal")) == []


async def test_an_account_without_a_password_cannot_lose_its_only_way_in(
    here: Desk, provider: ScriptedProvider
) -> None:
    async with here.client() as http:
        await come_in(http, provider, "s-only")
        refused = await http.delete("/api/account/oidc")
        assert refused.status_code == 409
        assert "password" in refused.json()["error"]["message"]
        assert (await http.get("/api/account/oidc")).json()["connected_as"] == "s-only"
        assert (await sign_in(http, "s-only", "")).status_code == 401


# ---- going out


async def test_an_admin_links_a_providers_user_to_an_account_and_unlinks_them(
    here: Desk, provider: ScriptedProvider
) -> None:
    ada = await here.signed_in("ada")
    await here.add("lin", UserRole.AGENT)
    at = f"/api/people/{here.ids['lin']}/identity"
    assert (await ada.get(at)).json() == {"provider": "Acme", "identity": None}
    async with here.client() as http:  # without the link, the provider's user may not take the account's name
        assert problem_in(await come_in(http, provider, "s-lin", preferred_username="lin")) == "name_taken"
    for _ in range(2):  # twice is as good as once
        assert (await ada.put(at, json={"subject": " s-lin "})).status_code == 204
    linked = (await ada.get(at)).json()["identity"]
    assert (linked["subject"], linked["label"]) == ("s-lin", "s-lin")
    async with here.client() as http:
        assert await come_in(http, provider, "s-lin", preferred_username="lin.at.acme") == "/"
        assert (await me(http))["id"] == here.ids["lin"]
        assert (await ada.get(at)).json()["identity"]["label"] == "lin.at.acme"
        assert (await ada.delete(at)).status_code == 204
        assert await me(http) == {}  # the session that began there has ended
        assert problem_in(await come_in(http, provider, "s-lin", preferred_username="lin")) == "name_taken"
    assert (await ada.delete(at)).status_code == 404
    logged = sa.select(AuditEvent).where(AuditEvent.target == here.ids["lin"]).order_by(AuditEvent.id)
    entries = [one for one in await rows(here, logged) if one.action.startswith("identity_")]
    assert [(one.action, one.actor_id) for one in entries] == [
        ("identity_connected", here.ids["ada"]),
        ("identity_disconnected", here.ids["ada"]),
    ]


async def test_an_admin_links_no_identity_twice_and_takes_no_only_way_in(
    here: Desk, provider: ScriptedProvider
) -> None:
    ada = await here.signed_in("ada")
    await here.add("mel", UserRole.AGENT)
    async with here.client() as http:
        assert await come_in(http, provider, "s-nia", preferred_username="nia") == "/"
        nia = (await me(http))["id"]
        refused = await ada.put(f"/api/people/{here.ids['mel']}/identity", json={"subject": "s-nia"})
        assert refused.status_code == 409
        other = await ada.put(f"/api/people/{nia}/identity", json={"subject": "s-nia-2"})
        assert other.status_code == 409
        refused = await ada.delete(f"/api/people/{nia}/identity")
        assert refused.status_code == 409
        assert "Give them a reset link" in refused.text
        assert (await me(http))["id"] == nia
    for subject in ("", " ", "a\nb", "ü", "x" * 256):
        answer = await ada.put(f"/api/people/{here.ids['mel']}/identity", json={"subject": subject})
        assert answer.status_code == 422, subject
    assert (await ada.put("/api/people/nobody/identity", json={"subject": "s"})).status_code == 404


@pytest.mark.parametrize("role", [UserRole.AGENT, UserRole.VIEWER])
async def test_only_admins_see_and_link_identities_their_own_too(here: Desk, role: UserRole) -> None:
    name = f"role-{role}"
    http = await here.add(name, role)
    for user_id in (here.ids["ada"], here.ids[name]):
        at = f"/api/people/{user_id}/identity"
        answers = [await http.get(at), await http.put(at, json={"subject": "s-own"}), await http.delete(at)]
        assert [answer.status_code for answer in answers] == [403, 403, 403]
    async with here.client() as stranger:
        assert (await stranger.get(f"/api/people/{here.ids[name]}/identity")).status_code == 401


async def test_signing_out_ends_the_session_there_too(here: Desk, provider: ScriptedProvider) -> None:
    for path in ("sign-out", "sign-out-everywhere"):
        async with here.client() as http:
            await come_in(http, provider, "s-out")
            answer = await http.post(f"/api/account/{path}", json={})
            address = urlsplit(answer.json()["sign_out_at"])
            query = dict(parse_qsl(address.query))
            assert address.path == "/end"
            assert query["post_logout_redirect_uri"] == f"{here.live.url}/sign-in"
            assert query["id_token_hint"].count(".") == 2
            assert await me(http) == {}
    provider.discovery["end_session_endpoint"] = None
    forget(here)
    async with here.client() as http:
        await come_in(http, provider, "s-out")
        assert (await http.post("/api/account/sign-out", json={})).status_code == 204
    ada = await here.signed_in("ada")
    assert (await ada.post("/api/account/sign-out", json={})).status_code == 204


# ---- a provider in trouble

WELL_KNOWN = ".well-known/openid-configuration"
GARBAGE = {
    "a page": Response("<html>", media_type="text/html"),
    "a list": Response("[]", media_type="application/json"),
    "deep": Response("[" * 100_000, media_type="application/json"),
    "an error": Response(status_code=500),
    "a redirect": Response(status_code=302, headers={"location": "http://127.0.0.1:1/"}),
    "too much": Response(b'{"x": "' + b"x" * 2_000_000 + b'"}', media_type="application/json"),
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("path", [WELL_KNOWN, "keys", "token"])
async def test_garbage_is_a_sentence_and_passwords_go_on(
    here: Desk, provider: ScriptedProvider, path: str, kind: str
) -> None:
    provider.broken[path] = GARBAGE[kind]
    async with here.client() as http:
        if path == WELL_KNOWN:
            assert problem_in(await begin(http)) == "unavailable"
        else:
            assert problem_in(await come_in(http, provider, "s-garbage")) == "unavailable"
        assert (await sign_in(http, "ada")).status_code == 204


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://other.example"},
        {"token_endpoint": None},
        {"jwks_uri": "http://keys.example/"},
        {"jwks_uri": 7},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"id_token_signing_alg_values_supported": ["HS256", "none"]},
        {"id_token_signing_alg_values_supported": "RS256"},
    ],
)
async def test_a_provider_that_cannot_be_trusted_is_not_used(
    here: Desk, provider: ScriptedProvider, changes: dict[str, Any]
) -> None:
    provider.discovery.update(changes)
    async with here.client() as http:
        assert problem_in(await begin(http)) == "unavailable"


async def test_the_documents_other_hosts_must_be_public_or_allowed(here: Desk, provider: ScriptedProvider) -> None:
    provider.discovery["token_endpoint"] = provider.url.replace("127.0.0.1", "localhost") + "/token"
    async with here.client() as http:
        provider.requests.clear()
        assert problem_in(await come_in(http, provider, "s-inside")) == "unavailable"
        assert "token" not in provider.requests


async def test_a_slow_provider_is_not_waited_for(
    here: Desk, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    provider.broken[WELL_KNOWN] = gate
    monkeypatch.setattr(oidc_of(here).client, "_timeout_s", 0.05)
    async with here.client() as http:
        provider.requests.clear()
        answers = await asyncio.gather(*(begin(http) for _ in range(5)))
        assert {problem_in(answer) for answer in answers} == {"unavailable"}
        assert provider.requests.count(WELL_KNOWN) == 1  # asked once for all of them
        assert (await sign_in(http, "ada")).status_code == 204
    gate.set()


async def test_a_provider_that_was_there_is_used_while_its_document_cannot_be_read(
    here: Desk, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.client() as http:
        await begin(http)
        client = oidc_of(here).client
        client._provider._read_at -= provider_client.FRESH_SECONDS + 1
        provider.broken[WELL_KNOWN] = GARBAGE["an error"]
        assert problem_in(await begin(http)) is None


async def test_new_keys_are_read_when_a_token_names_one(
    here: Desk, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.client() as http:
        assert await come_in(http, provider, "s-keys") == "/"
        provider.rotate()
        provider.requests.clear()
        assert problem_in(await come_in(http, provider, "s-keys")) == "invalid"
        assert "keys" not in provider.requests  # a flood of unknown keys is not passed on
        oidc_of(here).client._keys._read_at -= provider_client.MIN_KEYS_SECONDS + 1
        assert await come_in(http, provider, "s-keys") == "/"
        assert provider.requests.count("keys") == 1


async def test_without_a_provider_nothing_is_offered(tmp_path_factory: pytest.TempPathFactory, here: Desk) -> None:
    assert (await here.client().get("/api/account/sign-in")).json() == {"provider": "Acme"}
    async with desk(tmp_path_factory.mktemp("data"), gradio=False) as plain:
        user = await plain.add("ada", UserRole.AGENT)
        assert (await user.get("/api/account/sign-in")).json() == {"provider": None}
        assert (await user.get("/api/account/oidc")).json()["provider"] is None
        for method, path in (("GET", START), ("GET", CALLBACK), ("POST", "/api/account/oidc")):
            answer = await user.request(method, path, json={} if method == "POST" else None)
            assert answer.status_code == 404, answer.text


async def test_another_website_starts_no_sign_in(here: Desk) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with here.client() as http:
        assert (await http.get(START, headers=foreign)).status_code == 403
        assert problem_in((await http.get(CALLBACK, headers=foreign)).headers["location"]) == "expired"
