"""A history moved to another database: all of it, though it was cut short; nothing of anybody else's touched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.cli import main
from app.domain.ids import LOCAL_USER_ID, new_id
from app.errors import MaintenanceError, StartupError
from app.store.db.case_models import (
    CaseAttachment,
    CaseEvent,
    Contact,
    Inbox,
    InboxMember,
    ReplyMail,
    Satisfaction,
    SupportCase,
    VisitorToken,
    Webhook,
    WebhookDelivery,
)
from app.store.db.database import Database
from app.store.db.desk_models import Feedback, ReplyDraft, Review, TemplateVersion
from app.store.db.knowledge_models import (
    KNOWLEDGE_COLLECTION_ID,
    Article,
    Chunk,
    Collection,
    CollectionMember,
    Document,
    DocumentVersion,
    Gap,
    Question,
)
from app.store.db.models import (
    Account,
    AuditEvent,
    Base,
    Conversation,
    ConversationTag,
    Folder,
    Message,
    SavedPreset,
    SearchEntry,
    TokenUse,
    Turn,
)
from app.store.db.response_models import StoredResponse
from app.store.db.sign_in_models import ApiKey, ExternalIdentity, Invitation, LoginSession
from app.store.maintenance import copy as copying
from app.store.maintenance import row_comparison
from app.store.maintenance.copy import CopyResult, copy_history
from app.store.maintenance.migrate import migrate
from app.store.maintenance.process_lock import claim_database
from app.store.maintenance.row_comparison import DERIVED, compared_tables
from testing.databases import PostgresServer, create_migrated_file
from testing.knowledge import passage
from tests.app.store.test_migrations import connected

#: Their rows belong to no conversation.
CASES = (Inbox, InboxMember, Contact, VisitorToken, Webhook, WebhookDelivery)
KNOWLEDGE = (Collection, CollectionMember, Article, Question, Document, DocumentVersion, Chunk)
NO_CONVERSATIONS = (
    *(
        Account,
        LoginSession,
        Invitation,
        ApiKey,
        TokenUse,
        AuditEvent,
        TemplateVersion,
        StoredResponse,
        ExternalIdentity,
        SavedPreset,
        Folder,
    ),
    *KNOWLEDGE,
    *CASES,
)
TABLES = (
    *(*NO_CONVERSATIONS, Conversation, ConversationTag, Message, Turn, Feedback, Review, Gap, ReplyDraft),
    *(SupportCase, CaseEvent, Satisfaction, CaseAttachment, ReplyMail),
)
BEGIN = datetime(2026, 10, 1, 12, 0, 0, 123456, tzinfo=UTC)
CONVERSATIONS = 11
CASE_NUMBER = 2


@dataclass
class Databases:
    """Makes databases of one kind after another."""

    folder: Path
    postgres: PostgresServer | None

    def new(self) -> str:
        if self.postgres is not None:
            return self.postgres.empty()
        return f"sqlite:///{self.folder / new_id()}.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def targets(request: pytest.FixtureRequest, tmp_path: Path) -> Databases:
    return Databases(tmp_path, request.getfixturevalue("postgres") if request.param == "postgresql" else None)


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = create_migrated_file(tmp_path / "deskmate.db")
    fill(url)
    return url


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CONVERSATIONS_AT_ONCE", 2)
    for module in (copying, row_comparison):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)


def fill(url: str, conversations: int = CONVERSATIONS) -> None:
    """A history with everything that can be stored in it: two people, branches, tags, a running reply."""
    with connected(url) as connection, Session(connection) as session:
        session.execute(
            sa.update(Account)
            .where(Account.id == LOCAL_USER_ID)
            .values(name="Someone", created_at=BEGIN - timedelta(days=9))
        )
        other = new_id()
        session.add(Account(id=other, name="Söme öne élse", role="viewer", password_hash="$argon2", created_at=BEGIN))
        session.flush()
        _add_people(session, other)
        if conversations:
            _add_cases(session, other)
        for number in range(conversations):
            now = BEGIN + timedelta(minutes=number)
            conversation = Conversation(
                id=new_id(),
                user_id=(LOCAL_USER_ID, other)[number % 3 == 2],
                title=f"Größe {number} 日本 \\ ' \" 🙂\n",
                title_by="person",
                pinned=number == 1,
                archived=number == 2,
                unread=number == 3,
                imported_from=f"chatgpt {number}" if number % 2 else None,
                indexed=True,
                settings={"temperature": 0.1 + 0.2, "stop": ["\0", "ü"], "on": True, "one": 1},
                created_at=now,
                updated_at=now + timedelta(microseconds=1),
            )
            session.add(conversation)
            session.flush()
            session.add(SearchEntry(conversation_id=conversation.id, words=_words(connection, "größe")))
            for tag in ("a-b", "ab", "B", "ä", "z")[: number % 6]:
                session.add(ConversationTag(conversation_id=conversation.id, tag=tag))
            parents: list[str | None] = [None]
            # In every other conversation children have smaller ids than their parents, as imports may.
            unused = sorted((new_id() for _ in range(number + 1)), reverse=number % 2 == 0)
            for position in range(number):  # the first conversation is empty, the last ones are long
                ids = [unused.pop() for _ in range(2 if position == 1 else 1)]
                for id in ids:
                    _add_message(session, conversation, id, parents[-1], position, number)
                parents.append(ids[0])
            conversation.tip_message_id = parents[-1]
        session.flush()


def _add_people(session: Session, user_id: str) -> None:
    moments = {"created_at": BEGIN, "expires_at": BEGIN}
    session.add(
        LoginSession(
            id=new_id(), user_id=user_id, token_hash="a", last_seen_at=BEGIN, user_agent="é", address="::1", **moments
        )
    )
    session.add(Invitation(id=new_id(), purpose="reset", token_hash="b", role="agent", user_id=user_id, **moments))
    session.add(
        ApiKey(id=new_id(), user_id=user_id, name="é", token_hash="c", beginning="dm_", scopes="chat", **moments)
    )
    values = {"temperature": 0.1 + 0.2, "top_k": 0}
    session.add(Folder(id=new_id(), user_id=user_id, name="wärmer", created_at=BEGIN))
    session.add(SavedPreset(id=new_id(), user_id=user_id, name="wärmer", settings=values, created_at=BEGIN))
    session.add(ExternalIdentity(issuer="https://é", subject="1", user_id=user_id, label="ü", created_at=BEGIN))
    for number in range(4):
        response = StoredResponse(
            id=new_id(), user_id=user_id, thread_id=new_id(), previous_id=new_id() if number else None, created_at=BEGIN
        )
        response.input = [{"type": "message", "text": "ü \0 \ud7ff 🙂\n", "one": 1, "on": True, "large": 10**30}]
        response.body = {"id": "resp_1", "temperature": 0.1 + 0.2, "number": 1.0}
        session.add(response)
    session.add(TokenUse(user_id=user_id, day="2026-10-01", tokens=2**40))
    session.add(AuditEvent(id=new_id(), at=BEGIN, actor_id=None, action="signed_in", details={"one": 1, "on": True}))
    for version in (1, 2, 10):  # which are numbers: no text is between 1 and 2
        session.add(
            TemplateVersion(
                kind="canned",
                name="sölved",
                version=version,
                title="é",
                description="…",
                variables=[{"name": "x", "description": "ü", "default": None}],
                recommended={"temperature": 0.1 + 0.2},
                min_parameters=10**15 if version == 2 else None,
                body="{{ x }}\n",
                removed=version == 10,
                author_id=user_id if version == 2 else None,
                created_at=BEGIN,
            )
        )
    _add_knowledge(session, user_id)


def _add_knowledge(session: Session, user_id: str) -> None:
    session.add(Collection(id=(collection := new_id()), name="Größen", everyone=False, revision=3, created_at=BEGIN))
    session.flush()
    session.add(CollectionMember(collection_id=collection, user_id=user_id, may_edit=True))
    moments = {"created_at": BEGIN, "updated_at": BEGIN + timedelta(days=1)}
    session.add(
        Question(
            id=new_id(),
            collection_id=collection,
            author_id=user_id,
            question="é?",
            answer="ü 🙂",
            document="größen.md",
            created_at=BEGIN,
        )
    )
    session.add(
        Article(id=new_id(), collection_id=collection, author_id=user_id, title="é", body="## ü 🙂\n", **moments)
    )
    for into in (collection, KNOWLEDGE_COLLECTION_ID):
        document = Document(
            id=new_id(),
            collection_id=into,
            name="größen.md",
            title="Größen",
            kind="markdown",
            source="upload",
            state="waiting",
            progress=0.25,
            version=1,
            newest=2,
            created_at=BEGIN,
            updated_at=BEGIN,
        )
        session.add(document)
        session.flush()
        for version in (1, 2):
            session.add(
                DocumentVersion(
                    document_id=document.id,
                    version=version,
                    content_hash="0" * 64,
                    size=5,
                    title="Größen",
                    text="Größe 🙂" if version == 1 else None,
                    raw=b"\0\xff" if version == 2 else None,
                    created_by=user_id,
                    created_at=BEGIN,
                )
            )
        session.flush()
        session.add(
            Chunk(
                id=new_id(),
                document_id=document.id,
                collection_id=into,
                version=1,
                ordinal=0,
                heading="Größen",
                start=0,
                end=7,
                tokens=3,
                indexed=True,
                vector=b"\0\1",
                vector_of="encoder",
            )
        )


def _add_cases(session: Session, user_id: str) -> None:
    """An inbox with all that it can hold, and two cases, one part of the other, which is copied later."""
    owner, inbox_id, contact_id = new_id(), new_id(), new_id()
    session.add(Account(id=owner, name=f"inbox {inbox_id}", kind="inbox", created_at=BEGIN))
    session.flush()
    session.add(
        Inbox(
            id=inbox_id,
            user_id=owner,
            name="Größen",
            kind="widget",
            token="t",
            secret="s",
            previous_secret="p",
            previous_secret_until=BEGIN,
            allowed_origins=["https://shop.example"],
            time_zone="Europe/Berlin",
            opening_hours=[{"day": 0, "from": "09:00", "to": "17:00"}],
            greeting="Grüß Gott 🙂",
            collections=[KNOWLEDGE_COLLECTION_ID],
            bot=True,
            created_at=BEGIN,
        )
    )
    session.flush()
    session.add(InboxMember(inbox_id=inbox_id, user_id=user_id))
    moments = {"created_at": BEGIN, "last_seen_at": BEGIN + timedelta(days=1)}
    session.add(Contact(id=contact_id, inbox_id=inbox_id, verified=True, external_id="é", name="Jürgen", **moments))
    session.add(
        Webhook(id=(webhook := new_id()), url="https://x", secret="s", events=["é"], enabled=True, created_at=BEGIN)
    )
    session.flush()
    session.add(VisitorToken(token_hash="h", contact_id=contact_id, expires_at=BEGIN, **moments))
    session.add(
        WebhookDelivery(
            id=new_id(),
            webhook_id=webhook,
            event_id=new_id(),
            event="case.created",
            case_id=new_id(),
            payload={"text": "ü 🙂", "one": 1.0},
            status="pending",
            attempts=2,
            next_attempt_at=BEGIN,
            created_at=BEGIN,
        )
    )
    first, second = new_id(), new_id()
    for id in (first, second):
        _add_case(session, id, owner, inbox_id, contact_id, user_id, second if id == first else None)


def _add_case(
    session: Session, id: str, owner: str, inbox_id: str, contact_id: str, user_id: str, merged_into: str | None
) -> None:
    moments = {"created_at": BEGIN, "updated_at": BEGIN}
    session.add(Conversation(id=id, user_id=owner, title="é", settings={}, indexed=True, **moments))
    session.flush()
    message = Message(
        id=new_id(),
        conversation_id=id,
        role="user",
        status="complete",
        content="Größe?",
        position=0,
        created_at=BEGIN,
        author_kind="contact",
        author_id=contact_id,
        client_id="é",
    )
    session.add(message)
    session.flush()
    session.get_one(Conversation, id).tip_message_id = message.id
    session.add(
        SupportCase(
            id=id,
            inbox_id=inbox_id,
            contact_id=contact_id,
            status="resolved",
            priority="high",
            assignee_id=user_id,
            subject="é",
            preview="Größe?",
            epoch=3,
            revision=4,
            bot_from=0,
            handed_off_at=BEGIN,
            first_reply_at=BEGIN,
            resolved_at=BEGIN,
            merged_into=merged_into,
            **moments,
        )
    )
    session.flush()
    for sequence in (1, 2):
        session.add(
            CaseEvent(
                id=new_id(),
                case_id=id,
                sequence=sequence,
                inbox_id=inbox_id,
                kind="created",
                actor_kind="contact",
                actor_id=contact_id,
                details={"bot": True, "waited_s": 1.0},
                at=BEGIN,
            )
        )
    session.add(Satisfaction(case_id=id, score=5, comment="Grüße 🙂", **moments))
    session.add(
        ReplyMail(
            message_id=message.id,
            case_id=id,
            mail_id=new_id(),
            status="pending",
            attempts=1,
            next_attempt_at=BEGIN,
            error="Größe",
            created_at=BEGIN,
        )
    )
    session.add(
        CaseAttachment(
            id=new_id(),
            contact_id=contact_id,
            case_id=id,
            message_id=message.id,
            name="größe.png",
            type="image/png",
            size=2,
            content=b"\0\xff",
            created_at=BEGIN,
        )
    )


def _words(connection: sa.Connection, word: str) -> Any:
    return word if connection.dialect.name == "sqlite" else sa.func.to_tsvector("simple", word)


def _add_message(
    session: Session, conversation: Conversation, id: str, parent: str | None, position: int, number: int
) -> None:
    running = number == CONVERSATIONS - 1 and position == number - 1
    reply = position % 2 == 1 or running
    session.add(
        Message(
            id=id,
            conversation_id=conversation.id,
            parent_id=parent,
            role="assistant" if reply else "user",
            status="streaming" if running else "complete",
            content=f"{position} \r\n \t é é 👩‍👩‍👧 {'x' * 3000 if position == 5 else ''}",
            token_ids=(0, -1, 2**31 - 1, position) if reply and not running else None,
            sources=(passage("Größe 🙂 [1] \r\n", score=0.1 + 0.2), passage("", 2)) if reply else None,
            position=position,
            created_at=conversation.created_at + timedelta(seconds=position),
            indexed=position % 2 == 0,
            deletion=new_id() if number == 7 and position == 6 else None,
        )
    )
    session.flush()
    if reply:
        session.add(
            Turn(
                id=new_id(),
                conversation_id=conversation.id,
                message_id=id,
                status="running" if running else "complete",
                model="guide",
                params={"seed": 2**53 + 1, "nothing": None},
                seed=-(2**63),
                owner=new_id(),
                created_at=BEGIN,
                heartbeat_at=BEGIN,
                lease_until=BEGIN if running else None,
                stop_requested_at=BEGIN if running else None,
                ended_at=None if running else BEGIN,
                checkpoint_offset=position,
                omitted_messages=None if position == 3 else 0,
                context_length=4096,
                finish_reason=None if running else "stop",
                error="It was stopped: “…”." if position == 3 else None,
                ttft_ms=0.1 + 0.2,
                itl_ms=1e-300,
                tokens_per_second=1 / 3,
                queue_ms=1e-3,
                delivery_ms=0.7,
                draft_tokens=position,
            )
        )
    if reply and position % 4 == 1:
        moments = {"created_at": BEGIN, "updated_at": BEGIN + timedelta(days=1)}
        session.add(
            Feedback(
                message_id=id,
                user_id=conversation.user_id,
                conversation_id=conversation.id,
                rating="down",
                reasons=["wrong", "tone"],
                comment="né 🙂",
                **moments,
            )
        )
        session.add(
            Gap(
                message_id=id,
                reason="disliked" if position == 1 else "not_cited",
                conversation_id=conversation.id,
                collections=["é", KNOWLEDGE_COLLECTION_ID],
                created_at=BEGIN,
                done_at=BEGIN if position == 1 else None,
                done_by=LOCAL_USER_ID if position == 1 else None,
            )
        )
        session.add(
            Review(
                message_id=id,
                conversation_id=conversation.id,
                reviewer_id=LOCAL_USER_ID if position == 1 else None,
                reviewed_at=BEGIN,
            )
        )
        session.add(
            ReplyDraft(
                id=new_id(),
                conversation_id=conversation.id,
                message="né 🙂",
                change=None,
                model="m",
                text="",
                sources=(passage("né “"),) if position == 1 else None,
                final_text="" if position == 1 else None,
                used_as="copied" if position == 1 else None,
                used_at=BEGIN if position == 1 else None,
                created_at=BEGIN,
            )
        )


def everything(url: str) -> dict[str, dict[str, dict[str, Any]]]:
    """All rows through the application's own models, by table and key."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with connected(url) as connection:
        for model in TABLES:
            table = model.__table__
            assert isinstance(table, sa.Table)
            found[table.name] = {
                "/".join(str(row[column.name]) for column in table.primary_key): dict(row)
                for row in connection.execute(sa.select(table)).mappings()
            }
    return found


