"""The types of columns, and the tables of accounts and chats. Users see them only through ``app.domain.views``."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ColumnClause,
    Computed,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    column,
    false,
    text,
)
from sqlalchemy import DateTime as SqlDateTime
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator

from app.domain import sources as stored_sources
from app.domain.knowledge import Passage
from app.domain.tool_use import ToolUse, from_json, to_json

ID_LENGTH = 36
#: Condition on a turn: it failed or may have ended without text. Queries must repeat the index's exact wording.
PERHAPS_UNANSWERED = "status IN ('error', 'interrupted') OR (status = 'complete' AND completion_tokens <= 4)"


class UtcDateTime(TypeDecorator[datetime]):
    """Timestamps, always timezone-aware in Python. SQLite stores them as text in UTC, which sorts by time."""

    impl = SqlDateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class TokenIds(TypeDecorator[tuple[int, ...]]):
    """Token ids as signed 32-bit integers, little-endian: a fifth of their size in JSON."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return struct.pack(f"<{len(value)}i", *value) if value else None

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[int, ...] | None:  # noqa: ARG002
        return struct.unpack(f"<{len(value) // 4}i", value) if value else None


class ToolUses(TypeDecorator[tuple[ToolUse, ...]]):
    """A reply's calls of tools, as JSON text; null for none."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[ToolUse] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return json.dumps(to_json(value), ensure_ascii=False) if value else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[ToolUse, ...] | None:  # noqa: ARG002
        return from_json(json.loads(value)) if value else None


class Sources(TypeDecorator[tuple[Passage, ...]]):
    """A reply's sources, as JSON text; null for none."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Passage] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return json.dumps(stored_sources.to_json(value), ensure_ascii=False) if value else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[Passage, ...] | None:  # noqa: ARG002
        return stored_sources.from_json(json.loads(value)) if value else None


class StoredSize(FunctionElement[int]):
    """Size of a text, JSON or blob column in bytes; 0 for null."""

    inherit_cache = True


@compiles(StoredSize, "sqlite")
def _stored_size_sqlite(element: StoredSize, compiler: Any, **options: Any) -> str:
    return f"coalesce(length(CAST({compiler.process(element.clauses, **options)} AS BLOB)), 0)"


@compiles(StoredSize, "postgresql")
def _stored_size_postgres(element: StoredSize, compiler: Any, **options: Any) -> str:
    (column,) = element.clauses
    cast = "::text" if isinstance(column.type, JSON) else ""
    return f"coalesce(octet_length({compiler.process(column, **options)}{cast}), 0)"


def stored_bytes(*columns: ColumnClause[Any]) -> Computed:
    """Size in bytes of a row's long columns. The database computes it, so that no writer can forget it.

    PostgreSQL keeps it in the row and need not read a long text for it. SQLite keeps it in an index only, since
    there the row itself may be long.
    """
    return Computed(reduce(add, (StoredSize(column) for column in columns)))


class Base(DeclarativeBase):
    """Names every constraint, so that a later migration can refer to it on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON, int: BigInteger}  # noqa: RUF012


def table_of(model: type[Base]) -> Table:
    """A model's table, for statements that bypass the ORM."""
    assert isinstance(model.__table__, Table)
    return model.__table__


class Account(Base):
    """An owner of conversations. Without accounts there is one local user, who never signs in."""

    __tablename__ = "account"
    __table_args__ = (
        CheckConstraint("role IN ('admin', 'agent', 'viewer')", name="role"),
        CheckConstraint("kind IN ('person', 'inbox')", name="kind"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(
        String(200), unique=True, comment="What is typed to sign in, in lower case: a name or an e-mail address."
    )
    created_at: Mapped[datetime]
    display_name: Mapped[str | None] = mapped_column(String(200), comment="Null is the name.")
    role: Mapped[str] = mapped_column(String(16), default="agent", server_default="agent")
    kind: Mapped[str] = mapped_column(
        String(8),
        default="person",
        server_default="person",
        comment="An inbox's account owns its conversations and cannot sign in.",
    )
    password_hash: Mapped[str | None] = mapped_column(
        String(300), comment="argon2's own text, with its parameters and salt. Null lets nobody in."
    )
    disabled_at: Mapped[datetime | None] = mapped_column(comment="Since when they may not sign in; null lets them.")
    last_seen_at: Mapped[datetime | None] = mapped_column(comment="Within some minutes: not every request writes it.")
    new_chat_settings: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), comment="Settings that their new chats begin with. Null: the model's defaults."
    )


