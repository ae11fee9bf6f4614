"""The guard's doors for visitors: who may embed what, and that a visitor's token opens nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.auth.guard import Guard
from app.auth.headers import SecurityHeaders, frame_ancestors
from app.auth.identity import LocalUser
from app.auth.policy import RULES, Access
from app.auth.visitors import VisitorIdentity, site_of, visitor_of

OWN = "http://127.0.0.1:7860"
SHOP = "https://shop.example"
TOKEN = "dmv_right"
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
SCRIPT = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Says who the visitor is, and names an origin that may frame it, whatever the route."""
    named = scope.get("state", {}).get("visitor")
    visitor = visitor_of(Request(scope)).contact_id if named else None
    await JSONResponse({"visitor": visitor}, headers=frame_ancestors([SHOP]))(scope, receive, send)


async def find(token: str) -> VisitorIdentity | None:
    return VisitorIdentity("contact", "inbox", "hash") if token == TOKEN else None


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = SecurityHeaders(Guard(answers, authenticator=LocalUser("me"), find_visitor=find))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=OWN) as http:
        yield http


def gets() -> list[str]:
    """A path for each rule that answers a GET."""
    return [re.sub(r"\{[^}]*\}", "x1", rule.path) for rule in RULES if "GET" in rule.methods]


async def test_two_addresses_can_be_embedded_and_no_other(client: httpx.AsyncClient) -> None:
    framed, loaded = set(), set()
    for path in gets():
        frame, script = await client.get(path, headers=FRAME), await client.get(path, headers=SCRIPT)
        framed |= {path} if frame.status_code == 200 else set()
        loaded |= {path} if script.status_code == 200 else set()
        mine = await client.get(path)
        if path.startswith("/widget/"):
            assert f"frame-ancestors {SHOP};" in mine.headers["content-security-policy"] + ";"
            assert "x-frame-options" not in mine.headers
            assert mine.headers["cross-origin-resource-policy"] == "cross-origin"
        else:
            assert "frame-ancestors 'none'" in mine.headers["content-security-policy"]
            assert mine.headers["x-frame-options"] == "DENY"
        assert "x-frame-ancestors" not in mine.headers
    assert framed == loaded == {"/widget/x1", "/widget/x1.js"}


async def test_an_embedded_page_is_only_read(client: httpx.AsyncClient) -> None:
    assert (await client.get("/widget/x1", headers=LINK)).status_code == 200
    for headers in (FRAME, SCRIPT, LINK):
        for path in ("/api/widget/x1/sessions", "/api/widget/messages"):
            refused = await client.post(path, json={}, headers=headers | {"Authorization": f"Bearer {TOKEN}"})
            assert refused.status_code == 403
    fetched = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    assert (await client.get("/widget/x1", headers=fetched)).status_code == 403


async def test_a_page_without_origins_is_framed_nowhere() -> None:
    async def none(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({}, headers=frame_ancestors([]))(scope, receive, send)

    transport = httpx.ASGITransport(app=SecurityHeaders(Guard(none, authenticator=LocalUser("me"))))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as http:
        assert "frame-ancestors 'none'" in (await http.get("/widget/x1")).headers["content-security-policy"]


async def test_visitors_routes_take_the_token_and_nothing_else(client: httpx.AsyncClient) -> None:
    rules = [rule for rule in RULES if rule.access is Access.VISITOR]
    assert rules
    for rule in rules:
        path = re.sub(r"\{[^}]*\}", "x1", rule.path)
        for method in rule.methods:
            right = await client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
            if not rule.upload:
                assert (right.status_code, right.json()) == (200, {"visitor": "contact"})
            for wrong in ({}, {"Authorization": "Bearer dmv_wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                refused = await client.request(method, path, headers=wrong)
                assert refused.status_code == 401
                assert refused.json()["error"]["code"] == "unknown_visitor"


async def test_without_accounts_there_are_no_visitors() -> None:
    transport = httpx.ASGITransport(app=Guard(answers, authenticator=LocalUser("me")))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as http:
        refused = await http.get("/api/widget/transcript", headers={"Authorization": f"Bearer {TOKEN}"})
    assert refused.status_code == 404
    assert "APP_ACCOUNTS" in refused.json()["error"]["message"]


def test_an_ipv6_client_is_its_network() -> None:
    assert site_of("2001:db8:1:2:3:4:5:6") == site_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert site_of("2001:db8:1:3::1") != site_of("2001:db8:1:2::1")
    assert site_of("::ffff:192.0.2.1") == site_of("192.0.2.1") == "192.0.2.1"
    assert site_of("unknown") == "unknown"