def unindexed(rows: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    for name in ("conversation", "message", "kb_chunk"):
        for row in rows[name].values():
            row["indexed"] = False
    return rows


def copied(source: str, target: str) -> CopyResult:
    return copy_history(source, target, lambda stage, share: None)


def test_every_table_is_copied_or_derived() -> None:
    assert {kind.name for kind in compared_tables()} | DERIVED == set(Base.metadata.tables)
    for kind in compared_tables():
        columns = Base.metadata.tables[kind.name].columns
        assert set(kind.names) == {name for name, one in columns.items() if one.computed is None}
        if kind.name not in {model.__tablename__ for model in NO_CONVERSATIONS}:
            assert kind.group, f"{kind.name} does not say which conversation its rows are of"


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["postgresql", pytest.param("sqlite", marks=pytest.mark.full)], indirect=True)
def test_everything_arrives(source: str, targets: Databases, tmp_path: Path) -> None:
    before = everything(source)
    target = targets.new()
    stages: dict[str, list[float]] = {}
    done = copy_history(source, target, lambda stage, share: stages.setdefault(stage, []).append(share))
    assert not done.resumed
    assert everything(source) == before
    assert everything(target) == unindexed(everything(source))
    assert done.rows == {name: len(rows) for name, rows in before.items()}
    assert done.rows["message"] > 50
    assert done.rows["turn"] > 20
    with connected(target) as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(SearchEntry)) == 0
    for shares in stages.values():
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert copied(source, target) == CopyResult(done.rows, resumed=True)  # again: nothing to do
    # And back, from either database.
    back = f"sqlite:///{tmp_path / 'back.db'}"
    copied(target, back)
    assert everything(back) == unindexed(before)


