"""Measures the lists of cases with 10,000 open cases in one inbox, on SQLite and PostgreSQL.

    .venv/bin/python -m benchmarks.case_list             # about ten minutes: the cases are made through the store
    .venv/bin/python -m benchmarks.case_list --cases 1000

Makes cases by contacts' messages as the server does, gives a quarter of them to an agent, and a few cases to another
inbox, whose agent reads no others. Then times what the page of cases reads: the first and the hundredth page of
each list, the counts, a search and one case. Prints p50 and p95 in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session
from tqdm import tqdm

from app.cases.cases import Cases
from app.domain.ids import new_id
from app.store.cases.case_list import CaseListView
from app.store.chat.search_index import SearchIndex
from app.store.db.database import Database
from app.store.db.models import Account
from app.store.db.notifications import Notifications
from app.store.maintenance.migrate import migrate
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.latencies import spread, time_calls
from benchmarks.result_files import write_result

AT_ONCE = 64
PAGES = 100
SMALL_INBOX = 20
REPEATS = 60
SUBJECTS = ("My parcel has not come", "How do I return a jacket?", "The invoice is wrong", "Where is my refund?")


class CaseFiller:
    """Fills a database with two inboxes and their cases."""

    def __init__(self, database: Database, url: str) -> None:
        self._database = database
        index = SearchIndex(database)
        self.cases = Cases.create(database, Notifications(url), index, new_id(), 15.0, max_message_chars=8000)
        self.index = index
        self.agent = new_id()  #: of the large inbox
        self.other_agent = new_id()  #: of the small one
        self._admin = new_id()

    async def fill(self, count: int) -> list[str]:
        """Makes ``count`` open cases in the large inbox; returns their ids."""
        now = datetime.now(UTC)
        for id, role in ((self._admin, "admin"), (self.agent, "agent"), (self.other_agent, "agent")):
            account = Account(id=id, name=f"user {id}", role=role, kind="person", created_at=now)
            await self._database.write(partial(_add, account))
        large = await self.cases.inboxes.create(self._admin, name="Large", bot=False)
        small = await self.cases.inboxes.create(self._admin, name="Small", bot=False)
        await self.cases.inboxes.add_member(self._admin, large.id, self.agent)
        await self.cases.inboxes.add_member(self._admin, small.id, self.other_agent)
        for number in range(SMALL_INBOX):
            await self._open_case(small.id, f"small {number}")
        ids: list[str] = []
        with tqdm(total=count, unit=" cases") as bar:
            for start in range(0, count, AT_ONCE):
                numbers = range(start, min(count, start + AT_ONCE))
                made = await asyncio.gather(
                    *(self._open_case(large.id, f"large {number}", is_old=number < count // 4) for number in numbers)
                )
                mine = [id for id, number in zip(made, numbers, strict=True) if number % 4 == 0]
                await asyncio.gather(*(self.cases.agents.assign(self.agent, id, self.agent) for id in mine))
                ids += made
                bar.update(len(made))
        while await self.index.catch_up():  # a server indexes in the background; a search would wait for a batch
            pass
        return ids

    async def _open_case(self, inbox_id: str, name: str, *, is_old: bool = False) -> str:
        visitor = await self.cases.visitors.create(inbox_id, f"hash of {name}", name=name)
        text = f"{random.Random(name).choice(SUBJECTS)} This is {name}.{' It is about a kettle.' if is_old else ''}"
        _, case = await self.cases.contacts.write(visitor.contact.id, text, client_id="1")
        return case.id


def _add(account: Account, session: Session) -> None:
    session.add(account)


async def measure(url: str, count: int) -> dict[str, dict[str, float]]:
    """Fills the database and times the page's reads."""
    database = Database(url)
    filler = CaseFiller(database, url)
    ids = await filler.fill(count)
    cases, agent = filler.cases.list, filler.agent
    dice = random.Random(1)
    cursor: str | None = None
    for _ in range(min(PAGES, count // 50) - 1):
        cursor = (await cases.page(agent, cursor=cursor)).next_cursor
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        f"first page of {view}": lambda view=view: cases.page(agent, view)  # type: ignore[misc]
        for view in (CaseListView.ALL, CaseListView.UNASSIGNED, CaseListView.MINE, CaseListView.RESOLVED)
    }
    asked |= {
        "a page far down": lambda: cases.page(agent, cursor=cursor),
        "first page of a small inbox's agent": lambda: cases.page(filler.other_agent),
        "counts": lambda: cases.counts(agent),
        "one case": lambda: filler.cases.details.get(agent, dice.choice(ids)),
        "search, a word in a quarter": lambda: cases.page(agent, query="parcel"),
        "search, a word in the oldest quarter": lambda: cases.page(agent, query="kettle"),
        "what has just changed": lambda: cases.changed_since(agent, datetime.now(UTC), {}),
    }
    found = {}
    for name, ask in asked.items():
        await time_calls(5, ask)
        found[name] = spread(await time_calls(REPEATS, ask))
        print(f"  {name:<38} p50 {found[name]['p50_ms']:>8.2f} ms   p95 {found[name]['p95_ms']:>8.2f} ms", flush=True)
    await database.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="folder for the databases, which then stay")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "cases": args.cases, "databases": {}}
    with (
        tempfile.TemporaryDirectory() as temporary,
        databases(args.databases, args.folder or Path(temporary)) as makers,
    ):
        for kind, make in makers.items():
            print(f"{kind}: {args.cases:,} open cases", flush=True)
            url = make("case_list")
            migrate(url)
            result["databases"][kind] = asyncio.run(measure(url, args.cases))
    write_result(result, "case-list", args.output)


if __name__ == "__main__":
    main()
