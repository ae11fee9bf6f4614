"""Backups: whole or not at all, while others write; restored only where nothing is lost by it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from app.cli import main
from app.domain.ids import LOCAL_USER_ID, new_id
from app.errors import MaintenanceError, StartupError
from app.store.maintenance import snapshot
from app.store.maintenance.backup import back_up
from app.store.maintenance.migrate import alembic_config
from app.store.maintenance.process_lock import claim_database
from app.store.maintenance.restore import restore
from testing.databases import PostgresServer, create_migrated_file, postgres_programs
from tests.app.store.test_copy import everything, fill
from tests.app.store.test_migrations import FIRST_VERSION, HEAD, connected

NOW = "2026-10-01 12:00:00"


def add_conversation(connection: sqlite3.Connection, title: str) -> None:
    """A conversation with one message: both or neither must be in a backup."""
    conversation = new_id()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO conversation (id, user_id, title, settings, created_at, updated_at) VALUES (?, ?, ?, '{}', ?, ?)",
        (conversation, LOCAL_USER_ID, title, NOW, NOW),
    )
    connection.execute(
        "INSERT INTO message (id, conversation_id, role, status, content, position, created_at) "
        "VALUES (?, ?, 'user', 'complete', ?, 0, ?)",
        (new_id(), conversation, title * 1000, NOW),
    )
    connection.execute("COMMIT")


def titles(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [title for (title,) in connection.execute("SELECT title FROM conversation ORDER BY title")]


def left_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with the conversation "kept", as a server that was killed has left it."""
    folder = tmp_path / "data"
    made = folder / "deskmate.db"
    create_migrated_file(made)
    with closing(snapshot.open_live(made)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        add_conversation(connection, "kept")
        for suffix in ("", "-wal"):
            shutil.copy(snapshot.beside(made, suffix), snapshot.beside(folder / "killed", suffix))
    for suffix in ("", "-wal"):
        snapshot.beside(folder / "killed", suffix).rename(snapshot.beside(made, suffix))
    return made


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def test_what_a_killed_server_left_beside_the_database_is_in_the_backup(file: Path, tmp_path: Path) -> None:
    assert snapshot.beside(file, "-wal").stat().st_size
    backup = back_up(url_of(file), tmp_path / "backups" / "here")
    assert backup.name.startswith(f"deskmate.db.{HEAD}.20")
    assert titles(backup) == ["kept"]
    assert left_in(backup.parent) == {backup.name}
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def test_while_a_server_writes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backup is of one moment: no message without its conversation, and all that was committed before."""
    monkeypatch.setattr(snapshot, "_PAGES", 5)  # many steps, each after one more write
    ended, once_more = threading.Event(), threading.Semaphore(0)
    written: list[str] = []

    def write() -> None:
        with closing(snapshot.open_live(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            while not ended.is_set():
                add_conversation(connection, f"{len(written):05}")
                written.append(f"{len(written):05}")
                once_more.release()

    with claim_database(url_of(file)):
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(3):
                before = ["kept", *written]
                shares: list[float] = []

                def step(share: float, shares: list[float] = shares) -> None:
                    assert not shares or share > shares[-1], "it began again"
                    shares.append(share)
                    for _ in range(len(written)):  # those that are counted already
                        once_more.acquire(blocking=False)
                    assert once_more.acquire(timeout=60)

                backup = tmp_path / f"{number}.backup"
                assert back_up(url_of(file), tmp_path, backup, step) == backup
                assert len(shares) > 5
                assert shares[-1] == 1.0
                found = titles(backup)
                assert set(found) >= set(before)
                with closing(sqlite3.connect(backup)) as connection:
                    assert connection.execute(
                        "SELECT count(*), count(DISTINCT conversation_id) FROM message"
                    ).fetchone() == (len(found), len(found))
        finally:
            ended.set()
            writer.join()


def test_a_backup_that_fails_leaves_nothing(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "there"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(MaintenanceError, match="No space left on device"):
            back_up(url_of(file), target)
    assert left_in(target) == set()
    with pytest.raises(MaintenanceError, match="no folder"):
        back_up(url_of(file), target, target / "missing" / "file")
    (target / "mine").write_text("my own")
    with pytest.raises(MaintenanceError, match="overwrites nothing"):
        back_up(url_of(file), target, target / "mine")
    assert (target / "mine").read_text() == "my own"


def test_a_damaged_database_gives_no_backup(file: Path, tmp_path: Path) -> None:
    damage(file)
    with pytest.raises(MaintenanceError, match=r"damaged|malformed"):
        back_up(url_of(file), tmp_path / "there")
    assert left_in(tmp_path / "there") == set()


def damage(file: Path) -> None:
    """Overwrite the rows of the messages' index: only a full check sees it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root, size = connection.execute(
            "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master WHERE name = ?",
            ("ix_message_conversation_id_position",),
        ).fetchone()
    pages = bytearray(file.read_bytes())
    begin = (root - 1) * size + size - 40
    pages[begin : begin + 20] = b"x" * 20
    file.write_bytes(pages)