KILLED = """
import os, signal, sys
from app.store.maintenance import copy, row_comparison
copy.CONVERSATIONS_AT_ONCE, copy.ROWS_AT_ONCE = 2, 3
pairs, seen = copy._Copy._pairs, 0
def counted(self, kind, ids):
    global seen
    for pair in pairs(self, kind, ids):
        seen += 1
        if seen == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield pair
copy._Copy._pairs = counted
copy.copy_history(sys.argv[1], sys.argv[2], lambda stage, share: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True)
@pytest.mark.parametrize(
    ("rows", "begun"),
    [
        (60, True),
        *(pytest.param(rows, False, marks=pytest.mark.full) for rows in (1, 12)),  # among the people
        *(pytest.param(rows, True, marks=pytest.mark.full) for rows in (65, 80, 120)),
    ],
)
def test_a_copy_that_is_killed_goes_on(source: str, targets: Databases, rows: int, begun: bool) -> None:
    """Killed in the middle of a part: what was committed stays, what was not is not there in half."""
    target = targets.new()
    killed = subprocess.run([sys.executable, "-c", KILLED, source, target, str(rows)], check=False)
    assert killed.returncode == -9
    whole, part = unindexed(everything(source)), everything(target)
    assert set(part["conversation"]) < set(whole["conversation"])
    assert bool(part["conversation"]) is begun
    for name in ("message", "turn", "conversation_tag"):
        assert part[name] == {
            key: row for key, row in whole[name].items() if row["conversation_id"] in part["conversation"]
        }
    # What is new in the source since then comes along.
    fill_one_more(source)
    done = copied(source, target)
    assert done.resumed is begun
    assert everything(target) == unindexed(everything(source))


def fill_one_more(url: str) -> None:
    with connected(url) as connection:
        connection.execute(
            sa.insert(Conversation).values(
                id=new_id(), user_id=LOCAL_USER_ID, title="new", settings={}, created_at=BEGIN, updated_at=BEGIN
            )
        )


CHANGES = (
    ("account", "name", "UPDATE account SET name = 'other' WHERE name = 'Someone'"),
    ("conversation", "title", "UPDATE conversation SET title = title || ' ' WHERE pinned"),
    ("conversation", "settings", "UPDATE conversation SET settings = '{\"temperature\": true}' WHERE pinned"),
    ("conversation", "indexed", "UPDATE conversation SET indexed = true WHERE pinned"),
    ("conversation", "only there", "INSERT INTO conversation_tag SELECT id, 'x' FROM conversation WHERE pinned"),
    ("conversation", "missing there", "DELETE FROM conversation_tag WHERE tag = 'ä'"),
    ("message", "created_at", f"UPDATE message SET created_at = '{BEGIN + timedelta(microseconds=1):%F %T.%f}'"),
    ("message", "token_ids", "UPDATE message SET token_ids = NULL WHERE position = 7"),
    ("turn", "ttft_ms", "UPDATE turn SET ttft_ms = 0.3"),
    ("turn", "missing there", "DELETE FROM turn WHERE status = 'running'"),
)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements that are done to the target after everything was copied and before it is compared."""
    statements: list[str] = []
    compare = copying._Copy._compare

    def spoil(self: Any) -> Any:
        with self._target.begin():
            for statement in statements:
                assert self._target.execute(sa.text(statement)).rowcount
        return compare(self)

    monkeypatch.setattr(copying._Copy, "_compare", spoil)
    return statements


