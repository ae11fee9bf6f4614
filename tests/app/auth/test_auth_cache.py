"""Whoever was known a moment ago is let in without another look, and whoever may not come in any more is not."""

from __future__ import annotations

import asyncio

import pytest

from app.auth import auth_cache
from app.auth.auth_cache import AUTH_CACHE_SECONDS, AuthCache
from app.errors import StorageUnavailable


class Table:
    """Stands for the database; a look waits while ``gate`` is closed."""

    def __init__(self) -> None:
        self.rows = {"a": "ann", "b": "bob"}
        self.looks: list[str] = []
        self.now = 100.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.known = AuthCache(self.find, AUTH_CACHE_SECONDS, lambda: self.now)

    async def find(self, token_hash: str) -> str | None:
        self.looks.append(token_hash)
        found = self.rows.get(token_hash)
        await self.gate.wait()
        return found


async def test_many_requests_are_one_look_and_for_a_short_time() -> None:
    table = Table()
    assert [await table.known.find("a") for _ in range(5)] == ["ann"] * 5
    assert table.looks == ["a"]
    del table.rows["a"]  # another process did
    table.now += AUTH_CACHE_SECONDS - 0.01
    assert await table.known.find("a") == "ann"
    table.now += 0.01
    assert await table.known.find("a") is None
    table.rows["a"] = "ann"  # whoever was not known is looked for each time
    assert await table.known.find("a") == "ann"


async def test_what_is_forgotten_is_looked_for_at_once() -> None:
    table = Table()
    await table.known.find("a")
    del table.rows["a"]
    table.known.invalidate()
    assert await table.known.find("a") is None


async def test_what_was_read_before_somebody_was_shut_out_is_not_remembered_after() -> None:
    table = Table()
    table.gate.clear()
    late = asyncio.create_task(table.known.find("a"))
    await asyncio.sleep(0)
    del table.rows["a"]
    table.known.invalidate()
    table.gate.set()
    assert await late == "ann"  # it came before
    assert await table.known.find("a") is None


async def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_cache, "MAX_ENTRIES", 1)
    table = Table()
    for token_hash in ("a", "b", "b", "a"):
        assert await table.known.find(token_hash) == table.rows[token_hash]
    assert table.looks == ["a", "b", "a"]


async def test_a_database_that_is_away_is_not_taken_for_nobody() -> None:
    async def find(_token_hash: str) -> str | None:
        raise StorageUnavailable("away")

    with pytest.raises(StorageUnavailable):
        await AuthCache(find, AUTH_CACHE_SECONDS).find("a")
