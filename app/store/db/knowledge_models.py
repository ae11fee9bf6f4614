"""Tables of the knowledge base: collections, documents with their versions, and the chunks that are searched."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.store.db.models import ID_LENGTH, Base

#: The collection that every knowledge base has. The migration inserts the row.
KNOWLEDGE_COLLECTION_ID = "00000000-0000-7000-8000-000000000002"


class Collection(Base):
    """A group of documents with its own rights."""

    __tablename__ = "kb_collection"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    description: Mapped[str] = mapped_column(String(500), default="", server_default="")
    everyone: Mapped[bool] = mapped_column(
        default=True, server_default=true(), comment="Every user may use it; otherwise admins and members only."
    )
    revision: Mapped[int] = mapped_column(
        default=0, server_default=text("0"), comment="Grows with every change of its searchable chunks."
    )
    created_at: Mapped[datetime]


class CollectionMember(Base):
    """A user's right to a collection."""

    __tablename__ = "kb_collection_member"
    __table_args__ = (Index("ix_kb_collection_member_user_id", "user_id"),)

    collection_id: Mapped[str] = mapped_column(ForeignKey("kb_collection.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"), primary_key=True)
    may_edit: Mapped[bool] = mapped_column(default=False, server_default=false())


class Document(Base):
    """A document: which of its versions is searched, and how far the newest one has been read."""

    __tablename__ = "kb_document"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'reading', 'ready', 'failed')", name="state"),
        CheckConstraint("source IN ('upload', 'folder', 'cli', 'case')", name="source"),
        UniqueConstraint("collection_id", "name"),
        Index(
            "ix_kb_document_stale",
            "id",
            sqlite_where=text("has_stale_chunks = 1"),
            postgresql_where=text("has_stale_chunks"),
        ),
        Index(
            "ix_kb_document_unread",
            "id",
            sqlite_where=text("state IN ('waiting', 'reading')"),
            postgresql_where=text("state IN ('waiting', 'reading')"),
        ),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("kb_collection.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(500), comment="Of the file; for a watched folder its path in it.")
    title: Mapped[str] = mapped_column(String(500))
    kind: Mapped[str] = mapped_column(String(16), comment="The format, such as markdown or pdf.")
    source: Mapped[str] = mapped_column(String(8))
    state: Mapped[str] = mapped_column(String(8), comment="Of the newest version.")
    error: Mapped[str | None] = mapped_column(Text, comment="A sentence for the user; never a traceback.")
    progress: Mapped[float] = mapped_column(comment="Of reading the newest version, 0 to 1.")
    version: Mapped[int | None] = mapped_column(comment="The version that is searched; null until one has been read.")
    newest: Mapped[int] = mapped_column(comment="The newest version, read or not.")
    reader: Mapped[str | None] = mapped_column(String(ID_LENGTH), comment="Which start of which process reads it.")
    lease_until: Mapped[datetime | None] = mapped_column(comment="Until when no other process may read it.")
    attempts: Mapped[int] = mapped_column(
        default=0, server_default=text("0"), comment="How often reading the newest version began."
    )
    has_stale_chunks: Mapped[bool] = mapped_column(
        default=False,
        server_default=false(),
        comment="Chunks of other versions than the searched one may be there: half a new one, or the rest of an "
        "old one.",
    )
    removed: Mapped[bool] = mapped_column(
        default=False,
        server_default=false(),
        comment="Only the cleanup sees the row, whose name is then its id. It goes when its chunks have gone.",
    )
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class DocumentVersion(Base):
    """One content of a document. Its text stays after a newer version: citations point into it."""

    __tablename__ = "kb_version"
    __table_args__ = (Index("ix_kb_version_created_by", "created_by"),)

    document_id: Mapped[str] = mapped_column(ForeignKey("kb_document.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content_hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of the file.")
    size: Mapped[int] = mapped_column(comment="Of the file, in bytes.")
    title: Mapped[str] = mapped_column(String(500))
    # Deferred: lists and searches need neither.
    text: Mapped[str | None] = mapped_column(Text, deferred=True, comment="As read; null until then.")
    raw: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True, comment="The file; null once it is read.")
    created_by: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]