@pytest.mark.slow
@pytest.mark.full
def test_the_comparison_sees_every_change(source: str, tmp_path: Path, spoiled: list[str]) -> None:
    for number, (table, what, statement) in enumerate(CHANGES):
        spoiled[:] = [statement]
        with pytest.raises(MaintenanceError, match=rf"not the same as .*: the {table}.*{what}"):
            copied(source, f"sqlite:///{tmp_path / f'{number}.db'}")


@pytest.mark.full
def test_the_comparison_sees_a_change_in_postgresql(source: str, postgres: PostgresServer, spoiled: list[str]) -> None:
    spoiled.append("UPDATE message SET content = content || ' ' WHERE position = 4 AND deletion IS NULL")
    with pytest.raises(MaintenanceError, match=r"not the same as .*: the message .* content"):
        copied(source, postgres.empty())


def test_a_number_is_not_a_truth_value() -> None:
    (kind,) = (kind for kind in compared_tables() if kind.name == "conversation")
    rows = [tuple({"on": value} if name == "settings" else name for name in kind.names) for value in (1, 1.0, True)]
    assert kind.same(rows[0], rows[0])
    assert not kind.same(rows[0], rows[1])
    assert kind.differing(rows[0], rows[2]) == ["settings"]


def test_other_peoples_conversations_are_refused_and_kept(source: str, targets: Databases) -> None:
    target = targets.new()
    migrate(target)
    fill(target, 3)
    before = everything(target)
    with pytest.raises(MaintenanceError, match="conversations that are not in"):
        copied(source, target)
    assert everything(target) == before