class SavedPreset(Base):
    """Sampling parameters that a user has saved under a name."""

    __tablename__ = "preset"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(60))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON, comment="The sampling parameters that are set.")
    created_at: Mapped[datetime]


class Folder(Base):
    """A user's folder of conversations. A conversation is in at most one."""

    __tablename__ = "folder"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(60))
    created_at: Mapped[datetime]


class TokenUse(Base):
    """Tokens of a user's replies per day. Kept apart from turns: deleting a conversation refunds no tokens."""

    __tablename__ = "token_use"

    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True, comment="In UTC, such as 2026-11-21.")
    tokens: Mapped[int] = mapped_column(comment="Read and written, by the chat and through API keys.")


class AuditEvent(Base):
    """Who did what and when, never what anyone wrote. Has no foreign keys, because it outlives what it refers to."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_actor_id", "actor_id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True, comment="UUIDv7: sorts by time.")
    at: Mapped[datetime]
    actor_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), comment="Null where nobody was signed in.")
    action: Mapped[str] = mapped_column(String(40), comment="AuditAction.")
    target: Mapped[str | None] = mapped_column(String(200), comment="The id or name of what it was done to.")
    details: Mapped[dict[str, Any]]


class Conversation(Base):
    """A chat: its title, its settings, and which of its branches is shown."""

    __tablename__ = "conversation"
    __table_args__ = (
        # The sidebar: one user's conversations, pinned ones first, latest activity first, paged by key.
        Index("ix_conversation_list", "user_id", "archived", "pinned", "updated_at", "id"),
        Index("ix_conversation_folder_list", "folder_id", "user_id", "archived", "pinned", "updated_at", "id"),
        Index(
            "ix_conversation_deletion",
            "deletion",
            sqlite_where=text("deletion IS NOT NULL"),
            postgresql_where=text("deletion IS NOT NULL"),
        ),
        Index(
            "ix_conversation_unindexed", "id", sqlite_where=text("indexed = 0"), postgresql_where=text("NOT indexed")
        ),
        # Importing a file a second time finds the first import.
        Index("uq_conversation_user_id_imported_from", "user_id", "imported_from", unique=True),
        Index("ix_conversation_created_at", "created_at"),  # for counts per day, as the other created_at indexes
        Index("ix_conversation_user_id_stored_bytes", "user_id", "stored_bytes").ddl_if(dialect="sqlite"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(
        ForeignKey("account.id", ondelete="CASCADE"),
        comment="Never null: every query asks for it, so that nobody meets another's conversation.",
    )
    title: Mapped[str] = mapped_column(String(200))
    title_by: Mapped[str] = mapped_column(
        String(16),
        default="message",
        server_default="message",
        comment="Whose title it is: the first message's words, the model's, or the person's (which stays).",
    )
    pinned: Mapped[bool] = mapped_column(default=False, server_default=false())
    archived: Mapped[bool] = mapped_column(default=False, server_default=false())
    unread: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="A reply ended and nobody has looked since."
    )
    imported_from: Mapped[str | None] = mapped_column(
        String(200), comment="Which export of which program it came from, and its id there; null for our own."
    )
    indexed: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="The title, as it is now, can be found by searching."
    )
    folder_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="A folder of the same user; null: in none. No foreign key: SQLite could not add one to this table.",
    )
    deletion: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="Deleted by the deletion of this id (UUIDv7: it tells when), which can be undone for a while. Until "
        "then only the import and the cleanup see the row.",
    )
    settings: Mapped[dict[str, Any]] = mapped_column(
        comment="ChatSettings; here, not in the browser, so that another tab and another day find the same."
    )
    allowed_tools: Mapped[list[str] | None] = mapped_column(
        JSON, comment="Names of the tools that the user has allowed for the whole chat. Never imported."
    )
    tip_message_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="The last message of the branch that is shown. The only pointer that moves; no foreign key, "
        "as messages already point here.",
    )
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime] = mapped_column(
        comment="When the last message was sent. Renaming does not count: the list must not jump."
    )
    stored_bytes: Mapped[int] = mapped_column(stored_bytes(column("settings", JSON)), deferred=True)


class Message(Base):
    """One message. Messages form a tree; editing and regenerating add siblings and overwrite nothing."""

    __tablename__ = "message"
    __table_args__ = (
        CheckConstraint("role IN ('user', 'assistant')", name="role"),
        CheckConstraint("status IN ('streaming', 'complete', 'stopped', 'interrupted', 'error')", name="status"),
        CheckConstraint("author_kind IN ('contact', 'bot', 'agent', 'system')", name="author_kind"),
        Index("ix_message_conversation_id_position", "conversation_id", "position"),
        # For the siblings of a branch; deleting a long chat also checks each parent_id.
        Index("ix_message_parent_id", "parent_id"),
        Index("ix_message_unindexed", "id", sqlite_where=text("indexed = 0"), postgresql_where=text("NOT indexed")),
        Index(
            "ix_message_deletion",
            "deletion",
            sqlite_where=text("deletion IS NOT NULL"),
            postgresql_where=text("deletion IS NOT NULL"),
        ),
        # Covers all that counting needs: reading each message instead takes a hundred times as long.
        Index("ix_message_created_at", "created_at", "role", "deletion"),
        Index("ix_message_conversation_id_stored_bytes", "conversation_id", "stored_bytes").ddl_if(dialect="sqlite"),
        Index(
            "uq_message_conversation_id_client_id",
            "conversation_id",
            "client_id",
            unique=True,
            sqlite_where=text("client_id IS NOT NULL"),
            postgresql_where=text("client_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    # No ON DELETE CASCADE here: SQLite would recurse once per message and stop at a depth of 1,000.
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("message.id"), comment="Null at the root.")
    role: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(
        String(16), comment="Only 'streaming' may change; the row exists before the first token does."
    )
    content: Mapped[str] = mapped_column(Text, comment="For a reply in flight: the text up to the last checkpoint.")
    # Deferred: only prompts need them, and they are as large as the text.
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(
        TokenIds,
        deferred=True,
        comment="Of a reply: the token ids that spell content, 4 bytes each, little-endian. The next turn sends them "
        "again; null where they are not known.",
    )
    reasoning: Mapped[str | None] = mapped_column(
        Text, comment="What the model thought before the content; null if it did not. Not searched."
    )
    reasoning_seconds: Mapped[float | None] = mapped_column(comment="How long it thought.")
    tool_uses: Mapped[tuple[ToolUse, ...] | None] = mapped_column(
        ToolUses, comment="Of a reply: its calls of tools with their results, as JSON."
    )
    sources: Mapped[tuple[Passage, ...] | None] = mapped_column(
        Sources,
        comment="Of a reply: the passages that it was given, as JSON, in the order of their numbers. It keeps their "
        "words: the documents may be deleted.",
    )
    position: Mapped[int] = mapped_column(comment="Depth in the tree, 0 at the root: order without walking.")
    created_at: Mapped[datetime]
    indexed: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="The content, as it is now, can be found by searching."
    )
    deletion: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="Deleted by the deletion of this id (UUIDv7: it tells when), which can be undone for a while. All that "
        "hung on the message has the same.",
    )
    author_kind: Mapped[str | None] = mapped_column(
        String(8), comment="Of a case's message: its author. Null in other chats."
    )
    author_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), comment="Id of the contact or of the agent's account."
    )
    internal: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="A note of the agents, which contacts and the bot never read."
    )
    client_id: Mapped[str | None] = mapped_column(
        String(64), comment="The client's own id: sending it again stores nothing."
    )
    stored_bytes: Mapped[int] = mapped_column(
        stored_bytes(
            column("content", Text),
            column("token_ids", LargeBinary),
            column("reasoning", Text),
            column("tool_uses", Text),
            column("sources", Text),
        ),
        deferred=True,
    )


class Turn(Base):
    """One run of the model that wrote, or is writing, one reply: its parameters and its statistics."""

    __tablename__ = "turn"
    __table_args__ = (
        CheckConstraint("status IN ('running', 'complete', 'stopped', 'interrupted', 'error')", name="status"),
        # At most one running reply per conversation, for any requester, and per column of a comparison: the second
        # insert fails. All replies but those of later columns are in column 0.
        Index(
            "uq_turn_running",
            "conversation_id",
            "comparison_column",
            unique=True,
            sqlite_where=text("status = 'running'"),
            postgresql_where=text("status = 'running'"),
        ),
        Index("ix_turn_conversation_id", "conversation_id"),
        Index("ix_turn_created_at", "created_at"),
        Index("ix_turn_conversation_id_stored_bytes", "conversation_id", "stored_bytes").ddl_if(dialect="sqlite"),
        Index(
            "ix_turn_unanswered",
            "created_at",
            sqlite_where=text(PERHAPS_UNANSWERED),
            postgresql_where=text(PERHAPS_UNANSWERED),
        ),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    message_id: Mapped[str] = mapped_column(
        ForeignKey("message.id", ondelete="CASCADE"), unique=True, comment="The reply this turn writes."
    )
    status: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(Text, comment="Name of the model, as /v1/models listed it then.")
    params: Mapped[dict[str, Any]] = mapped_column(
        comment="ChatSettings at the time, defaults left out: the conversation's may change later."
    )
    seed: Mapped[int | None] = mapped_column(comment="Of the settings, or drawn for this reply; null where unknown.")
    edited: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="The user has written the beginning of the reply."
    )
    comparison_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="Id of the first turn of the replies that are compared. Null in other replies, and once one is kept.",
    )
    comparison_column: Mapped[int] = mapped_column(default=0, server_default="0", comment="Which of them, from 0.")
    owner: Mapped[str] = mapped_column(
        String(ID_LENGTH), comment="Which start of which process runs it; a later start finds the dead ones by it."
    )
    created_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime] = mapped_column(comment="Last sign of life of the owner.")
    lease_until: Mapped[datetime | None] = mapped_column(
        comment="While it runs: until when nobody else may take the owner for dead. Null is long ago."
    )
    stop_requested_at: Mapped[datetime | None] = mapped_column(
        comment="Somebody asked another process than the owner to stop it."
    )
    ended_at: Mapped[datetime | None]
    checkpoint_offset: Mapped[int] = mapped_column(comment="Characters of the reply that are in message.content.")
    omitted_messages: Mapped[int | None] = mapped_column(
        comment="Messages at the beginning of the conversation that the model's context had no room for."
    )
    context_length: Mapped[int | None] = mapped_column(comment="Most tokens the model read then, the reply included.")
    finish_reason: Mapped[str | None] = mapped_column(String(16), comment="Why the engine ended it.")
    error: Mapped[str | None] = mapped_column(Text, comment="A sentence for the person; never a traceback.")
    prompt_tokens: Mapped[int | None]
    cached_prompt_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    ttft_ms: Mapped[float | None] = mapped_column(comment="From arrival to the first token.")
    itl_ms: Mapped[float | None] = mapped_column(comment="Mean gap between later tokens.")
    tokens_per_second: Mapped[float | None]
    tokenize_ms: Mapped[float | None] = mapped_column(comment="Rendering and tokenizing the prompt.")
    queue_ms: Mapped[float | None] = mapped_column(comment="From arrival to the first step; part of ttft_ms.")
    decode_ms: Mapped[float | None] = mapped_column(comment="From the first token to the last, in each round of tools.")
    delivery_ms: Mapped[float | None] = mapped_column(comment="From sampling the last tokens to their text.")
    draft_tokens: Mapped[int | None] = mapped_column(comment="Guessed by speculative decoding and verified.")
    accepted_draft_tokens: Mapped[int | None]
    stored_bytes: Mapped[int] = mapped_column(stored_bytes(column("params", JSON)), deferred=True)


class ConversationTag(Base):
    """A tag that a user has put on a conversation."""

    __tablename__ = "conversation_tag"
    __table_args__ = (Index("ix_conversation_tag_tag", "tag", "conversation_id"),)

    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(50), primary_key=True)


class SearchEntry(Base):
    """The searchable words of a title or of (a piece of) a message; see :mod:`app.store.chat.search`.

    Derived from the other tables and rebuilt where ``indexed`` is false, so it holds no data of its own. SQLite finds
    words through the FTS5 table ``search_entry_fts``, which triggers maintain; PostgreSQL through an index.
    """

    __tablename__ = "search_entry"
    __table_args__ = (
        Index("ix_search_entry_conversation_id", "conversation_id"),
        Index("ix_search_entry_message_id", "message_id"),
        Index("ix_search_entry_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
    )

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, comment="FTS5 wants numbers."
    )
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    message_id: Mapped[str | None] = mapped_column(
        ForeignKey("message.id", ondelete="CASCADE"), comment="Null for the title."
    )
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR, "postgresql"))
