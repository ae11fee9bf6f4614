"""Statements that the driver runs itself: the same values and the same errors as through SQLAlchemy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import StorageUnavailable
from app.store.accounts import token_use
from app.store.chat import tree, turn_contexts
from app.store.db import driver
from app.store.db.database import Database
from app.store.db.models import Account, Conversation, Message, table_of
from app.store.db.prepared_statements import Prepared, insert_into, is_among, update_of
from testing.databases import PostgresServer, create_migrated_file

CONVERSATION, MESSAGE = table_of(Conversation), table_of(Message)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
INSERT = insert_into(CONVERSATION, "id user_id title settings created_at updated_at")
BY_ID = Prepared(
    select(CONVERSATION.c.title, CONVERSATION.c.settings, CONVERSATION.c.created_at, CONVERSATION.c.pinned).where(
        CONVERSATION.c.id == bindparam("id"), CONVERSATION.c.title_by == "message"
    )
)


@pytest.fixture
async def database(database_url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(database_url or create_migrated_file(tmp_path / "deskmate.db"))
    yield opened
    await opened.close()


def conversation(title: str, user_id: str = ME) -> dict[str, object]:
    # The same moment as noon, as another zone says it.
    created = NOON.astimezone(timezone(timedelta(hours=5)))
    settings = {"stop": ["%s", ":id"], "seed": 1}
    return {
        "id": new_id(),
        "user_id": user_id,
        "title": title,
        "settings": settings,
        "created_at": created,
        "updated_at": NOON,
    }


async def test_values_come_back_as_the_columns_have_them(database: Database) -> None:
    new = conversation("100 % 'quoted' %(title)s ü 🙂")
    reply = {"id": new_id(), "conversation_id": new["id"], "role": "assistant", "status": "complete", "content": ""}
    reply |= {"position": 0, "created_at": NOON, "token_ids": (0, 1, 2**31 - 1)}

    def write(connection: Connection) -> None:
        INSERT.run(connection, new)
        insert_into(MESSAGE, " ".join(reply)).run(connection, reply)

    await database.write_rows(write)
    expected = (new["title"], new["settings"], NOON, False)  # what was not given is the column's default
    assert await database.read_rows(lambda connection: BY_ID.row(connection, {"id": new["id"]})) == expected
    ids = Prepared(select(MESSAGE.c.token_ids).where(MESSAGE.c.id == bindparam("id")))
    assert await database.read_rows(lambda connection: ids.rows(connection, {"id": reply["id"]})) == [
        ((0, 1, 2**31 - 1),)
    ]
    stored = await database.read(lambda session: session.get_one(Conversation, new["id"]))  # and so do objects
    assert (stored.title, stored.settings, stored.created_at) == (new["title"], new["settings"], NOON)
    assert await database.read_rows(lambda connection: BY_ID.row(connection, {"id": new_id()})) is None


async def test_many_rows_are_written_together_or_not_at_all(database: Database) -> None:
    new = [conversation(f"number {number}") for number in range(3)]
    await database.write_rows(lambda connection: INSERT.run_each(connection, new))
    renamed = [{"key": one["id"], "title": "renamed"} for one in new]
    await database.write_rows(lambda connection: update_of(CONVERSATION, ["title"]).run_each(connection, renamed))
    again = [conversation("another"), new[0]]
    with pytest.raises(IntegrityError):
        await database.write_rows(lambda connection: INSERT.run_each(connection, again))
    titles = await database.read(lambda session: session.scalars(select(Conversation.title)).all())
    assert titles == ["renamed"] * 3


async def test_what_a_transaction_has_written_it_reads(database: Database) -> None:
    new = conversation("mine")

    def work(session: Session) -> object:
        INSERT.run(session.connection(), new)
        session.get_one(Account, ME).name = "renamed"  # of objects, in the same transaction
        raise ValueError(BY_ID.row(session.connection(), {"id": new["id"]}))

    with pytest.raises(ValueError, match="mine"):
        await database.write(work)
    assert await database.read_rows(lambda connection: BY_ID.row(connection, {"id": new["id"]})) is None
    assert await database.read(lambda session: session.get_one(Account, ME).name) == "local"


async def test_an_error_says_what_was_wrong_and_not_what_was_written(database: Database) -> None:
    with pytest.raises(IntegrityError) as failure:
        await database.write_rows(
            lambda connection: INSERT.run(connection, conversation("my secret", user_id=new_id()))
        )
    assert "FOREIGN KEY" in str(failure.value).upper()
    assert "my secret" not in str(failure.value)
    await database.ping()


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
async def test_a_reader_that_would_write_is_refused(database: Database) -> None:
    with pytest.raises(StorageUnavailable, match="readonly"):
        await database.read_rows(lambda connection: INSERT.run(connection, conversation("no")))


async def test_a_connection_that_the_server_dropped_is_told_and_replaced(postgres: PostgresServer) -> None:
    database = Database(postgres.migrated())
    end = text("SELECT pg_terminate_backend(:pid)")

    def work(connection: Connection) -> None:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        other.execute(end, {"pid": pid})
        BY_ID.row(connection, {"id": new_id()})

    with database._writer.connect() as other, pytest.raises(StorageUnavailable, match="terminating connection"):
        await database.write_rows(work)
    for _ in range(8):
        await database.ping()
    await database.close()


async def test_a_list_is_one_parameter(database: Database) -> None:
    new = [conversation(title) for title in ("one", 'it\'s "two"', "three")]
    await database.write_rows(lambda connection: INSERT.run_each(connection, new))
    by_title = Prepared(select(Conversation.title).where(is_among(Conversation.title, "titles")))
    by_position = Prepared(select(Message.position).where(is_among(Message.position, "positions")))
    message = {"conversation_id": new[0]["id"], "role": "user", "status": "complete", "content": "", "created_at": NOON}
    rows = [message | {"id": new_id(), "position": position} for position in range(3)]
    await database.write_rows(lambda connection: insert_into(MESSAGE, " ".join(rows[0])).run_each(connection, rows))

    def read(connection: Connection) -> list[list[tuple[object, ...]]]:
        return [
            sorted(by_title.rows(connection, {"titles": ['it\'s "two"', "three", "four"]})),
            by_title.rows(connection, {"titles": []}),
            sorted(by_position.rows(connection, {"positions": [0, 2, 7]})),
        ]

    expected = [[('it\'s "two"',), ("three",)], [], [(0,), (2,)]]
    assert await database.read_rows(read) == expected


async def test_a_list_is_looked_up_in_the_index(database: Database) -> None:
    by_id = Prepared(select(Message.content).where(is_among(Message.id, "ids")))

    def plan(connection: Connection) -> str:
        if connection.dialect.name != "sqlite":
            return "SEARCH message"
        rows = driver.fetch(connection, f"EXPLAIN QUERY PLAN {by_id._on(connection).text}", ['["1"]'])
        return "\n".join(str(row[3]) for row in rows)

    assert "SEARCH message" in await database.read_rows(plan)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(tree._PROMPT_PATH_POSTGRES, id="path"),
        pytest.param(token_use._RUNNING, id="replies under way"),
        pytest.param(turn_contexts._OWNED, id="conversation"),
        pytest.param(turn_contexts._IS_RUNNING, id="is running"),
    ],
)
def test_what_each_message_reads_is_planned_without_reading_whole_tables(
    postgres: PostgresServer, statement: Prepared
) -> None:
    """psycopg has it planned once for any parameters, perhaps while the tables are small."""
    compiled = statement._statement.compile(dialect=create_engine("postgresql+psycopg://").dialect)
    values = {name: f"'{value}'" if isinstance(value, str) else value for name, value in compiled.params.items()}
    asked = str(compiled) % {name: "$1" if value is None else value for name, value in values.items()}
    with closing(psycopg.connect(postgres.migrated().replace("+psycopg", ""), autocommit=True)) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE asked AS {asked}")
        plan = "\n".join(line for (line,) in connection.execute("EXPLAIN EXECUTE asked('an id')"))
    assert "Index" in plan
    assert "Seq Scan" not in plan
