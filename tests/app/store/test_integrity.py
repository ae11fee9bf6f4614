"""``deskmate db check``: what is wrong with a history is said in one sentence of each kind, and ends with 2."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.cli import main
from app.domain.ids import LOCAL_USER_ID
from app.settings import AppSettings
from app.store.maintenance.integrity import broken_rules
from testing.databases import create_migrated_file
from tests.app.store.test_copy import fill
from tests.app.store.test_migrations import (
    CONVERSATION,
    FIRST_VERSION,
    QUESTION,
    REPLY,
    TURN,
    connected,
)

OTHER, ROOT = CONVERSATION[:-1] + "8", CONVERSATION[:-1] + "9"
ANOTHER_CONVERSATION = (
    f"INSERT INTO conversation (id, user_id, title, settings, tip_message_id, created_at, updated_at) "
    f"VALUES ('{OTHER}', '{LOCAL_USER_ID}', 'Other', '{{}}', '{ROOT}', '2026-10-01', '2026-10-01')",
    f"INSERT INTO message (id, conversation_id, role, status, content, position, created_at) "
    f"VALUES ('{ROOT}', '{OTHER}', 'user', 'complete', 'Hello', 0, '2026-10-01')",
)

#: What is done to a whole history, and what is said then.
DAMAGE = (
    (f"UPDATE message SET parent_id = '{ROOT}' WHERE id = '{REPLY}'", f"1 of the messages have .*{REPLY}"),
    (f"UPDATE message SET position = 5 WHERE id = '{REPLY}'", f"1 of the messages have .*{REPLY}"),
    (f"UPDATE message SET parent_id = NULL WHERE id = '{REPLY}'", f"1 of the messages have .*{REPLY}"),
    (f"UPDATE message SET position = position + 1 WHERE conversation_id = '{OTHER}'", f"1 of the messages .*{ROOT}"),
    (f"UPDATE conversation SET tip_message_id = '{ROOT}'", f"1 of the conversations show .*{CONVERSATION}"),
    (f"UPDATE conversation SET tip_message_id = '{OTHER}'", f"2 of the conversations show .*{CONVERSATION}"),
    (f"UPDATE turn SET message_id = '{QUESTION}'", f"1 of the turns .*{TURN}"),
    (f"UPDATE turn SET conversation_id = '{OTHER}'", f"1 of the turns .*{TURN}"),
)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE kb_version SET text = NULL", "2 of the documents have lost the version that is searched"),
        ("DELETE FROM kb_version WHERE version = 1", "2 of the documents have lost the version that is searched"),
        (
            "UPDATE kb_chunk SET version = 2",
            "2 of the chunks are neither of the version that is searched nor to be deleted",
        ),
    ],
)
def test_damage_of_documents_is_seen(
    database_url: str | None, settings: AppSettings, statement: str, said: str
) -> None:
    fill(settings.resolved_database_url, conversations=1)
    with connected(settings.resolved_database_url) as connection:
        assert broken_rules(connection) == []
        connection.execute(sa.text(statement))
        assert [sentence.partition(" (")[0] for sentence in broken_rules(connection)] == [said]


AGENTS_WORD = """INSERT INTO message (id, conversation_id, parent_id, role, status, content, position, created_at,
    author_kind) SELECT 'x' || substr(id, 2), conversation_id, id, 'assistant', 'complete', 'y', position + 1,
    created_at, 'agent'
    FROM message WHERE author_kind = 'contact'"""
BOTS_WORD = AGENTS_WORD.replace("'x'", "'y'").replace("'agent'", "'bot'").replace("'contact'", "'agent'")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            f"UPDATE conversation SET user_id = '{LOCAL_USER_ID}'",
            "2 of the cases have another conversation than their inbox's",
        ),
        ("DELETE FROM support_case", "2 of the conversations of inboxes have no case"),
        ("UPDATE support_case SET status = 'open'", "2 of the cases have times that are not those of their status"),
        ("DELETE FROM case_event WHERE sequence = 1", "2 of the cases lack some of their events"),
        ("DELETE FROM case_event", "2 of the cases lack some of their events"),
        (BOTS_WORD, "2 of the bot's messages follow a person's"),
    ],
)
def test_damage_of_cases_is_seen(database_url: str | None, settings: AppSettings, statement: str, said: str) -> None:
    fill(settings.resolved_database_url, conversations=1)
    with connected(settings.resolved_database_url) as connection:
        connection.execute(sa.text(AGENTS_WORD))
        assert broken_rules(connection) == []
        connection.execute(sa.text(statement))
        assert [sentence.partition(" (")[0] for sentence in broken_rules(connection)] == [said]


@pytest.fixture
def url(database_url: str | None, settings: AppSettings) -> str:
    url = settings.resolved_database_url
    with connected(url) as connection:
        for statement in (*FIRST_VERSION, *ANOTHER_CONVERSATION):
            connection.execute(sa.text(statement))
    return url


def test_every_kind_of_damage_is_seen(url: str) -> None:
    with connected(url) as connection:
        assert broken_rules(connection) == []
        for statement, words in DAMAGE:
            damage = connection.begin_nested()
            connection.execute(sa.text(statement))
            [sentence] = broken_rules(connection)
            assert re.search(words, sentence), (statement, sentence)
            damage.rollback()
        assert broken_rules(connection) == []


def test_rows_whose_owner_is_gone(tmp_path: Path) -> None:
    """PostgreSQL does not let that happen; SQLite's foreign keys bind only who asks for them."""
    url = create_migrated_file(tmp_path / "deskmate.db")
    fill(url, 3)
    with closing(sqlite3.connect(tmp_path / "deskmate.db")) as connection, connection:
        connection.execute("DELETE FROM account WHERE name = 'Someone'")
        connection.execute("DELETE FROM conversation WHERE archived")
    with connected(url) as opened:
        sentences = broken_rules(opened)
    assert len(sentences) == 2
    assert "1 of the conversations that messages belong to are missing" in sentences[0]
    assert "2 of the conversations have no owner" in sentences[1]


def test_a_full_history_is_whole(database_url: str | None, settings: AppSettings) -> None:
    url = settings.resolved_database_url
    fill(url)
    with connected(url) as connection:
        assert broken_rules(connection) == []


def test_the_command_says_what_is_wrong(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["db", "check", "--database-url", url]
    with pytest.raises(SystemExit) as ended:
        main.main(command)
    assert not ended.value.code
    assert "in order" in capsys.readouterr().out
    with connected(url) as connection:
        for statement, _ in (DAMAGE[0], DAMAGE[5]):
            connection.execute(sa.text(statement))
    with pytest.raises(SystemExit) as ended:
        main.main(command)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(r"damaged\. 1 of the messages .*\. 2 of the conversations .*\. Restore an earlier backup", line)
    assert len(line) < 600


def test_there_is_no_database_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["db", "check", "--data-dir", str(tmp_path / "data")])
    assert not ended.value.code
    assert not (tmp_path / "data").exists()
