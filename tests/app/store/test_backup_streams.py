"""Backups through pipes: whole before the first byte leaves, nothing left behind on either side."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import MaintenanceError
from app.store.maintenance import snapshot
from app.store.maintenance.backup_streams import back_up_into, backup_from
from testing.databases import create_migrated_file
from tests.app.store.test_backup import add_conversation, left_in, titles, url_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with the conversation "kept"."""
    made = tmp_path / "data" / "deskmate.db"
    create_migrated_file(made)
    with closing(snapshot.open_live(made)) as connection:
        add_conversation(connection, "kept")
    return made


def run(*arguments: str, data: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "APP_DATA_DIR": str(data)}
    return subprocess.run([sys.executable, "-m", "app", *arguments], input=given, capture_output=True, env=environment)


@pytest.mark.slow
def test_there_and_back_by_commands(file: Path, tmp_path: Path) -> None:
    backup = run("db", "backup", "--to", "-", data=file.parent)
    assert backup.returncode == 0, backup.stderr
    assert backup.stdout.startswith(b"SQLite format 3\0"), "the backup and nothing else"
    other = tmp_path / "other"
    restored = run("db", "restore", "-", data=other, given=backup.stdout)
    assert restored.returncode == 0, restored.stderr
    assert restored.stdout == b"The backup was restored.\n"
    assert titles(other / "deskmate.db") == ["kept"]
    assert left_in(other) <= {"deskmate.db", "deskmate.db.lock"}
    assert not list(file.parent.glob("backup-*"))


def test_nothing_leaves_where_the_backup_fails(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with pytest.raises(MaintenanceError, match="nothing to back up"):
        back_up_into(stream, url_of(tmp_path / "none.db"), tmp_path / "new")
    assert stream.getvalue() == b""
    assert left_in(tmp_path / "new") == set()


class Full(io.BytesIO):
    """A pipe that is closed on the other side, or a full disk behind it."""

    def write(self, _data: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_that_goes_away_is_told_about(file: Path) -> None:
    before = left_in(file.parent)
    with pytest.raises(MaintenanceError, match=r"Broken pipe.*incomplete"):
        back_up_into(Full(), url_of(file), file.parent)
    assert left_in(file.parent) == before


@pytest.mark.slow
def test_nothing_is_restored_from_nothing(file: Path) -> None:
    restored = run("db", "restore", "-", data=file.parent)
    assert restored.returncode == 2
    assert b"Nothing came through the standard input" in restored.stderr
    assert titles(file) == ["kept"]


@pytest.mark.slow
def test_what_is_no_backup_is_refused(file: Path) -> None:
    before = left_in(file.parent) | {"deskmate.db.lock"}
    restored = run("db", "restore", "-", data=file.parent, given=b"hello, this is some text")
    assert restored.returncode == 2
    assert b"is not a Deskmate backup" in restored.stderr
    assert b"Traceback" not in restored.stderr
    assert titles(file) == ["kept"]
    assert left_in(file.parent) == before


class Screen(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_screens_are_no_place_for_backups(file: Path, tmp_path: Path) -> None:
    with pytest.raises(MaintenanceError, match="> FILE"):
        back_up_into(Screen(), url_of(file), file.parent)
    with pytest.raises(MaintenanceError, match="< FILE"), backup_from(Screen(), tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(file: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("closed").mkdir(mode=0o500)
    with pytest.raises(MaintenanceError, match="APP_DATA_DIR"):
        back_up_into(io.BytesIO(), url_of(file), tmp_path / "closed" / "inside")


def test_a_backup_keeps_what_is_in_the_log_too(file: Path) -> None:
    stream = io.BytesIO()
    with closing(snapshot.open_live(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        add_conversation(connection, "in the log")
        back_up_into(stream, url_of(file), file.parent)
    copy = file.parent / "copy"
    copy.write_bytes(stream.getvalue())
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM conversation").fetchone() == (2,)
