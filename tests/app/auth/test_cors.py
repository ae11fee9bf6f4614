"""``APP_CORS_ORIGINS``: pages of listed origins may call ``/v1``; nothing else opens, and no cookie counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.cli.flags import read_settings
from app.domain.roles import UserRole
from app.errors import StartupError
from app.settings import AppSettings
from tests.app.desk import Desk, desk
from tests.app.live_server import RunningApp, live_server, reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

LISTED = "https://app.example.com"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
PATHS = ["/v1/models", "/v1/chat/completions", "/v1/completions"]


def from_page(origin: str, site: str = "cross-site") -> dict[str, str]:
    return {"Origin": origin, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}


def asking(origin: str, method: str = "POST", headers: str = "authorization, content-type") -> dict[str, str]:
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return {**from_page(origin), **asked}


def cors_of(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    origins = f"{LISTED}, http://localhost:3000"
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False, cors_origins=origins) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


@pytest.mark.parametrize("origin", [LISTED, "http://localhost:3000"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_listed_page_may_ask_and_read(live: RunningApp, origin: str, site: str) -> None:
    answer = await live.http.post("/v1/chat/completions", json=BODY, headers=from_page(origin, site))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    assert "origin" in answer.headers["vary"].lower()
    assert "access-control-allow-credentials" not in answer.headers
    refused = await live.http.post("/v1/chat/completions", json=BODY | {"n": 99}, headers=from_page(origin, site))
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, origin)


async def test_its_preflight_is_answered(live: RunningApp) -> None:
    headers = "authorization,content-type,x-stainless-os,x-stainless-lang"
    for path in PATHS:
        answer = await live.http.options(path, headers=asking(LISTED, headers=headers))
        assert answer.status_code == 204
        assert cors_of(answer) == {
            "access-control-allow-origin": LISTED,
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": headers,
            "access-control-max-age": "600",
            "access-control-expose-headers": "Retry-After, X-Ignored-Fields, X-Request-Id",
        }
    odd = await live.http.options("/v1/models", headers=asking(LISTED, headers="a b; c, x" * 500))
    assert odd.headers["access-control-allow-headers"] == "Authorization, Content-Type"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com.evil.example",
        "https://xapp.example.com",
        "https://APP.example.com",
        "null",
        "*",
        "",
    ],
)
async def test_any_other_page_is_refused_and_reads_nothing(live: RunningApp, origin: str) -> None:
    for path in PATHS:
        for answer in (
            await live.http.post(path, json=BODY, headers=from_page(origin)),
            await live.http.get(path, headers=from_page(origin)),
            await live.http.options(path, headers=asking(origin)),
        ):
            assert answer.status_code == 403
            assert cors_of(answer) == {}
    assert live.engine.calls == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/conversations"),
        ("POST", "/api/turns"),
        ("GET", "/config"),
        ("POST", "/gradio_api/queue/join"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
        ("GET", "/v1"),
        ("GET", "/v1x/models"),
    ],
)
async def test_nothing_but_v1_opens_to_a_listed_page(live: RunningApp, method: str, path: str) -> None:
    for answer in (
        await live.http.request(method, path, headers=from_page(LISTED)),
        await live.http.options(path, headers=asking(LISTED, method)),
    ):
        assert answer.status_code == 403
        assert cors_of(answer) == {}


async def test_the_host_is_checked_first(live: RunningApp) -> None:
    headers = {**asking(LISTED), "Host": "evil.example"}
    assert (await live.http.options("/v1/models", headers=headers)).status_code == 421


async def test_off_by_default(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with live_server(tmp_path_factory.mktemp("closed"), gradio=False) as closed:
        for answer in (
            await closed.http.post("/v1/chat/completions", json=BODY, headers=from_page(LISTED)),
            await closed.http.options("/v1/models", headers=asking(LISTED)),
        ):
            assert answer.status_code == 403
            assert cors_of(answer) == {}
            assert "vary" not in answer.headers


async def test_a_cookie_that_comes_along_opens_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With accounts: a listed page acts by an API key that it was given, never as the person at the browser."""
    here: Desk
    async with desk(tmp_path_factory.mktemp("desk"), gradio=False, cors_origins=LISTED) as here:
        http = await here.add("ann", UserRole.ADMIN)
        assert (await http.get("/v1/models")).status_code == 200
        answer = await http.get("/v1/models", headers=from_page(LISTED))
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, LISTED)
        made = (await http.post("/api/account/keys", json={"name": "app", "scopes": ["models", "chat"]})).json()
        key = {"Authorization": f"Bearer {made['key']}"}
        assert (await http.get("/v1/models", headers={**from_page(LISTED), **key})).status_code == 200


@pytest.mark.parametrize(
    "value", ["*", "https://*.example.com", "https://a.example/path", "a.example", "null", "ftp://a", "https://u@a"]
)
async def test_what_is_no_exact_origin_is_refused(value: str) -> None:
    with pytest.raises(StartupError, match="must be exact origins"):
        read_settings(AppSettings, {"cors_origins": value})


async def test_origins_are_kept_as_browsers_send_them() -> None:
    settings = read_settings(AppSettings, {"cors_origins": "HTTPS://App.Example.com:443/, http://[::1]:3000"})
    assert settings.cors_origins == (LISTED, "http://[::1]:3000")
