"""The widget's two addresses: which websites may show the chat, and what is told of an inbox that does not exist."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from app.auth.headers import SecurityHeaders
from app.errors import NotFound
from app.ui.widget.pages import install_widget, loader_script


@dataclass
class _Inbox:
    allowed_origins: list[str]


INBOXES = {"shop": _Inbox(["https://shop.example", "https://www.shop.example"]), "new": _Inbox([])}


@pytest.fixture
def client() -> httpx.AsyncClient:
    app = FastAPI()
    app.add_middleware(SecurityHeaders)

    async def find_inbox(token: str) -> _Inbox | None:
        return INBOXES.get(token)

    install_widget(app, find_inbox)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://desk.example")


async def test_the_chat_is_shown_by_the_inboxs_websites_alone(client: httpx.AsyncClient) -> None:
    shown = await client.get("/widget/shop")
    assert shown.status_code == 200
    policy = shown.headers["content-security-policy"]
    assert "frame-ancestors https://shop.example https://www.shop.example" in policy
    assert "x-frame-options" not in shown.headers
    assert 'name="deskmate-origins" content="https://shop.example https://www.shop.example"' in shown.text


async def test_an_inbox_without_websites_is_shown_by_none(client: httpx.AsyncClient) -> None:
    shown = await client.get("/widget/new")
    assert "frame-ancestors 'none'" in shown.headers["content-security-policy"]


async def test_the_script_is_loaded_by_websites(client: httpx.AsyncClient) -> None:
    loaded = await client.get("/widget/shop.js")
    assert loaded.text == loader_script()
    assert loaded.headers["content-type"] == "text/javascript; charset=utf-8"
    assert loaded.headers["cross-origin-resource-policy"] == "cross-origin"
    assert loaded.headers["cache-control"] == "public, max-age=300"


async def test_an_unknown_inbox_has_neither(client: httpx.AsyncClient) -> None:
    for path in ("/widget/unknown", "/widget/unknown.js"):
        with pytest.raises(NotFound, match="Check the address of the script"):
            await client.get(path)