def test_accounts_that_only_the_target_has_are_refused_and_kept(source: str, targets: Databases) -> None:
    target = targets.new()
    migrate(target)
    fill(target, 0)
    before = everything(target)
    with pytest.raises(MaintenanceError, match=r"account .* only there"):
        copied(source, target)
    after = everything(target)
    assert set(after["account"]) == set(before["account"])
    assert after["conversation"] == {}


RENAMED = "UPDATE conversation SET title = 'renamed there' WHERE pinned"
RENAMED_PERSON = "UPDATE account SET name = 'renamed there' WHERE name = 'Someone'"
WRITTEN = (
    "INSERT INTO message (id, conversation_id, role, status, content, position, created_at) "
    "SELECT 'new', id, 'user', 'complete', 'written there', 0, created_at FROM conversation WHERE pinned"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "used"),
    [
        ("sqlite", RENAMED),
        ("sqlite", RENAMED_PERSON),
        pytest.param("postgresql", WRITTEN, marks=pytest.mark.full),
        pytest.param("postgresql", RENAMED, marks=pytest.mark.full),
        pytest.param("postgresql", RENAMED_PERSON, marks=pytest.mark.full),
        pytest.param("sqlite", WRITTEN, marks=pytest.mark.full),
    ],
    indirect=["targets"],
)
def test_a_target_that_was_used_since_is_not_overwritten(source: str, targets: Databases, used: str) -> None:
    target = targets.new()
    copied(source, target)
    with connected(target) as connection:
        connection.execute(sa.text(used))
    before = everything(target)
    with pytest.raises(MaintenanceError, match=r"was used since.*Nothing was overwritten"):
        copied(source, target)
    assert everything(target) == before


