"""A desk with accounts under a real uvicorn, and clients that are signed in at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from app.auth.accounts import AccountService
from app.auth.passwords import Passwords
from app.domain.roles import UserRole
from app.services.container import Services
from app.store.accounts.token_use import TokenUsageRecords
from testing.waiting import eventually
from tests.app.live_server import RunningApp, live_server

SECRET = "x7Kq2mVbT9rLw4ZpYs8NdGhJ3fCeA6uQ1oRi5"
METRICS_TOKEN = "m3Tr1csTokenOfThisTest-9fKw2LqZxVbN8p"
PASSWORD = "four words make one"

#: As argon2 as any, and done in a millisecond.
FAST_HASH = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))


@dataclass
class Desk:
    """The server, and who is signed in at it."""

    live: RunningApp
    clients: dict[str, httpx.AsyncClient] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def services(self) -> Services:
        services: Services = self.live.app.state.services
        return services

    @property
    def accounts(self) -> AccountService:
        people = self.services.accounts
        assert people is not None
        return people

    def client(self) -> httpx.AsyncClient:
        """Another browser, in which nobody is signed in."""
        return httpx.AsyncClient(base_url=self.live.url, timeout=30)

    async def add(self, name: str, role: UserRole) -> httpx.AsyncClient:
        """Make an account and sign in with it."""
        person = await self.accounts.create(name, None, role, PASSWORD)
        self.ids[name] = person.id
        self.clients[name] = await self.signed_in(name)
        return self.clients[name]

    async def signed_in(self, name: str) -> httpx.AsyncClient:
        """Another browser, in which somebody is."""
        http = self.client()
        answer = await sign_in(http, name)
        assert answer.status_code == 204, answer.text
        self.clients[f"{name} {len(self.clients)}"] = http
        return http


async def sign_in(http: httpx.AsyncClient, name: str, password: str = PASSWORD) -> httpx.Response:
    return await http.post("/api/account/sign-in", json={"name": name, "password": password})


@asynccontextmanager
async def desk(data_dir: Path, *, gradio: bool = True, **settings: Any) -> AsyncIterator[Desk]:
    """As :func:`live_server`."""
    given = {"accounts": True, "secret_key": SECRET, "metrics_token": METRICS_TOKEN, **settings}
    async with live_server(data_dir, gradio=gradio, **given) as live:
        opened = Desk(live)
        if opened.services.accounts is not None:
            opened.accounts._passwords = Passwords(FAST_HASH)
        try:
            yield opened
        finally:
            for http in opened.clients.values():
                await http.aclose()


async def wait_for_replies(here: Desk) -> None:
    """Waits until no reply is being written or saved."""
    await eventually(lambda: here.live.engine.running == 0)
    deadline = asyncio.get_running_loop().time() + 20
    while any([await _replies_under_way(here, user_id) for user_id in here.ids.values()]):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def _replies_under_way(here: Desk, user_id: str) -> int:
    saved = await TokenUsageRecords(here.services.database).replies_under_way(user_id)
    return saved + here.services.turns.count_running(user_id) + here.services.temporary.count_running(user_id)
