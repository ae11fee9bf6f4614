"""A reply is generated while the beginning of its turn is still being written to the database."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.ids import LOCAL_USER_ID as ME
from app.errors import Conflict, StorageUnavailable
from app.services.container import Services
from app.store.chat.turn_records import TurnRecords
from app.turns.admission import UnlimitedAdmission
from app.turns.events import TurnEnd, TurnEvent, TurnText
from app.turns.service import TurnRef
from testing.fake_engine import FakeEngine, call_pieces
from testing.tool_servers import install_demo_tools
from testing.waiting import eventually


class HeldWrite:
    """Holds back the writing of turns' beginnings, and of replies that go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = asyncio.Event()
        self.error: Exception | None = None
        for name in ("begin", "resume"):
            monkeypatch.setattr(TurnRecords, name, self._held(getattr(TurnRecords, name)))

    def _held(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def held(*given: Any) -> None:
            await self.allowed.wait()
            if self.error is not None:
                raise self.error
            await write(*given)

        return held


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> HeldWrite:
    return HeldWrite(monkeypatch)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that are counted towards users' quotas."""
    counted: list[int] = []
    monkeypatch.setattr(UnlimitedAdmission, "record_tokens", lambda _self, _user_id, tokens: counted.append(tokens))
    return counted


def send(services: Services, **given: Any) -> asyncio.Task[TurnRef]:
    return asyncio.create_task(services.turns.start(ME, text="go", **given))


async def read(services: Services, ref: TurnRef) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, ref.turn_id)]


async def test_the_text_that_came_before_the_write_is_the_beginning_of_the_reply(
    services: Services, engine: FakeEngine, write: HeldWrite
) -> None:
    gate = asyncio.Event()
    engine.say("early ", "late", gates={1: gate})
    sent = send(services)
    await engine.started.wait()
    assert not sent.done()
    write.allowed.set()
    ref = await sent
    gate.set()
    events = await read(services, ref)
    assert "".join(event.text for event in events if isinstance(event, TurnText)) == "early late"
    assert (await services.conversations.get_message(ME, ref.message_id)).content == "early late"


async def test_a_reply_that_ends_before_the_write_is_saved_by_it(
    services: Services, engine: FakeEngine, write: HeldWrite, counted: list[int]
) -> None:
    engine.say("short")
    sent = send(services)
    await eventually(lambda: engine.started.is_set() and not engine.running)
    assert not sent.done()
    write.allowed.set()
    ref = await sent
    events = await read(services, ref)
    assert isinstance(events[-1], TurnEnd)
    assert (await services.conversations.get_message(ME, ref.message_id)).content == "short"
    assert len(counted) == 1


@pytest.mark.parametrize("error", [StorageUnavailable("The disk is full."), Conflict("A reply is running.")])
@pytest.mark.parametrize("fails", [False, True], ids=["writing", "failed"])
async def test_if_the_write_fails_nothing_is_left_of_the_reply(
    services: Services,
    engine: FakeEngine,
    write: HeldWrite,
    error: Exception,
    fails: bool,
    counted: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.say("a", "b", gates={} if fails else {1: asyncio.Event()}, fail_at=1 if fails else None)
    write.error = error
    sent = send(services)
    await engine.started.wait()
    if fails:
        await eventually(lambda: not engine.running)
    write.allowed.set()
    with pytest.raises(type(error)):
        await sent
    await eventually(lambda: not engine.running)
    assert services.turns.running_turn_ids() == []
    assert services.turns.count_running(ME) == 0
    del sent
    gc.collect()
    await asyncio.sleep(0)
    assert counted == []  # the user gets nothing for its tokens
    assert "never retrieved" not in caplog.text


async def test_no_tool_runs_before_the_write(services: Services, engine: FakeEngine, write: HeldWrite) -> None:
    demo = install_demo_tools(services, engine, auto_approve=("order",))
    engine.say(*call_pieces("desk__order", '{"number": 7}'))
    engine.say("It was sent.")
    sent = send(services)
    await eventually(lambda: engine.started.is_set() and not engine.running)
    await asyncio.sleep(0.05)
    assert demo.calls == []
    write.allowed.set()
    ref = await sent
    await read(services, ref)
    assert demo.calls == ["order 7"]


async def test_who_reads_a_reply_that_cannot_go_on_is_told(
    services: Services, engine: FakeEngine, write: HeldWrite
) -> None:
    write.allowed.set()
    engine.say("half ", "never", gates={1: asyncio.Event()})
    ref = await send(services)
    await anext(services.turns.events(ME, ref.turn_id))
    await services.turns.stop(ME, ref.turn_id)
    write.allowed.clear()
    write.error = Conflict("It was changed elsewhere.")
    engine.started.clear()
    engine.say("whole", gates={1: asyncio.Event()})
    resumed = asyncio.create_task(services.turns.resume(ME, ref.message_id))
    await engine.started.wait()
    reading = asyncio.create_task(read(services, ref))
    await asyncio.sleep(0)
    write.allowed.set()
    with pytest.raises(Conflict):
        await resumed
    async with asyncio.timeout(10):
        assert isinstance((await reading)[-1], TurnEnd)
    assert (await services.conversations.get_message(ME, ref.message_id)).content == "half "
