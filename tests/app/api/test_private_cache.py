"""With accounts, no count that a user sees tells what another user wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth.passwords import Passwords
from app.domain.roles import UserRole
from engine import Engine, EngineSettings
from testing.models import make_model
from tests.app.desk import FAST_HASH, PASSWORD, SECRET, sign_in
from tests.app.live_server import serve_app

MESSAGE = "My account number is 4711 and my dog is called Rex, please cancel everything."
NOBODYS = "The weather is grey again; which of the printers on the second floor is broken?"


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Two users of one server, signed in."""
    model = make_model(tmp_path / "tiny", "qwen2", eos=False)
    settings = EngineSettings(model=str(model), dtype="float32", native=False, kv_block_size=4, num_kv_blocks=400)
    data = tmp_path / "data"
    data.mkdir()
    async with serve_app(data, Engine(settings), gradio=False, accounts=True, secret_key=SECRET) as (url, app, _):
        app.state.services.accounts._passwords = Passwords(FAST_HASH)
        async with httpx.AsyncClient(base_url=url, timeout=30) as ann, httpx.AsyncClient(base_url=url) as bob:
            for name, http in (("ann", ann), ("bob", bob)):
                await app.state.services.accounts.create(name, None, UserRole.AGENT, PASSWORD)
                assert (await sign_in(http, name)).status_code == 204
            yield {"ann": ann, "bob": bob}


async def cached_in_api(http: httpx.AsyncClient, text: str) -> int:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def cached_in_chat(http: httpx.AsyncClient, text: str) -> int:
    sent = await http.post("/api/turns", json={"text": text, "settings": {"max_tokens": 2}})
    assert sent.status_code == 201, sent.text
    async with http.stream("GET", f"/api/turns/{sent.json()['turn_id']}/events") as events:
        async for _ in events.aiter_lines():
            pass
    shown: Any = (await http.get(f"/api/conversations/{sent.json()['conversation_id']}")).json()
    cached: int = shown["messages"][-1]["stats"]["cached_prompt_tokens"]
    return cached


@pytest.mark.slow
@pytest.mark.parametrize("cached", [cached_in_api, cached_in_chat])
async def test_a_message_that_another_user_sent_counts_as_one_that_nobody_did(
    people: dict[str, httpx.AsyncClient], cached: Any
) -> None:
    ann, bob = people["ann"], people["bob"]
    await cached(ann, "Hello.")  # the template is known
    await cached(ann, MESSAGE)
    unknown = await cached(bob, NOBODYS)
    assert await cached(bob, MESSAGE) == unknown
    assert await cached(ann, MESSAGE) > unknown  # her own is found again