def test_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(MaintenanceError, match="nothing to back up"):
        back_up(url_of(tmp_path / "deskmate.db"), tmp_path)
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(MaintenanceError, match="not a Deskmate database"):
        back_up(url_of(tmp_path / "other.db"), tmp_path)
    assert left_in(tmp_path) == {"other.db"}


def test_restoring_keeps_what_was_there(file: Path, tmp_path: Path) -> None:
    backup = back_up(url_of(file), tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        add_conversation(connection, "later")
        # The present database is in two files: a restore that took the second for the new one's would destroy it.
        for suffix in ("", "-wal"):
            shutil.copy(snapshot.beside(file, suffix), snapshot.beside(tmp_path / "two", suffix))
    for suffix in ("", "-wal"):
        snapshot.beside(tmp_path / "two", suffix).rename(snapshot.beside(file, suffix))
    file.chmod(0o640)
    with claim_database(url_of(file)):
        done = restore(url_of(file), backup)
    assert (done.revision, done.now) == (HEAD, HEAD)
    assert done.aside is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert left_in(file.parent) == {"deskmate.db", "deskmate.db.lock", done.aside.name}
    assert titles(file) == ["kept"]
    assert titles(done.aside) == ["kept", "later"]
    assert titles(backup) == ["kept"]


def test_restoring_where_there_is_no_database(file: Path, tmp_path: Path) -> None:
    backup = back_up(url_of(file), tmp_path)
    snapshot.beside(file, "-wal").touch()
    file.unlink()
    done = restore(url_of(file), backup)
    assert titles(file) == ["kept"]
    new = tmp_path / "new" / "deskmate.db"
    with claim_database(url_of(new)):
        assert restore(url_of(new), backup).aside is None
    assert titles(new) == ["kept"]
    assert done.aside is not None


def fill_and_index(url: str) -> None:
    """A history, and documents whose chunks words find."""
    fill(url, conversations=3)
    with connected(url) as connection:
        words = "to_tsvector('simple', 'heron')" if connection.dialect.name == "postgresql" else "'heron'"
        connection.execute(
            sa.text(
                "INSERT INTO kb_entry (chunk_id, title, heading, words) "
                f"SELECT id, 'birds', '', {words} FROM kb_chunk ORDER BY id LIMIT 1"
            )
        )


def found_by_words(url: str) -> list[str]:
    with connected(url) as connection:
        matches = (
            "words @@ to_tsquery('simple', 'heron')"
            if connection.dialect.name == "postgresql"
            else "id IN (SELECT rowid FROM kb_entry_fts WHERE kb_entry_fts MATCH 'words: heron')"
        )
        return list(connection.scalars(sa.text(f"SELECT chunk_id FROM kb_entry WHERE {matches}")))


def test_documents_sources_and_their_search_come_back(tmp_path: Path) -> None:
    url, new = create_migrated_file(tmp_path / "deskmate.db"), url_of(tmp_path / "new" / "deskmate.db")
    fill_and_index(url)
    before = everything(url)
    assert any(row["sources"] for row in before["message"].values())
    with claim_database(new):
        restore(new, back_up(url, tmp_path / "backups"))
    assert everything(new) == before
    assert found_by_words(new) == found_by_words(url) != []


@pytest.mark.usefixtures("tools")
def test_documents_sources_and_their_search_come_back_in_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    url, new = postgres.migrated(), postgres.empty()
    fill_and_index(url)
    restore(new, back_up(url, tmp_path / "backups"))
    assert everything(new) == everything(url)
    assert found_by_words(new) == found_by_words(url) != []
    for used in (url, new):
        postgres.drop(used)


def test_a_damaged_database_is_replaced_and_kept_as_it_lies_there(file: Path, tmp_path: Path) -> None:
    backup = back_up(url_of(file), tmp_path)
    file.write_bytes(b"not a database at all" * 100)
    snapshot.beside(file, "-wal").write_bytes(b"and its second file")
    done = restore(url_of(file), backup)
    assert done.aside is not None
    assert done.aside.read_bytes().startswith(b"not a database")
    assert snapshot.beside(done.aside, "-wal").read_bytes() == b"and its second file"
    assert left_in(file.parent) == {"deskmate.db", done.aside.name, f"{done.aside.name}-wal"}
    assert titles(file) == ["kept"]


def test_a_backup_in_two_files_is_restored_from_both(file: Path, tmp_path: Path) -> None:
    """Such as another server's database, copied by hand."""
    target = tmp_path / "new" / "deskmate.db"
    with claim_database(url_of(target)):
        restore(url_of(target), file)
    assert titles(target) == ["kept"]


def test_a_backup_that_cannot_be_upgraded_changes_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = back_up(url_of(file), tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        add_conversation(connection, "later")

    def fail(url: str, *, backup: bool) -> None:
        snapshot.beside(Path(str(sa.make_url(url).database)), "-wal").touch()
        raise StartupError("It cannot be upgraded.")

    monkeypatch.setattr("app.store.maintenance.restore.migrate", fail)
    with pytest.raises(StartupError):
        restore(url_of(file), backup)
    assert left_in(file.parent) == {"deskmate.db"}
    assert titles(file) == ["kept", "later"]


def test_an_older_backup_is_upgraded(tmp_path: Path) -> None:
    old = tmp_path / "old.backup"
    with connected(url_of(old)) as connection:
        command.upgrade(alembic_config(connection), "0001")
        for statement in FIRST_VERSION:
            connection.execute(sa.text(statement))
    target = tmp_path / "data" / "deskmate.db"
    with claim_database(url_of(target)):
        done = restore(url_of(target), old)
    assert (done.revision, done.now) == ("0001", HEAD)
    assert titles(target) == ["Old"]
    assert left_in(target.parent) == {"deskmate.db", "deskmate.db.lock"}


def test_what_is_no_backup_is_refused(file: Path, tmp_path: Path) -> None:
    backup = back_up(url_of(file), tmp_path)
    newer, other, letter, cut, damaged = (tmp_path / name for name in ("newer", "other", "letter", "cut", "damaged"))
    for copy in (newer, damaged):
        shutil.copy(backup, copy)
    damage(damaged)
    with closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
    letter.write_text("Dear Deskmate,")
    cut.write_bytes(backup.read_bytes()[: backup.stat().st_size // 2])
    before = file.read_bytes()
    for wrong, words in (
        (newer, "newer version.*9999"),
        (other, "other tables"),
        (letter, "not a Deskmate backup"),
        (cut, "malformed|damaged"),
        (damaged, "damaged"),
        (tmp_path / "missing", "No such file"),
        (tmp_path, "directory"),
        (file, "present database itself"),
    ):
        with pytest.raises(MaintenanceError, match=words):
            restore(url_of(file), wrong)
        assert file.read_bytes() == before, wrong
    assert left_in(file.parent) == {"deskmate.db"}


def test_a_restore_that_cannot_finish_changes_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = back_up(url_of(file), tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        add_conversation(connection, "later")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(MaintenanceError, match="No space left on device"):
            restore(url_of(file), backup)
    assert titles(file) == ["kept", "later"]
    assert not [name for name in left_in(file.parent) if "unfinished" in name]


KILLED = """
import os, pathlib, shutil, signal, sys
from app.store.maintenance.restore import restore
owner = {"os": os, "pathlib.Path": pathlib.Path, "shutil": shutil}[sys.argv[3]]
setattr(owner, sys.argv[4], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
restore(sys.argv[1], pathlib.Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name"), [("shutil", "copymode"), ("os", "link"), ("pathlib.Path", "rename")])
def test_a_restore_that_is_killed_changes_nothing(file: Path, tmp_path: Path, owner: str, name: str) -> None:
    """Before, while and after the present database gets its second name: it is the present one until the very end."""
    backup = back_up(url_of(file), tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        add_conversation(connection, "later")
    killed = subprocess.run([sys.executable, "-c", KILLED, url_of(file), backup, owner, name], check=False)
    assert killed.returncode == -9
    assert titles(file) == ["kept", "later"]
    done = restore(url_of(file), backup)
    assert titles(file) == ["kept"]
    assert done.aside is not None
    assert titles(done.aside) == ["kept", "later"]


@pytest.mark.slow
def test_a_database_that_is_open_is_not_replaced(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a server's, which has claimed it, nor another program's that reads it."""
    backup = back_up(url_of(file), tmp_path)
    holder = (
        "import sys\nfrom app.store.maintenance.process_lock import claim_database\n"
        "with claim_database(sys.argv[1]): print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, url_of(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "1\n"
        with pytest.raises(StartupError, match="Another Deskmate"), claim_database(url_of(file)):
            pass
        server.communicate("\n")
    monkeypatch.setattr(snapshot, "BUSY_TIMEOUT_MS", 10)
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM account").fetchall()
        with pytest.raises(MaintenanceError, match="Another program"):
            restore(url_of(file), backup)
    assert titles(file) == ["kept"]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pg_dump of the server's own version, or a later one, which is found first."""
    folder = postgres_programs()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def filled(postgres: PostgresServer) -> Iterator[str]:
    """A PostgreSQL database with the conversation "Old"."""
    url = postgres.migrated()
    with connected(url) as connection:
        for statement in FIRST_VERSION:
            connection.execute(sa.text(statement))
    yield url
    postgres.drop(url)


@pytest.mark.usefixtures("tools")
def test_postgresql_there_and_back(filled: str, postgres: PostgresServer, tmp_path: Path) -> None:
    backup = back_up(filled, tmp_path / "backups")
    assert f".{HEAD}.20" in backup.name
    assert left_in(backup.parent) == {backup.name}
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with pytest.raises(MaintenanceError, match="not empty"):
        restore(filled, backup)
    empty = postgres.empty()
    done = restore(empty, backup)
    assert (done.revision, done.now, done.aside) == (HEAD, HEAD, None)
    with connected(empty) as connection:
        command.check(alembic_config(connection))
        assert connection.execute(sa.text("SELECT title FROM conversation")).scalar_one() == "Old"
        assert connection.execute(sa.text("SELECT content FROM message ORDER BY position")).scalars().all() == [
            "Are you old?",
            "Yes.",
        ]
    postgres.drop(empty)


@pytest.mark.usefixtures("tools")
def test_an_older_backup_of_postgresql_is_upgraded(postgres: PostgresServer, tmp_path: Path) -> None:
    old, empty = postgres.empty(), postgres.empty()
    with connected(old) as connection:
        command.upgrade(alembic_config(connection), "0001")
        for statement in FIRST_VERSION:
            connection.execute(sa.text(statement))
    done = restore(empty, back_up(old, tmp_path))
    assert (done.revision, done.now) == ("0001", HEAD)
    with connected(empty) as connection:
        command.check(alembic_config(connection))
        assert connection.execute(sa.text("SELECT title FROM conversation")).scalar_one() == "Old"
    for url in (old, empty):
        postgres.drop(url)


@pytest.mark.usefixtures("tools")
def test_postgresql_refuses_what_is_no_backup(
    filled: str, postgres: PostgresServer, tmp_path: Path, file: Path
) -> None:
    backup = back_up(filled, tmp_path)
    with connected(filled) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    newer = back_up(filled, tmp_path)
    with connected(filled) as connection:
        connection.execute(sa.text("DROP TABLE turn CASCADE"))
    with pytest.raises(MaintenanceError, match="nothing to back up"):
        back_up(filled, tmp_path)
    cut = tmp_path / "cut"
    cut.write_bytes(backup.read_bytes()[:-200])
    empty = postgres.empty()
    for wrong, words in (
        (newer, "newer version.*9999"),
        (cut, "pg_restore failed"),
        (back_up(url_of(file), tmp_path), "SQLite.*db copy"),
    ):
        with pytest.raises(MaintenanceError, match=words):
            restore(empty, wrong)
        with connected(empty) as connection:
            assert sa.inspect(connection).get_table_names() == []
    with pytest.raises(MaintenanceError, match="PostgreSQL"):
        restore(url_of(file), backup)
    postgres.drop(empty)


def test_pg_dump_is_told_the_password_in_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str) -> None:
    """A pg_dump of our own, which tells how it was called and fails as one that is too old does."""
    program = tmp_path / "pg_dump"
    program.write_text(
        f'#!/bin/sh\nenv > {tmp_path}/env\necho "$@" > {tmp_path}/arguments\n'
        "echo 'pg_dump: error: aborting because of server version mismatch' >&2\n"
        "echo 'pg_dump: detail: server version: 19.1; pg_dump version: 15.3' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    url = sa.make_url(filled)
    url = url.set(password="p@ss word", query={**url.query, "sslmode": "disable", "keepalives": "1"})
    with pytest.raises(MaintenanceError) as raised:
        back_up(url.render_as_string(hide_password=False), tmp_path / "backups")
    assert raised.value.message == (
        "pg_dump failed: aborting because of server version mismatch; detail: server version: 19.1; pg_dump version: "
        "15.3. Install the client programs of the server's version, or a later one."
    )
    assert left_in(tmp_path / "backups") == set()
    assert "p@ss word" not in (arguments := (tmp_path / "arguments").read_text())
    assert f"dbname={url.database}" in arguments
    assert "keepalives=1" in arguments
    environment = (tmp_path / "env").read_text().splitlines()
    assert {"PGPASSWORD=p@ss word", "PGSSLMODE=disable", f"PGUSER={url.username}"} <= set(environment)


def test_a_dump_that_cannot_be_read_back_is_no_backup(
    tools: Path, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text(
        f'#!/bin/sh\n{tools}/pg_dump "$@" || exit 1\n'
        'for one; do case "$one" in --file=*) truncate -s -200 "${one#--file=}";; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MaintenanceError, match="pg_restore failed"):
        back_up(filled, tmp_path / "backups")
    assert left_in(tmp_path / "backups") == set()


def test_pg_dump_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MaintenanceError, match=r"pg_dump is not installed.*postgresql-client"):
        back_up(filled, tmp_path / "backups")


def test_the_commands(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main.main(["db", *arguments, "--data-dir", str(file.parent)])
        captured = capsys.readouterr()
        said = captured.err.splitlines()[-1] if ended.value.code else captured.out
        assert "Traceback" not in captured.err
        return int(ended.value.code or 0), said

    with claim_database(url_of(file)):  # as a server does
        code, said = run("backup")
        assert code == 0
        [backup] = file.parent.glob(f"deskmate.db.{HEAD}.*.backup")
        assert str(backup) in said
        code, said = run("restore", str(backup))
        assert (code, "Another Deskmate" in said) == (2, True)
    chosen = tmp_path / "chosen.backup"
    assert run("backup", "--to", str(chosen))[0] == 0
    assert titles(chosen) == ["kept"]
    assert run("backup", "--to", str(chosen))[0] == 2
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        add_conversation(connection, "later")
    code, said = run("restore", str(backup))
    assert code == 0
    [aside] = file.parent.glob("*.replaced")
    assert str(aside) in said
    assert titles(file) == ["kept"]
    assert run("check")[0] == 0
    code, said = run("restore", str(tmp_path / "missing"))
    assert (code, "No such file" in said) == (2, True)