class Chunk(Base):
    """A part of the version of a document that is searched. Older versions have none.

    Versions are written and deleted in batches, so a document that ``has_stale_chunks`` has others, too: what finds
    chunks looks at their document's version.
    """

    __tablename__ = "kb_chunk"
    __table_args__ = (
        UniqueConstraint("document_id", "version", "ordinal"),
        Index("ix_kb_chunk_collection_id", "collection_id"),
        Index("ix_kb_chunk_unindexed", "id", sqlite_where=text("indexed = 0"), postgresql_where=text("NOT indexed")),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    document_id: Mapped[str] = mapped_column(ForeignKey("kb_document.id", ondelete="CASCADE"))
    collection_id: Mapped[str] = mapped_column(
        ForeignKey("kb_collection.id", ondelete="CASCADE"), comment="The document's, for searches."
    )
    version: Mapped[int]
    ordinal: Mapped[int] = mapped_column(comment="Its place in the version, from 0.")
    heading: Mapped[str] = mapped_column(Text, comment='The headings above it, joined by " > ".')
    start: Mapped[int] = mapped_column(comment="Offset into the version's text, in characters.")
    end: Mapped[int] = mapped_column(comment="Exclusive.")
    tokens: Mapped[int]
    indexed: Mapped[bool] = mapped_column(default=False, server_default=false(), comment="Words can find it.")
    vector: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True, comment="float16, little-endian.")
    vector_of: Mapped[str | None] = mapped_column(String(64), comment="Fingerprint of the vector's encoder.")
    windows: Mapped[bytes | None] = mapped_column(
        LargeBinary, deferred=True, comment="Vectors of its windows, int8, one after another."
    )


class ChunkEntry(Base):
    """The searchable words of a chunk. Derived from the other tables, and rebuilt where ``indexed`` is false.

    SQLite finds words through the FTS5 table ``kb_entry_fts``, which triggers maintain; PostgreSQL through an index on
    ``words``, which there has the words of title and heading too.
    """

    __tablename__ = "kb_entry"
    __table_args__ = (Index("ix_kb_entry_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, comment="FTS5 wants numbers."
    )
    chunk_id: Mapped[str] = mapped_column(ForeignKey("kb_chunk.id", ondelete="CASCADE"), unique=True)
    title: Mapped[str] = mapped_column(Text)
    heading: Mapped[str] = mapped_column(Text)
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR, "postgresql"))


class Gap(Base):
    """A question that the sources of a chat left unanswered. Its text is that of the message above the reply."""

    __tablename__ = "kb_gap"
    __table_args__ = (
        CheckConstraint("reason IN ('nothing_found', 'not_cited', 'disliked')", name="reason"),
        Index("ix_kb_gap_conversation_id", "conversation_id"),
        Index("ix_kb_gap_created_at", "created_at"),
        Index("ix_kb_gap_done_by", "done_by"),
    )

    message_id: Mapped[str] = mapped_column(
        ForeignKey("message.id", ondelete="CASCADE"), primary_key=True, comment="The reply."
    )
    reason: Mapped[str] = mapped_column(String(16), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    collections: Mapped[list[Any]] = mapped_column(JSON, comment="Ids of those that were searched.")
    created_at: Mapped[datetime]
    done_at: Mapped[datetime | None] = mapped_column(comment="When an admin took it off the list.")
    done_by: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))


class Article(Base):
    """An article that was proposed from a case. It becomes a document once it is published; no search finds it before.

    It goes with its author's account: until it is checked, it may hold what customers wrote.
    """

    __tablename__ = "kb_article"
    __table_args__ = (
        Index("ix_kb_article_collection_id", "collection_id"),
        Index("ix_kb_article_author_id", "author_id"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("kb_collection.id", ondelete="CASCADE"))
    author_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    title: Mapped[str] = mapped_column(String(200))
    body: Mapped[str] = mapped_column(Text, comment="Markdown without the title.")
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Question(Base):
    """A question that a passage answers, as an editor has marked it: ``deskmate kb eval`` measures the search by them.

    It goes with its author's account: it may be what a customer wrote.
    """

    __tablename__ = "kb_question"
    __table_args__ = (
        Index("ix_kb_question_collection_id", "collection_id"),
        Index("ix_kb_question_author_id", "author_id"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("kb_collection.id", ondelete="CASCADE"))
    author_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    question: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text, comment="A phrase of the passage.")
    document: Mapped[str] = mapped_column(String(500), comment="Its name then.")
    created_at: Mapped[datetime]


class WordCount(Base):
    """How many of a collection's chunks have a word: how much it tells, and how searched words are spelt.

    Derived from the entries of the chunks that are ``indexed``.
    """

    __tablename__ = "kb_word"

    collection_id: Mapped[str] = mapped_column(ForeignKey("kb_collection.id", ondelete="CASCADE"), primary_key=True)
    word: Mapped[str] = mapped_column(
        String(80).with_variant(String(80, collation="C"), "postgresql"),  # for searches by the beginning
        primary_key=True,
        comment='A stem; "#" before it: in a heading or title; empty: every chunk.',
    )
    chunks: Mapped[int] = mapped_column(comment="Indexed chunks of the collection that have it.")
