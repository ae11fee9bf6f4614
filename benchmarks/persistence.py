"""Measures how much the engine is slowed by saving replies while they are generated.

    .venv/bin/python -m benchmarks.persistence

The guide model (the smallest and so the least favourable one) generates 8 and 64 replies of 200 tokens at once, in
three ways that run in turn: the engine alone, the server's turns without saving, and with saving as the server does,
at the start, every 1.5 seconds and at the end, into SQLite and into a private PostgreSQL with default settings. Prints
tokens per second, medians of the repetitions, the share that saving takes, and the writes per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID, new_id
from app.settings import AppSettings
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database
from app.store.db.notifications import Notifications
from app.store.desk.template_versions import TemplateVersions
from app.store.maintenance.migrate import migrate
from app.templates.catalog import Templates
from app.templates.files import read_templates
from app.turns.events import TurnEnd
from app.turns.service import Turns
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.latencies import spread
from benchmarks.result_files import write_result
from engine import ChatMessage, Engine, EngineSettings, PreparedPrompt, SamplingParams

TOKENS = 200


class FixedLengthEngine(Engine):
    """Ignores the end of sequence, so that every reply has the same length."""

    async def prepare(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None = None, **options: Any
    ) -> PreparedPrompt:
        assert params is not None
        return await super().prepare(messages, replace(params, ignore_eos=True), **options)


class NullTurnRecords(TurnRecords):
    """Reports everything as saved and saves nothing."""

    async def begin(self, user_id: str, new: NewTurn) -> datetime:  # noqa: ARG002
        return datetime.now(UTC)

    async def checkpoint(self, user_id: str, turn_id: str, text: str | None, *new: object) -> LeaseStatus:  # noqa: ARG002
        return LeaseStatus.RUNNING

    async def finish(self, user_id: str, turn_id: str, outcome: TurnOutcome) -> bool:  # noqa: ARG002
        return True


class TimedDatabase(Database):
    """Records the duration of every write."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.writes: list[float] = []

    async def write_rows(self, work: Any) -> Any:
        begin = perf_counter()
        done = await super().write_rows(work)
        self.writes.append(perf_counter() - begin)
        return done


async def measure(url: str, folder: Path, *, chats: int, repeats: int) -> dict[str, object]:
    chat_settings = ChatSettings(temperature=0.8, max_tokens=TOKENS, seed=1)
    params = chat_settings.sampling_params()
    settings = AppSettings(_env_file=None, data_dir=folder, auto_titles=False)
    database = TimedDatabase(url)
    async with FixedLengthEngine(EngineSettings(model="models/guide", max_num_seqs=chats)) as engine:

        def turns_with(records: TurnRecords) -> Turns:
            contexts, notifications = TurnContexts(database), Notifications(url)
            templates = Templates(read_templates(), TemplateVersions(database))
            return Turns(settings, engine, records, contexts, templates, notifications)

        owner = new_id()
        unsaved = turns_with(NullTurnRecords(database, owner, settings.lease_seconds))
        saved = turns_with(TurnRecords(database, owner, settings.lease_seconds))

        async def alone(text: str) -> int:
            said = 0
            async for delta in engine.chat([{"role": "user", "content": text}], params):
                said += len(delta.token_ids)
            return said

        async def by(turns: Turns, text: str) -> int:
            ref = await turns.start(LOCAL_USER_ID, text=text, settings=chat_settings)
            async for event in turns.events(LOCAL_USER_ID, ref.turn_id):
                last = event
            assert isinstance(last, TurnEnd)
            assert last.stats is not None
            return last.stats.completion_tokens

        async def rate(one: Callable[[str], Awaitable[int]]) -> float:
            begin = perf_counter()
            said = await asyncio.gather(*(one(f"Tell me about number {chat}") for chat in range(chats)))
            assert sum(said) == chats * TOKENS
            return sum(said) / (perf_counter() - begin)

        ways: dict[str, Callable[[str], Awaitable[int]]] = {
            "engine alone": alone,
            "turns, not saved": lambda text: by(unsaved, text),
            "turns, saved": lambda text: by(saved, text),
        }
        for way in ways.values():
            await rate(way)
        database.writes.clear()
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                rates[name].append(await rate(way))
        seconds = sum(chats * TOKENS / one for one in rates["turns, saved"])
        await unsaved.close()
        await saved.close()
    await database.close()
    medians = {name: round(median(measured), 1) for name, measured in rates.items()}
    return {
        "tokens_per_s": medians,
        "share_taken_by_saving": round(1 - medians["turns, saved"] / medians["turns, not saved"], 4),
        "share_taken_by_all": round(1 - medians["turns, saved"] / medians["engine alone"], 4),
        "writes_per_s": round(len(database.writes) / seconds, 1),
        "write": spread(database.writes),
        "repetitions": {name: [round(one, 1) for one in measured] for name, measured in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "databases": {}}
    with tempfile.TemporaryDirectory() as temporary, databases(args.databases, Path(temporary)) as makers:
        for kind, make in makers.items():
            url = make("persistence")
            migrate(url)
            result["databases"][kind] = {}
            for chats in (8, 64):
                found = asyncio.run(measure(url, Path(temporary), chats=chats, repeats=args.repeats))
                result["databases"][kind][f"{chats} replies"] = found
                print(f"{kind}, {chats} replies: {json.dumps(found)}", flush=True)
    write_result(result, "persistence", args.output)


if __name__ == "__main__":
    main()
