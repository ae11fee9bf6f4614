"""``APP_API_KEY``: programs need a key where there are no accounts; the page goes on as before."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from pydantic import ValidationError

from app.auth.policy import RULES, Access
from app.cli.flags import read_settings
from app.domain.accounts import Scope
from app.error_format import is_openai_path
from app.errors import StartupError
from app.settings import AppSettings
from tests.app.api.test_doors import path_of
from tests.app.desk import SECRET
from tests.app.live_server import RunningApp, live_server, reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "k3y-of-Nobody-else-9f2b7c1d0a4e8f6b"
HELLO = [{"role": "user", "content": "hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False, api_key=KEY) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


OPENAI = [rule for rule in RULES if is_openai_path(path_of(rule))]
SCOPED = [(method, path_of(rule)) for rule in OPENAI for method in sorted(rule.methods)]


async def test_every_route_that_keys_open_is_behind_the_key() -> None:
    """Besides the page's, which need none here, and the cases', which need accounts."""
    assert all(rule.scope is not None for rule in OPENAI)
    for rule in RULES:
        if rule.scope in (Scope.CASES_READ, Scope.CASES_WRITE):
            assert rule.path.startswith(("/api/cases", "/api/inboxes"))
        elif rule.scope is not None and rule not in OPENAI:
            assert rule.path == "/config" or rule.path.startswith("/gradio_api/")


@pytest.mark.parametrize(("method", "path"), SCOPED)
@pytest.mark.parametrize(
    "headers",
    [{}, bearer("x"), bearer(KEY[:-1]), bearer(KEY + "x"), {"Authorization": f"Basic {KEY}"}, {"X-Api-Key": KEY}],
)
async def test_without_the_key_programs_get_401_in_openais_shape(
    live: RunningApp, method: str, path: str, headers: dict[str, str]
) -> None:
    slashed = await live.http.request(method, f"{path}/", headers=headers)
    assert slashed.status_code == 401
    behind_newline = await live.http.request(method, f"{path}%0A", headers=headers)
    assert behind_newline.status_code >= 400
    answer = await live.http.request(method, path, headers=headers)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("invalid_api_key" if "Authorization" in headers else "not_signed_in")
    assert "APP_API_KEY" in error["message"]
    assert KEY not in answer.text
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_key_of_other_bytes_than_ascii_is_refused_and_breaks_nothing(live: RunningApp) -> None:
    answer = await live.http.get("/v1/models", headers={b"Authorization": "Bearer kéy".encode("latin-1")})
    assert answer.status_code == 401


async def test_with_the_key_the_official_client_works(live: RunningApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        reply = await client.chat.completions.create(model="fake", messages=HELLO)  # type: ignore[arg-type]
        assert reply.choices[0].message.content == "Hello, world."
    assert (await live.http.post("/tokenize", json={"prompt": "hi"}, headers=bearer(KEY))).status_code == 200
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await stranger.models.list()
    assert caplog.records
    assert all(KEY not in record.getMessage() for record in caplog.records if record.name != "httpcore.http11")


async def test_the_page_and_its_own_api_need_no_key(live: RunningApp) -> None:
    assert (await live.http.get("/api/conversations")).status_code == 200
    assert (await live.http.get("/health")).status_code == 200
    own = {"Origin": live.url, "Sec-Fetch-Site": "same-origin"}
    assert (await live.http.post("/v1/chat/completions", json={"messages": HELLO}, headers=own)).status_code == 401


@pytest.mark.parametrize("key", ["short", "a" * 40, "change-me-change-me-change-me-please-0"])
async def test_a_key_that_can_be_guessed_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(StartupError) as caught:
        read_settings(AppSettings, {"api_key": key})
    assert "--api-key (APP_API_KEY)" in str(caught.value)
    assert key not in str(caught.value)


async def test_with_accounts_people_make_their_own_keys() -> None:
    with pytest.raises(ValidationError, match="APP_API_KEY is for a server without accounts"):
        AppSettings(accounts=True, secret_key=SECRET, api_key=KEY, _env_file=None)


async def test_the_settings_do_not_show_it() -> None:
    settings = AppSettings(api_key=KEY, _env_file=None)
    assert KEY not in repr(settings) + str(settings) + settings.model_dump_json()
    assert all(rule.access is not Access.OPEN for rule in RULES if rule.scope is not None)
