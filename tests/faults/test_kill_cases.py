"""kill -9 while visitors, agents, the bot, snoozes and webhooks work: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.settings import AppSettings
from app.store.db.database import open_snapshot
from testing.databases import create_migrated_file
from testing.webhook_receiver import Receiver, receiving
from tests.app.desk import SECRET
from tests.app.store.cases.support import open_small_desk
from tests.faults.case_ledger import CaseLedger
from tests.faults.processes import TIMEOUT_SECONDS, ServerHost
from tests.fork_server import ForkedProcess

MAX_ACTS = 25  # acknowledgements, after which a process is killed
ACTS = {"write", "hand_off", "rate", "reply", "note", "assign", "snooze", "resolve", "reopen"}
MAX_MORE_KILLS = 100  # until each act was acknowledged; on a slow machine a few short lives may not see them all


class KilledDesk:
    """A desk whose process dies and comes back."""

    def __init__(self, host: ServerHost, folder: Path, database_url: str | None) -> None:
        self._host, self._folder = host, folder
        if database_url is None:
            create_migrated_file(folder / "data" / "deskmate.db")
        self._settings: dict[str, Any] = {
            "data_dir": str(folder / "data"),
            "database_url": database_url,
            "accounts": True,
            "secret_key": SECRET,
            "egress_allow": ["127.0.0.1"],
            "checkpoint_seconds": 0.02,
            "lease_seconds": 1,
            "auto_titles": False,
        }
        self.url = AppSettings(_env_file=None, **self._settings).resolved_database_url
        self.ledger = CaseLedger(folder / "lines")
        self._order: dict[str, Any] = {}
        self._process: ForkedProcess | None = None  # the newest

    async def open(self, receiver: Receiver) -> None:
        """Makes an inbox that a bot answers first, one that people do, two agents, and a webhook."""
        desk = await open_small_desk(self.url, bot=True)
        people = await desk.cases.inboxes.create(desk.admin, name="People", bot=False)
        for agent in (desk.ann, desk.bob):
            await desk.cases.inboxes.add_member(desk.admin, people.id, agent)
        await desk.cases.webhooks.create(desk.admin, url=receiver.url, inbox_id=None, events=())
        await desk.database.close()
        self._order = {"inboxes": [desk.inbox.id, people.id], "agents": [desk.ann, desk.bob]}

    def start(self, seed: str, *, finish: bool = False) -> ForkedProcess:
        """A process that begins with what was not acknowledged."""
        self.ledger.read()
        again = [{key: value for key, value in act.items() if key != "line"} for act in self.ledger.open.values()]
        acts = {
            "settings": self._settings,
            "lines": str(self.ledger.file),
            "seed": seed,
            "cases": self.ledger.cases[-3:],
            "again": again,
            "finish": finish,
            **self._order,
        }
        self._process = self._host.fork(self._folder / "log", acts=acts)
        return self._process

    def end(self) -> None:
        """Kills what a test that failed has left running: it would keep a CPU from the tests that follow."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(TIMEOUT_SECONDS)

    async def finish(self, receiver: Receiver) -> None:
        """Runs a last process, which does what is left and ends. It may take long, as long as webhooks are sent.

        After lives on a busy machine that were too short to send much, thousands of deliveries are left.
        """
        process = self.start("the last one", finish=True)
        while True:
            num_heard = len(receiver.requests)
            try:
                code = await asyncio.to_thread(process.wait, TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                assert len(receiver.requests) > num_heard, f"nothing is sent any more:\n{self.log}"
                continue
            assert code == 0, self.log
            return

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    async def wait_for_lines(self, process: ForkedProcess, number: int) -> None:
        """Waits until so many more lines have come."""
        goal = self.ledger.num_lines + number
        for _ in range(100 * TIMEOUT_SECONDS):
            self.ledger.read()
            if self.ledger.num_lines >= goal:
                return
            assert process.poll() is None, self.log
            await asyncio.sleep(0.01)
        raise AssertionError(f"the process does nothing any more:\n{self.log}")

    @property
    def missing(self) -> set[str]:
        """Acts that were not acknowledged yet."""
        return ACTS - {line["act"] for line in self.ledger.done}

    def check(self, receiver: Receiver, *, at_the_end: bool = False) -> None:
        self.ledger.read()
        self.ledger.hear(receiver.requests)
        receiver.requests.clear()
        with open_snapshot(self.url) as connection:
            self.ledger.check(connection, at_the_end=at_the_end)


@pytest.fixture
def desk(server_host: ServerHost, tmp_path: Path, database_url: str | None) -> Iterator[KilledDesk]:
    desk = KilledDesk(server_host, tmp_path, database_url)
    yield desk
    desk.end()


async def kill_again_and_again(desk: KilledDesk, *, seed: int, kills: int) -> None:
    """The process dies ``kills`` times or more, sometimes while it starts; a last one does what is left."""
    dice = random.Random(seed)
    async with receiving() as receiver:
        receiver.drop_every = 7
        await desk.open(receiver)
        for kill in range(kills + MAX_MORE_KILLS):
            if kill >= kills and not desk.missing:
                break
            print(f"seed {seed}, kill {kill}")  # shown where the test fails
            process = desk.start(f"{seed} {kill}")
            if dice.random() < 0.9:
                await desk.wait_for_lines(process, dice.randint(1, 2 * MAX_ACTS))
                await asyncio.sleep(dice.uniform(0, 0.005))
            else:
                await asyncio.sleep(dice.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
            assert process.wait(TIMEOUT_SECONDS) == -signal.SIGKILL, desk.log
            desk.check(receiver)
        await desk.finish(receiver)
        desk.check(receiver, at_the_end=True)
        assert receiver.num_served >= receiver.drop_every
    assert not desk.missing


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_six_kills(desk: KilledDesk) -> None:
    await kill_again_and_again(desk, seed=1, kills=6)


@pytest.mark.full
@pytest.mark.timeout(1800)  # three to five minutes beside the other long tests, more on slow machines
async def test_two_hundred_kills(desk: KilledDesk) -> None:
    await kill_again_and_again(desk, seed=2, kills=200)