def test_what_cannot_be_copied(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    file = tmp_path / "deskmate.db"
    with pytest.raises(MaintenanceError, match="nothing to copy"):
        copied(f"sqlite:///{tmp_path / 'missing.db'}", target)
    with pytest.raises(MaintenanceError, match="the source database itself"):
        copied(source, f"sqlite:///{tmp_path}/./deskmate.db")
    with claim_database(source), pytest.raises(StartupError, match="Another Deskmate"):
        copied(source, target)
    with claim_database(target), pytest.raises(StartupError, match="Another Deskmate"):
        copied(source, target)
    for change, words in (
        ("UPDATE conversation SET tip_message_id = 'gone' WHERE pinned", r"damaged\. 1 of the conversations"),
        ("UPDATE alembic_version SET version_num = '0001'", "db upgrade"),
    ):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(change)
        with pytest.raises(MaintenanceError, match=words):
            copied(source, target)
    assert not any(everything(target)[table] for table in ("conversation", "message"))


async def test_a_postgresql_that_a_server_uses_is_refused(
    source: str, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_SERVER_GONE_SECONDS", 0.2)
    url = postgres.migrated()
    server = Database(url)
    await server.ping()
    for one, other in ((source, url), (url, f"sqlite:///{tmp_path / 'target.db'}")):
        with pytest.raises(MaintenanceError, match=r"server is using .*Stop it"):
            await asyncio.to_thread(copied, one, other)
    await server.close()
    monkeypatch.undo()  # a connection is listed for a moment after its end
    await asyncio.to_thread(copied, source, url)


def test_two_copies_at_once(source: str, postgres: PostgresServer) -> None:
    url = postgres.migrated()
    with connected(url) as connection:
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": copying._LOCK})
        with pytest.raises(MaintenanceError, match="Another copy"):
            copied(source, url)


@pytest.mark.full
def test_a_value_that_the_target_cannot_take(source: str, postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "deskmate.db")) as connection, connection:
        connection.execute("UPDATE conversation SET title = ? WHERE pinned", ("x" * 300,))
    with pytest.raises(MaintenanceError, match=r"stopped: value too long.*same command to resume") as raised:
        copied(source, postgres.empty())
    assert "xxx" not in raised.value.message


def test_the_command(source: str, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = sa.make_url(postgres.empty()).set(drivername="postgresql", password="very-secret")
    to = url.render_as_string(hide_password=False)
    with pytest.raises(SystemExit) as ended:
        main.main(["db", "copy", "--data-dir", str(tmp_path), "--to", to])
    assert not ended.value.code
    shown = capsys.readouterr()
    assert f"{CONVERSATIONS + CASE_NUMBER} conversations" in shown.out
    assert "3 accounts" in shown.out  # one of them is an inbox's
    assert "row by row" in shown.out
    assert str(url.database) in shown.out
    for wrong in (to, to.replace(str(url.database), "no_such_database"), "mysql://root:very-secret@host/x", "nonsense"):
        with pytest.raises(SystemExit) as ended:
            main.main(["db", "copy", "--database-url", "sqlite:////nowhere/deskmate.db", "--to", wrong])
        assert ended.value.code == 2
        with pytest.raises(SystemExit) as ended:
            main.main(["db", "copy", "--data-dir", str(tmp_path), "--to", wrong])
        assert ended.value.code == (0 if wrong == to else 2)
    shown = capsys.readouterr()
    assert "very-secret" not in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert os.environ.get("APP_DATABASE_URL") is None
