"""What may go wrong while a reply is written: a full disk, a shutdown, kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus
from app.errors import EngineUnavailable, StartupError, StorageUnavailable
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat.leases import SWEPT
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_records import TurnRecords
from app.store.db.models import Turn
from app.turns import checkpoints, live
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnText
from testing.fake_engine import FakeEngine
from tests.app.conftest import Open

only_sqlite = pytest.mark.parametrize("database_url", [None], ids=["sqlite"])


async def disk(services: Services, *, full: bool) -> None:
    """Let the SQLite file grow no more, as on a full disk; or let it grow again."""

    def work(session) -> None:  # type: ignore[no-untyped-def]
        pages = session.execute(text("PRAGMA page_count")).scalar_one()
        session.execute(text(f"PRAGMA max_page_count = {pages if full else 2**31}"))

    await services.database.write(work)


def read(services: Services, turn_id: str) -> asyncio.Task[list[TurnEvent]]:
    async def collect() -> list[TurnEvent]:
        return [event async for event in services.turns.events(ME, turn_id)]

    return asyncio.create_task(collect())


async def first_notice(services: Services, turn_id: str) -> TurnNotice:
    async for event in services.turns.events(ME, turn_id):
        if isinstance(event, TurnNotice):
            return event
    raise AssertionError("the reply ended without a notice")


@only_sqlite
async def test_a_checkpoint_that_fails_is_told_and_tried_again(services: Services, engine: FakeEngine) -> None:
    gates = {1: asyncio.Event(), 2: asyncio.Event(), 3: asyncio.Event()}
    engine.say("start ", "x" * 50_000, " more", gates=gates)
    ref = await services.turns.start(ME, text="go")
    reader = read(services, ref.turn_id)
    notice = asyncio.create_task(first_notice(services, ref.turn_id))
    await disk(services, full=True)
    gates[1].set()
    assert (await notice).message == checkpoints.NOT_SAVED_YET
    gates[2].set()  # the reply goes on meanwhile
    again = asyncio.create_task(first_notice(services, ref.turn_id))
    await asyncio.sleep(0)  # it listens now
    await disk(services, full=False)
    assert (await again).message == checkpoints.SAVED_AGAIN
    gates[3].set()
    events = await reader
    assert isinstance(events[-1], TurnEnd)
    assert events[-1].status is MessageStatus.COMPLETE
    message = await services.conversations.get_message(ME, ref.message_id)
    assert message.content == "start " + "x" * 50_000 + " more"


@only_sqlite
async def test_the_end_is_saved_when_the_disk_has_room_again(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_RETRY_SECONDS", 0.25)
    gate = asyncio.Event()
    engine.say("x" * 50_000, gates={0: gate})
    ref = await services.turns.start(ME, text="go")
    reader = read(services, ref.turn_id)
    await disk(services, full=True)
    notice = asyncio.create_task(first_notice(services, ref.turn_id))
    await asyncio.sleep(0)
    gate.set()
    await notice
    with pytest.raises(StorageUnavailable, match="full"):
        await services.turns.start(ME, text="y" * 50_000)
    assert not reader.done()
    await disk(services, full=False)
    end = (await reader)[-1]
    assert isinstance(end, TurnEnd)
    assert (end.status, end.offset) == (MessageStatus.COMPLETE, 50_000)
    assert len((await services.conversations.get_message(ME, ref.message_id)).content) == 50_000
    assert len((await services.conversations.list(ME)).items) == 1


@pytest.mark.full
@only_sqlite
async def test_a_shutdown_with_a_full_disk_ends_and_the_next_start_knows(
    settings: AppSettings, engine: FakeEngine, open_services: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.turns.turn_starts.LAST_WRITE_SECONDS", 0.2)
    settings = settings.model_copy(update={"shutdown_seconds": 0})
    services = await Services.open(settings, engine)
    gate = asyncio.Event()
    engine.say("saved ", "x" * 50_000, gates={1: gate})
    ref = await services.turns.start(ME, text="go")
    await stored_text(services, ref.message_id, "saved ")
    reader = read(services, ref.turn_id)
    await disk(services, full=True)
    gate.set()
    await first_notice(services, ref.turn_id)
    await services.turns.stop(ME, ref.turn_id)
    await services.close()
    end = (await reader)[-1]
    assert isinstance(end, TurnEnd)
    assert (end.status, end.error, end.offset) == (MessageStatus.INTERRUPTED, live.NOT_SAVED, 6)
    reopened = await open_services()
    message = await reopened.conversations.get_message(ME, ref.message_id)
    assert (message.status, message.content) == (MessageStatus.INTERRUPTED, "saved ")


async def stored_text(services: Services, message_id: str, wanted: str) -> None:
    """Wait for a checkpoint to have written it."""
    while (await services.conversations.get_message(ME, message_id)).content != wanted:  # noqa: ASYNC110 (files tell nobody)
        await asyncio.sleep(0.01)


async def test_a_reply_is_in_the_database_before_it_ends(services: Services, engine: FakeEngine) -> None:
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    engine.say("one", " two", gates=gates)
    ref = await services.turns.start(ME, text="go")
    await stored_text(services, ref.message_id, "one")
    gates[1].set()
    await stored_text(services, ref.message_id, "one two")
    assert (await services.conversations.get_message(ME, ref.message_id)).status is MessageStatus.STREAMING
    gates[2].set()
    await read(services, ref.turn_id)


async def test_close_waits_for_replies_that_end_in_time(
    settings: AppSettings, engine: FakeEngine, open_services: Open
) -> None:
    """Also where the machine stands still for longer than that."""
    services = await Services.open(settings.model_copy(update={"shutdown_seconds": 1}), engine)
    gate = asyncio.Event()
    engine.say("a", "b", gates={1: gate})
    ref = await services.turns.start(ME, text="go")
    closing = asyncio.create_task(services.close())
    await asyncio.sleep(0)
    with pytest.raises(EngineUnavailable, match="shutting down"):
        await services.turns.start(ME, text="too late")
    await asyncio.sleep(0.05)  # it waits by now
    time.sleep(1.2)  # noqa: ASYNC251 - nothing runs in this time
    gate.set()
    await closing
    message = await (await open_services()).conversations.get_message(ME, ref.message_id)
    assert (message.status, message.content) == (MessageStatus.COMPLETE, "ab")


async def test_close_interrupts_replies_that_do_not(
    settings: AppSettings, engine: FakeEngine, open_services: Open
) -> None:
    services = await Services.open(settings.model_copy(update={"shutdown_seconds": 0}), engine)
    never = asyncio.Event()
    refs = []
    for number in range(3):
        engine.say(f"half {number}", "never", gates={1: never})
        refs.append(await services.turns.start(ME, text="go"))
        await anext(services.turns.events(ME, refs[-1].turn_id))
    readers = [read(services, ref.turn_id) for ref in refs]
    await services.close()
    await services.close()  # a second time does nothing
    assert engine.running == 0
    for reader in readers:
        end = (await reader)[-1]
        assert isinstance(end, TurnEnd)
        assert (end.status, end.error) == (MessageStatus.INTERRUPTED, live.SHUT_DOWN)
    with pytest.raises(StorageUnavailable, match="shutting down"):
        await services.conversations.list(ME)
    reopened = await open_services()
    for number, ref in enumerate(refs):
        message = await reopened.conversations.get_message(ME, ref.message_id)
        assert (message.status, message.content) == (MessageStatus.INTERRUPTED, f"half {number}")
        assert message.stats is not None


async def test_what_a_dead_process_left_running_is_interrupted(
    settings: AppSettings, engine: FakeEngine, open_services: Open
) -> None:
    """On both databases; and should the dead one turn out to live, it writes no more."""
    services = await Services.open(settings.model_copy(update={"shutdown_seconds": 0}), engine)
    dead = TurnRecords(services.database, owner=new_id(), lease_seconds=60)
    left = NewTurn(
        turn_id=new_id(),
        conversation_id=new_id(),
        user_message_id=new_id(),
        message_id=new_id(),
        title="Left",
        parent_id=None,
        parent_is_tip=True,
        text="question",
        settings=ChatSettings(),
        save_settings=False,
        model="fake",
    )
    await dead.begin(ME, left)
    assert await dead.checkpoint(ME, left.turn_id, "half") is LeaseStatus.RUNNING
    other = TurnRecords(services.database, owner=new_id(), lease_seconds=60)
    assert await other.checkpoint(ME, left.turn_id, "not mine") is LeaseStatus.LOST
    gate = asyncio.Event()
    engine.say("alive", gates={0: gate})
    alive = await services.turns.start(ME, text="go")
    # Its lease is long over.
    await services.database.write(lambda session: setattr(session.get_one(Turn, left.turn_id), "lease_until", None))
    await services.close()
    gate.set()

    reopened = await open_services()
    message = await reopened.conversations.get_message(ME, left.message_id)
    assert (message.status, message.content, message.error) == (MessageStatus.INTERRUPTED, "half", SWEPT)
    assert (await reopened.conversations.get(ME, left.conversation_id)).active_turn_id is None
    late = TurnRecords(reopened.database, owner=dead._owner, lease_seconds=60)
    assert await late.checkpoint(ME, left.turn_id, "half and more") is LeaseStatus.LOST
    assert not await late.finish(ME, left.turn_id, TurnOutcome(text="all", status=MessageStatus.COMPLETE))
    assert (await reopened.conversations.get_message(ME, left.message_id)).content == "half"
    assert (await reopened.conversations.get_message(ME, alive.message_id)).error == live.SHUT_DOWN
    again = await reopened.turns.start(ME, text="again", conversation_id=left.conversation_id)
    await read(reopened, again.turn_id)


@only_sqlite
async def test_a_second_server_on_the_same_file_is_refused(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("a", gates={0: gate})
    ref = await services.turns.start(ME, text="go")
    with pytest.raises(StartupError, match="Another Deskmate"):
        await Services.open(services.settings, FakeEngine())
    gate.set()
    events = await read(services, ref.turn_id)
    assert events[0] == TurnText("a", 1)


CHILD = """
import asyncio, json, sys
from pathlib import Path
from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.services.container import Services
from app.settings import AppSettings
from testing.fake_engine import FakeEngine, Script, Thought

