"""Adds the knowledge base: collections, documents, versions, chunks, and the words that find them."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KNOWLEDGE = "00000000-0000-7000-8000-000000000002"
_UNREAD = sa.text("state IN ('waiting', 'reading')")
_FTS = (
    "CREATE VIRTUAL TABLE kb_entry_fts USING fts5 "
    "(title, heading, words, content='kb_entry', content_rowid='id', tokenize='ascii')",
    "CREATE TRIGGER kb_entry_inserted AFTER INSERT ON kb_entry BEGIN INSERT INTO kb_entry_fts "
    "(rowid, title, heading, words) VALUES (new.id, new.title, new.heading, new.words); END",
    "CREATE TRIGGER kb_entry_deleted AFTER DELETE ON kb_entry BEGIN INSERT INTO kb_entry_fts "
    "(kb_entry_fts, rowid, title, heading, words) VALUES ('delete', old.id, old.title, old.heading, old.words); END",
)


def _id(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=36), nullable=nullable, comment=comment)


def _moment(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, comment=comment)


def _number(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, comment=comment)


def _count(name: str, comment: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment=comment)


def _text(
    name: str, length: int | None = None, *, nullable: bool = False, comment: str | None = None
) -> sa.Column[str]:
    kind = sa.Text() if length is None else sa.String(length=length)
    return sa.Column(name, kind, nullable=nullable, comment=comment)


def _key(table: str, column: str, target: str, ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}_{target}"), ondelete=ondelete
    )


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    collection = op.create_table(
        "kb_collection",
        _id("id"),
        _text("name", 100),
        sa.Column("description", sa.String(length=500), server_default="", nullable=False),
        sa.Column(
            "everyone",
            sa.Boolean(),
            server_default=sa.true(),
            nullable=False,
            comment="Every user may use it; otherwise admins and members only.",
        ),
        _count("revision", "Grows with every change of its searchable chunks."),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_collection")),
        sa.UniqueConstraint("name", name=op.f("uq_kb_collection_name")),
    )
    now = datetime.now(UTC).replace(microsecond=0)
    op.bulk_insert(
        collection, [{"id": _KNOWLEDGE, "name": "Knowledge", "created_at": now.replace(tzinfo=None) if sqlite else now}]
    )

    op.create_table(
        "kb_collection_member",
        _id("collection_id"),
        _id("user_id"),
        sa.Column("may_edit", sa.Boolean(), server_default=sa.false(), nullable=False),
        _key("kb_collection_member", "collection_id", "kb_collection"),
        _key("kb_collection_member", "user_id", "account"),
        sa.PrimaryKeyConstraint("collection_id", "user_id", name=op.f("pk_kb_collection_member")),
    )
    op.create_index("ix_kb_collection_member_user_id", "kb_collection_member", ["user_id"])

    op.create_table(
        "kb_document",
        _id("id"),
        _id("collection_id"),
        _text("name", 500, comment="Of the file; for a watched folder its path in it."),
        _text("title", 500),
        _text("kind", 16, comment="The format, such as markdown or pdf."),
        _text("source", 8),
        _text("state", 8, comment="Of the newest version."),
        _text("error", nullable=True, comment="A sentence for the user; never a traceback."),
        sa.Column("progress", sa.Float(), nullable=False, comment="Of reading the newest version, 0 to 1."),
        _number("version", nullable=True, comment="The version that is searched; null until one has been read."),
        _number("newest", comment="The newest version, read or not."),
        _id("reader", nullable=True, comment="Which start of which process reads it."),
        _moment("lease_until", nullable=True, comment="Until when no other process may read it."),
        _count("attempts", "How often reading the newest version began."),
        _moment("created_at"),
        _moment("updated_at"),
        sa.CheckConstraint("state IN ('waiting', 'reading', 'ready', 'failed')", name=op.f("ck_kb_document_state")),
        sa.CheckConstraint("source IN ('upload', 'folder', 'cli', 'case')", name=op.f("ck_kb_document_source")),
        _key("kb_document", "collection_id", "kb_collection"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_document")),
        sa.UniqueConstraint("collection_id", "name", name=op.f("uq_kb_document_collection_id_name")),
    )
    op.create_index("ix_kb_document_unread", "kb_document", ["id"], sqlite_where=_UNREAD, postgresql_where=_UNREAD)

    op.create_table(
        "kb_version",
        _id("document_id"),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        _text("content_hash", 64, comment="SHA-256 of the file."),
        _number("size", comment="Of the file, in bytes."),
        _text("title", 500),
        _text("text", nullable=True, comment="As read; null until then."),
        sa.Column("raw", sa.LargeBinary(), nullable=True, comment="The file; null once it is read."),
        _id("created_by", nullable=True),
        _moment("created_at"),
        _key("kb_version", "document_id", "kb_document"),
        _key("kb_version", "created_by", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("document_id", "version", name=op.f("pk_kb_version")),
    )
    op.create_index("ix_kb_version_created_by", "kb_version", ["created_by"])

    op.create_table(
        "kb_chunk",
        _id("id"),
        _id("document_id"),
        _id("collection_id", comment="The document's, for searches."),
        _number("version"),
        _number("ordinal", comment="Its place in the version, from 0."),
        _text("heading", comment='The headings above it, joined by " > ".'),
        _number("start", comment="Offset into the version's text, in characters."),
        _number("end", comment="Exclusive."),
        _number("tokens"),
        sa.Column("indexed", sa.Boolean(), server_default=sa.false(), nullable=False, comment="Words can find it."),
        sa.Column("vector", sa.LargeBinary(), nullable=True, comment="float16, little-endian."),
        _text("vector_of", 64, nullable=True, comment="Fingerprint of the vector's encoder."),
        _key("kb_chunk", "document_id", "kb_document"),
        _key("kb_chunk", "collection_id", "kb_collection"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_chunk")),
        sa.UniqueConstraint("document_id", "version", "ordinal", name=op.f("uq_kb_chunk_document_id_version_ordinal")),
    )
    op.create_index("ix_kb_chunk_collection_id", "kb_chunk", ["collection_id"])
    op.create_index(
        "ix_kb_chunk_unindexed",
        "kb_chunk",
        ["id"],
        sqlite_where=sa.text("indexed = 0"),
        postgresql_where=sa.text("NOT indexed"),
    )

    op.create_table(
        "kb_entry",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="FTS5 wants numbers.",
        ),
        _id("chunk_id"),
        _text("title"),
        _text("heading"),
        sa.Column("words", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), nullable=False),
        _key("kb_entry", "chunk_id", "kb_chunk"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_entry")),
        sa.UniqueConstraint("chunk_id", name=op.f("uq_kb_entry_chunk_id")),
    )
    if sqlite:
        for statement in _FTS:
            op.execute(statement)
    else:
        op.create_index("ix_kb_entry_words", "kb_entry", ["words"], postgresql_using="gin")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE kb_entry_fts")  # the triggers go with the other table
    for table in ("kb_entry", "kb_chunk", "kb_version", "kb_document", "kb_collection_member", "kb_collection"):
        op.drop_table(table)
