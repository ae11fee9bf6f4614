"""Titles are generated in the background of replies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock

from app.domain.attached_files import file_block
from app.turns.titles import Titles
from engine import Caller, Engine, EngineSettings, SamplingParams
from testing.fake_engine import FakeEngine
from testing.models import make_model


async def test_a_title_takes_no_seat_of_another_users_second_reply(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "qwen2", eos=False, max_position_embeddings=2048)
    settings = EngineSettings(model=str(model), dtype="float32", native=False, max_num_seqs=2)
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)

    async def reply() -> None:
        async for _delta in engine.chat([{"role": "user", "content": "Hi"}], params, caller=Caller("ann")):
            pass

    async with Engine(settings) as engine:
        titles = Titles(engine, AsyncMock(), accounts=True)
        async with asyncio.timeout(60), asyncio.TaskGroup() as replies:
            for _ in range(2):
                replies.create_task(reply())
            while engine.stats().num_requests_running < 2:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)
            titles.generate("bob", "conversation", "Hi", "Hello")
            while engine.stats().num_requests_waiting < 1:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.001)
        await asyncio.gather(*titles._tasks)
        assert engine.stats().num_preemptions == 0
        assert sum(engine.stats().requests_finished.values()) == 3


async def test_a_mail_in_a_file_is_no_title_but_one_in_the_message_is() -> None:
    mail = "From: Eva\nSubject: Where is my parcel?\n\nIt has not come."
    engine, conversations = FakeEngine(), AsyncMock()
    titles = Titles(engine, conversations)
    titles.generate("ann", "mail", mail, "Tomorrow.")
    assert not titles._tasks
    engine.say("A Lost Parcel")
    titles.generate("ann", "file", f"Sum it up.\n\n{file_block('a.eml', 60, 15, mail)}", "A parcel is lost.")
    await asyncio.gather(*titles._tasks)
    conversations.set_generated_title.assert_awaited_once_with("ann", "file", "A Lost Parcel")