async def main():
    kind = Thought if "thinking" in sys.argv else str
    engine = FakeEngine(Script(pieces=[kind(f"{n} ") for n in range(1_000_000)], delay=0.001))
    settings = AppSettings(_env_file=None, data_dir=Path(sys.argv[1]), checkpoint_seconds=0.05)
    services = await Services.open(settings, engine)
    async def report(**said):
        print(json.dumps(said), flush=True)
    for number in range(4):
        ref = await services.turns.start(ME, text=f"message {number}")
        await report(message=ref.message_id, question=ref.user_message_id, conversation=ref.conversation_id)
    while True:
        view = await services.conversations.get_message(ME, ref.message_id)
        await report(message=ref.message_id, stored=view.reasoning + view.content)
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def kill_and_reopen(data_dir: Path, lines_before_the_kill: int, *arguments: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        str(data_dir),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    said = []
    for _ in range(lines_before_the_kill):
        line = await child.stdout.readline()
        assert line, (await child.stderr.read()).decode()
        said.append(json.loads(line))
    child.send_signal(signal.SIGKILL)
    rest, _ = await child.communicate()
    # The last line may have been cut; whatever came through whole was acknowledged.
    said += [json.loads(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]

    engine = FakeEngine()
    services = await Services.open(AppSettings(_env_file=None, data_dir=data_dir), engine)
    try:
        whole = "".join(f"{number} " for number in range(200_000))
        for line in said:
            if "question" in line:
                question = await services.conversations.get_message(ME, line["question"])
                assert question.content.startswith("message ")
                assert (await services.conversations.get(ME, line["conversation"])).active_turn_id is None
            reply = await services.conversations.get_message(ME, line["message"])
            assert reply.status is MessageStatus.INTERRUPTED
            assert reply.error
            kept = reply.reasoning + reply.content
            assert whole.startswith(kept)
            assert len(kept) >= len(line.get("stored", "")), "a checkpoint that had been read is gone"
        acknowledged = [line for line in said if "conversation" in line]
        # The conversation goes on.
        ref = await services.turns.start(ME, text="and now?", conversation_id=acknowledged[-1]["conversation"])
        assert isinstance((await read(services, ref.turn_id))[-1], TurnEnd)
        assert not any(item.streaming for item in (await services.conversations.list(ME)).items)
    finally:
        await services.close()


@pytest.mark.slow
@pytest.mark.parametrize("lines", [7])
async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, lines: int) -> None:
    await kill_and_reopen(tmp_path, lines)


@pytest.mark.full
@pytest.mark.parametrize("lines", range(1, 40, 2))
async def test_kill_9_again_and_again(tmp_path: Path, lines: int) -> None:
    for _ in range(2):  # the second time on what the first left behind
        await kill_and_reopen(tmp_path, lines)


@pytest.mark.slow
async def test_kill_9_in_the_middle_of_thinking_keeps_the_thoughts(tmp_path: Path) -> None:
    await kill_and_reopen(tmp_path, 7, "thinking")
