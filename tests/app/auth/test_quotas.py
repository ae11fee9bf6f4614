"""How much one person may have: counted for each, told with when to come back, and nothing typed is lost by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.store.accounts import token_use
from app.store.accounts.token_use import TokenUsageRecords
from tests.app.desk import desk, wait_for_replies

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def send(http: httpx.AsyncClient, text: str = "hi", **fields: Any) -> httpx.Response:
    return await http.post("/api/turns", json={"text": text, **fields})


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    message = answer.json()["error"]["message"]
    assert isinstance(message, str)
    assert "Try again in" in message
    return message


async def test_each_person_has_so_many_messages_a_minute_by_whatever_door(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, messages_per_minute=3, concurrent_replies=None) as here:
        ben, ada = await here.add("ben", UserRole.AGENT), await here.add("ada", UserRole.ADMIN)
        assert (await send(ben)).status_code == 201
        assert (await send(ben, temporary=True)).status_code == 201
        assert (await ben.post("/v1/chat/completions", json=CHAT)).status_code == 200
        for answer in (await send(ben), await ben.post("/v1/chat/completions", json=CHAT)):
            assert "too many messages in a minute" in refused(answer)
        assert len((await ben.get("/api/conversations")).json()["items"]) == 1
        assert (await send(ada)).status_code == 201
        await wait_for_replies(here)


async def test_what_is_refused_is_no_message(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, messages_per_minute=1) as here:
        ben = await here.add("ben", UserRole.AGENT)
        for _ in range(3):
            assert (await send(ben, conversation_id=new_id())).status_code == 404
        assert (await send(ben)).status_code == 201
        assert (await send(ben)).status_code == 429
        await wait_for_replies(here)


async def test_replies_at_a_time_are_counted_in_chats_and_programs_together(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, concurrent_replies=3, messages_per_minute=None) as here:
        ben, ada = await here.add("ben", UserRole.AGENT), await here.add("ada", UserRole.ADMIN)
        gates = [asyncio.Event() for _ in range(3)]
        for gate in gates:
            here.live.engine.say("a", "b", gates={1: gate})
        # All at once: no two find the same last place free.
        answers = await asyncio.gather(*(send(ben) for _ in range(4)), *(send(ben, temporary=True) for _ in range(2)))
        assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 3
        assert "3 replies in progress" in refused(await ben.post("/v1/chat/completions", json=CHAT))
        assert (await send(ada)).status_code == 201
        for gate in gates:
            gate.set()
        await wait_for_replies(here)
        gate = asyncio.Event()
        here.live.engine.say("a", "b", gates={1: gate})
        async with ben.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            lines = response.aiter_lines()
            while '"a"' not in await anext(lines):
                pass
            kept = asyncio.Event()
            for _ in range(2):
                here.live.engine.say("c", "d", gates={1: kept})
            assert [(await send(ben)).status_code for _ in range(3)] == [201, 201, 429]
        # The program has left, and its place is free.
        deadline = asyncio.get_running_loop().time() + 20
        here.live.engine.say("e")
        while (last := await send(ben)).status_code != 201:
            assert asyncio.get_running_loop().time() < deadline, last.text
            await asyncio.sleep(0.05)
        kept.set()
        await wait_for_replies(here)


async def test_a_repeated_request_is_not_refused_for_its_own_reply(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, concurrent_replies=1, messages_per_minute=1) as here:
        ben = await here.add("ben", UserRole.AGENT)
        gate = asyncio.Event()
        here.live.engine.say("a", "b", gates={1: gate})
        first, again = await send(ben, request_id="r1"), await send(ben, request_id="r1")
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.json()["turn_id"] == again.json()["turn_id"]
        gate.set()
        await wait_for_replies(here)


@pytest.mark.slow
async def test_tokens_of_a_day_are_kept_through_a_restart_and_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_use, "today", lambda: "2026-03-01")  # midnight does not come in between
    async with desk(tmp_path, gradio=False) as here:
        ben = await here.add("ben", UserRole.AGENT)
        here.live.engine.say("some", "words")
        sent = (await send(ben)).json()
        await wait_for_replies(here)
        assert (await ben.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await ben.delete(f"/api/conversations/{sent['conversation_id']}")).status_code == 204
        await here.services._quotas.close()  # type: ignore[union-attr]  # until it is written
        used = await TokenUsageRecords(here.services.database).of_today(here.ids["ben"])
        assert used > 2
    async with desk(tmp_path, gradio=False, tokens_per_day=used) as again:
        ben = await again.signed_in("ben")
        assert f"your {used:,} tokens for today" in refused(await send(ben))
        refused(await ben.post("/v1/chat/completions", json=CHAT))
    async with desk(tmp_path, gradio=False, tokens_per_day=used + 1) as more:
        assert (await send(await more.signed_in("ben"))).status_code == 201
        await wait_for_replies(more)


async def test_every_prompt_of_a_request_is_a_reply_and_its_tokens_are_counted(tmp_path: Path) -> None:
    async with desk(tmp_path, gradio=False, concurrent_replies=4) as here:
        ben = await here.add("ben", UserRole.AGENT)
        asked = {"prompt": ["one two", [1, 2, 3]], "n": 1}
        assert (await ben.post("/v1/completions", json=asked)).status_code == 200
        await here.services._quotas.close()  # type: ignore[union-attr]  # until it is written
        assert await TokenUsageRecords(here.services.database).of_today(here.ids["ben"]) == 2 + 3 + 2 * 4
        for number in ({"n": 2}, {"best_of": 2, "temperature": 1}, {"use_beam_search": True, "beam_width": 2}):
            many = await ben.post("/v1/completions", json={"prompt": ["a"] * 3, **number})
            assert many.status_code in (400, 422)
            assert "6 replies" in many.json()["error"]["message"]


@pytest.mark.full
async def test_without_accounts_nobody_counts(tmp_path: Path) -> None:
    async with (
        desk(tmp_path, gradio=False, accounts=False, messages_per_minute=1, tokens_per_day=1) as laptop,
        laptop.client() as http,
    ):
        for _ in range(3):
            assert (await send(http)).status_code == 201
        await wait_for_replies(laptop)


async def test_each_reply_of_a_comparison_counts_and_all_are_refused_where_one_too_many(tmp_path: Path) -> None:
    three = {"text": "hi", "variants": [{}, {"temperature": 0.5}, {"temperature": 1}]}
    two = three | {"variants": three["variants"][1:]}
    async with desk(tmp_path, gradio=False, messages_per_minute=3, concurrent_replies=2) as here:
        ben = await here.add("ben", UserRole.AGENT)
        answer = await ben.post("/api/comparisons", json=three)
        assert answer.status_code == 422
        assert "3 replies at a time; your limit is 2" in answer.json()["error"]["message"]
        assert (await ben.get("/api/conversations")).json()["items"] == []
        assert (await ben.post("/api/comparisons", json=two)).status_code == 201
        await wait_for_replies(here)
        assert "too many messages in a minute" in refused(await ben.post("/api/comparisons", json=two))
        assert (await send(ben)).status_code == 201  # the third; what was refused does not count
        await wait_for_replies(here)
    async with desk(tmp_path / "slow", gradio=False, messages_per_minute=2, concurrent_replies=None) as here:
        ben = await here.add("ben", UserRole.AGENT)
        answer = await ben.post("/api/comparisons", json=three)
        assert answer.status_code == 422
        assert "counts as 3 messages; your limit is 2 a minute" in answer.json()["error"]["message"]
        wrong: object
        for wrong in ([{}], [{}] * 5, None):
            assert (await ben.post("/api/comparisons", json=three | {"variants": wrong})).status_code == 422
