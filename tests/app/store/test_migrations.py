"""The database's own life: made, upgraded from a backup, refused when it is newer or not ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from app.domain.ids import LOCAL_USER_ID
from app.errors import StartupError
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.database import postgres_engine, sqlite_engine
from app.store.maintenance import migrate as migration
from app.store.maintenance.migrate import alembic_config, migrate, sqlite_file
from app.store.maintenance.process_lock import claim_database
from testing.databases import PostgresServer
from testing.fake_engine import FakeEngine

SCRIPTS = ScriptDirectory.from_config(alembic_config())
HEAD = SCRIPTS.get_current_head()

BROKEN = f'''
"""A migration that fails half way."""
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "next", "{HEAD}", None, None
def upgrade():
    op.add_column("conversation", sa.Column("half", sa.Text()))
    op.execute("INSERT INTO no_such_table VALUES (1)")
'''
WORKING = BROKEN.replace('    op.execute("INSERT INTO no_such_table VALUES (1)")\n', "")


CONVERSATION, QUESTION, REPLY, TURN = (f"0198c000-0000-7000-8000-00000000000{number}" for number in range(4))
NOW = "2026-10-01 12:00:00"
FIRST_VERSION = (
    f"""INSERT INTO conversation (id, user_id, title, settings, tip_message_id, created_at, updated_at)
        VALUES ('{CONVERSATION}', '{LOCAL_USER_ID}', 'Old', '{{}}', '{REPLY}', '{NOW}', '{NOW}')""",
    f"""INSERT INTO message (id, conversation_id, parent_id, role, status, content, position, created_at)
        VALUES ('{QUESTION}', '{CONVERSATION}', NULL, 'user', 'complete', 'Are you old?', 0, '{NOW}')""",
    f"""INSERT INTO message (id, conversation_id, parent_id, role, status, content, position, created_at)
        VALUES ('{REPLY}', '{CONVERSATION}', '{QUESTION}', 'assistant', 'complete', 'Yes.', 1, '{NOW}')""",
    f"""INSERT INTO turn (id, conversation_id, message_id, status, model, params, owner, created_at, heartbeat_at,
        checkpoint_offset, finish_reason, prompt_tokens, completion_tokens) VALUES ('{TURN}', '{CONVERSATION}',
        '{REPLY}', 'complete', 'guide', '{{}}', '{TURN}', '{NOW}', '{NOW}', 4, 'stop', 7, 2)""",
)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'deskmate.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.empty()


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sqlite_engine(url, connections=1) if sqlite_file(url) else postgres_engine(url, connections=1)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def more_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's migrations in a folder where a test may add one."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for file in (migration.MIGRATIONS / "env.py", *(migration.MIGRATIONS / "versions").glob("*.py")):
        (folder / file.relative_to(migration.MIGRATIONS)).write_text(file.read_text())
    monkeypatch.setattr(migration, "MIGRATIONS", folder)
    return folder / "versions"


def test_a_new_database_is_what_the_models_say_and_has_the_local_user(empty_url: str) -> None:
    done = migrate(empty_url)
    assert (done.before, done.backup) == (None, None)
    with connected(empty_url) as connection:
        command.check(alembic_config(connection))  # raises where models and migrations differ
        assert connection.execute(sa.text("SELECT id FROM account")).scalar_one() == LOCAL_USER_ID
    assert migrate(empty_url).before == done.after  # again: nothing to do


def test_it_can_be_taken_back_and_made_again(empty_url: str) -> None:
    migrate(empty_url)
    with connected(empty_url) as connection:
        command.downgrade(alembic_config(connection), "base")
        assert set(sa.inspect(connection).get_table_names()) <= {"alembic_version"}
    migrate(empty_url)


def test_an_upgrade_keeps_what_is_there_and_leaves_a_backup(tmp_path: Path, more_migrations: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    migrate(url)
    with connected(url) as connection:
        connection.execute(sa.text("UPDATE account SET name = 'kept'"))
    (more_migrations / "next_half.py").write_text(WORKING)
    done = migrate(url)
    assert (done.before, done.after) == (HEAD, "next")
    assert done.backup is not None
    for file, columns in ((tmp_path / "deskmate.db", True), (done.backup, False)):
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT name FROM account").fetchone() == ("kept",)
            found = {row[1] for row in connection.execute("PRAGMA table_info(conversation)")}
            assert ("half" in found) is columns
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


EARLIER = [revision.revision for revision in SCRIPTS.walk_revisions()][:0:-1]
QUICK = (EARLIER[0], *EARLIER[-3:])  # through all migrations, and through the newest


@pytest.mark.parametrize(
    ("empty_url", "version"),
    [
        *(("sqlite", version) for version in QUICK),
        ("postgresql", EARLIER[0]),
        *(pytest.param("sqlite", version, marks=pytest.mark.full) for version in EARLIER if version not in QUICK),
        *(pytest.param("postgresql", version, marks=pytest.mark.full) for version in EARLIER[1:]),
    ],
    indirect=["empty_url"],
)
async def test_conversations_of_earlier_versions_go_on(empty_url: str, tmp_path: Path, version: str) -> None:
    """Written by an earlier version; listed, found and answered by this one. Its replies have no token ids yet."""
    with connected(empty_url) as connection:
        command.upgrade(alembic_config(connection), version)
        for statement in FIRST_VERSION:
            connection.execute(sa.text(statement))
    settings = AppSettings(data_dir=tmp_path, database_url=empty_url, _env_file=None)
    engine = FakeEngine()
    services = await Services.open(settings, engine)
    try:
        [conversation] = (await services.conversations.list(LOCAL_USER_ID)).items
        assert (await services.conversations.list(LOCAL_USER_ID, query="old")).items[0].id == conversation.id
        view = await services.conversations.get(LOCAL_USER_ID, conversation.id)
        assert [message.content for message in view.messages] == ["Are you old?", "Yes."]
        reply = view.messages[1]
        assert reply.stats is not None
        assert (reply.stats.prompt_tokens, reply.omitted_messages, reply.context_length) == (7, 0, None)
        ref = await services.turns.start(LOCAL_USER_ID, text="Still there?", conversation_id=conversation.id)
        async for _ in services.turns.events(LOCAL_USER_ID, ref.turn_id):
            pass
        assert engine.calls[0][0] == [
            {"role": "user", "content": "Are you old?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "Still there?"},
        ]
    finally:
        await services.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty_url: str, more_migrations: Path) -> None:
    migrate(empty_url)
    (more_migrations / "next_half.py").write_text(BROKEN)
    with pytest.raises(StartupError, match="no_such_table"):
        migrate(empty_url)
    with connected(empty_url) as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == HEAD
        assert "half" not in {column["name"] for column in sa.inspect(connection).get_columns("conversation")}


def test_a_backup_that_cannot_be_written_stops_the_upgrade(
    tmp_path: Path, more_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    migrate(url)
    (more_migrations / "next_half.py").write_text(WORKING)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StartupError, match=r"No space left on device.*Nothing was changed"):
        migrate(url)
    monkeypatch.undo()
    with connected(url) as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == HEAD
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_database_newer_than_the_program_is_refused_and_untouched(empty_url: str) -> None:
    migrate(empty_url)
    with connected(empty_url) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StartupError, match=rf"newer version.*9999.*{HEAD}"):
        migrate(empty_url)
    with connected(empty_url) as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"


def test_another_programs_database_is_refused(empty_url: str) -> None:
    with connected(empty_url) as connection:
        connection.execute(sa.text("CREATE TABLE invoices (id INTEGER)"))
    with pytest.raises(StartupError, match="another program"):
        migrate(empty_url)
    with connected(empty_url) as connection:
        assert sa.inspect(connection).get_table_names() == ["invoices"]


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deskmate.db"
    file.write_bytes(b"Dear diary, " * 500)
    with pytest.raises(StartupError, match=r"deskmate\.db cannot be opened: file is not a database"):
        migrate(f"sqlite:///{file}")
    assert file.read_bytes() == b"Dear diary, " * 500


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://localhost/x", "APP_DATABASE_URL"),
        ("not a url", "APP_DATABASE_URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("postgresql+psycopg://user:hunter2@127.0.0.1:1/x", "127.0.0.1:1/x"),
    ],
)
def test_urls_that_lead_nowhere_are_refused_without_telling_passwords(url: str, says: str) -> None:
    with pytest.raises(StartupError, match=says) as refusal:
        migrate(url)
    assert "hunter2" not in refusal.value.message


async def test_a_data_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("I am not a folder")
    for folder in (in_the_way, in_the_way / "data", Path("/proc/deskmate")):
        with pytest.raises(StartupError, match=r"cannot be written.*APP_DATA_DIR"):
            await Services.open(AppSettings(_env_file=None, data_dir=folder), FakeEngine())


async def test_a_start_that_fails_lets_go_of_the_folder(tmp_path: Path) -> None:
    settings = AppSettings(_env_file=None, data_dir=tmp_path)
    (tmp_path / "deskmate.db").write_bytes(b"x" * 5000)
    with pytest.raises(StartupError):
        await Services.open(settings, FakeEngine())
    (tmp_path / "deskmate.db").unlink()
    await (await Services.open(settings, FakeEngine())).close()


@pytest.mark.slow
def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom app.store.maintenance.process_lock import claim_database\n"
            "with claim_database(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()",
            url,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StartupError, match=f"process {holder.pid}"), claim_database(url):
        pytest.fail("claimed twice")
    holder.kill()
    holder.communicate()
    with claim_database(url):
        pass
