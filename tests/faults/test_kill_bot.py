"""kill -9 while the bot answers visitors: people have every case after it, and no message is lost or doubled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from app.domain.ids import new_id
from app.settings import AppSettings
from app.store.cases.inboxes import Inboxes
from app.store.db.database import Database
from app.store.db.models import Account
from tests.app.desk import SECRET
from tests.faults.conftest import Start

VISITORS = 4


async def make_inbox(url: str) -> str:
    """Adds an admin and an inbox; returns its public token."""
    database, admin = Database(url), new_id()
    account = Account(id=admin, name="ada", role="admin", created_at=datetime.now(UTC))
    await database.write(lambda session: session.add(account))
    inbox = await Inboxes(database).create(admin, name="Shop", bot=True)
    await database.close()
    return inbox.token


async def test_a_kill_leaves_no_visitor_in_silence(start: Start, database_url: str | None, tmp_path: Path) -> None:
    accounts: dict[str, Any] = {"accounts": True, "secret_key": SECRET, "lease_seconds": 1}
    server = start(delay=3, **accounts)  # in the middle of its decision
    settings = AppSettings(
        _env_file=None, data_dir=tmp_path / "data", database_url=database_url, secret_key=SecretStr(SECRET)
    )
    token = await make_inbox(settings.resolved_database_url)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        headers = []
        for number in range(VISITORS):
            session = (await http.post(f"/api/widget/{token}/sessions", json={})).json()
            headers.append({"Authorization": f"Bearer {session['token']}"})
            written = {"text": f"Question {number}", "client_id": f"c{number}"}
            answer = await http.post("/api/widget/messages", json=written, headers=headers[-1])
            assert answer.status_code == 200, answer.text
    server.kill()
    server = start(delay=0.02, **accounts)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        for number, mine in enumerate(headers):
            # On PostgreSQL, the lease of the dead process ends first.
            again = {"text": f"Question {number}", "client_id": f"c{number}"}
            for _ in range(50):
                talk = (await http.get("/api/widget/transcript", headers=mine)).text
                if "A person from our team will answer you here." in talk:
                    break
                await asyncio.sleep(1)
            else:
                raise AssertionError(f"nothing tells visitor {number} that people have the case: {talk}")
            assert talk.count(f"Question {number}") == 1
            assert (await http.post("/api/widget/messages", json=again, headers=mine)).status_code == 200
            talk = (await http.get("/api/widget/transcript", headers=mine)).text
            assert talk.count(f"Question {number}") == 1
