"""Adds pins, archive, tags, unread marks, undoable deletions, search and leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_FTS = (
    # The words are folded and separated by blanks; 'ascii' treats every other character as part of a word.
    "CREATE VIRTUAL TABLE search_entry_fts USING fts5 "
    "(words, content='search_entry', content_rowid='id', tokenize='ascii')",
    "CREATE TRIGGER search_entry_inserted AFTER INSERT ON search_entry BEGIN "
    "INSERT INTO search_entry_fts (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER search_entry_deleted AFTER DELETE ON search_entry BEGIN "
    "INSERT INTO search_entry_fts (search_entry_fts, rowid, words) VALUES ('delete', old.id, old.words); END",
)


def _flag(name: str, comment: str | None = None) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False, comment=comment)


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    # Adds columns one by one instead of rebuilding the table: SQLite would delete the rows that refer to the old table.
    for column in (
        sa.Column(
            "title_by",
            sa.String(length=16),
            server_default="message",
            nullable=False,
            comment="Whose title it is: the first message's words, the model's, or the person's (which stays).",
        ),
        _flag("pinned"),
        _flag("archived"),
        _flag("unread", "A reply ended and nobody has looked since."),
        sa.Column(
            "imported_from",
            sa.String(length=200),
            nullable=True,
            comment="Which export of which program it came from, and its id there; null for our own.",
        ),
        _flag("indexed", "The title, as it is now, can be found by searching."),
    ):
        op.add_column("conversation", column)
    op.drop_index("ix_conversation_user_id_updated_at_id", "conversation")
    op.create_index("ix_conversation_list", "conversation", ["user_id", "archived", "pinned", "updated_at", "id"])
    op.create_index("uq_conversation_user_id_imported_from", "conversation", ["user_id", "imported_from"], unique=True)

    op.add_column("message", _flag("indexed", "The content, as it is now, can be found by searching."))
    op.add_column(
        "message",
        sa.Column(
            "deletion",
            sa.String(length=36),
            nullable=True,
            comment="Deleted by the deletion of this id (UUIDv7: it tells when), which can be undone for a while. All "
            "that hung on the message has the same.",
        ),
    )
    # SQLite uses such an index only for a query with the same condition, word for word.
    for table in ("conversation", "message"):
        op.create_index(
            f"ix_{table}_unindexed",
            table,
            ["id"],
            sqlite_where=sa.text("indexed = 0"),
            postgresql_where=sa.text("NOT indexed"),
        )
    deleted = sa.text("deletion IS NOT NULL")
    op.create_index("ix_message_deletion", "message", ["deletion"], sqlite_where=deleted, postgresql_where=deleted)

    op.add_column(
        "turn",
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="While it runs: until when nobody else may take the owner for dead. Null is long ago.",
        ),
    )
    op.add_column(
        "turn",
        sa.Column(
            "stop_requested_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Somebody asked another process than the owner to stop it.",
        ),
    )

    op.create_table(
        "conversation_tag",
        sa.Column("conversation_id", sa.String(length=36), nullable=False),
        sa.Column("tag", sa.String(length=50), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversation.id"],
            name=op.f("fk_conversation_tag_conversation_id_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_id", "tag", name=op.f("pk_conversation_tag")),
    )
    op.create_index("ix_conversation_tag_tag", "conversation_tag", ["tag", "conversation_id"])

    op.create_table(
        "search_entry",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="FTS5 wants numbers.",
        ),
        sa.Column("conversation_id", sa.String(length=36), nullable=False),
        sa.Column("message_id", sa.String(length=36), nullable=True, comment="Null for the title."),
        sa.Column("words", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversation.id"],
            name=op.f("fk_search_entry_conversation_id_conversation"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["message.id"], name=op.f("fk_search_entry_message_id_message"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search_entry")),
    )
    for column in ("conversation_id", "message_id"):
        op.create_index(f"ix_search_entry_{column}", "search_entry", [column])
    if sqlite:
        for statement in _FTS:
            op.execute(statement)
    else:
        op.create_index("ix_search_entry_words", "search_entry", ["words"], postgresql_using="gin")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE search_entry_fts")  # the triggers go with the other table
    for table in ("search_entry", "conversation_tag"):
        op.drop_table(table)
    for index in ("ix_message_deletion", "ix_message_unindexed"):
        op.drop_index(index, "message")
    for index in ("uq_conversation_user_id_imported_from", "ix_conversation_unindexed", "ix_conversation_list"):
        op.drop_index(index, "conversation")
    for table, columns in (
        ("turn", ("stop_requested_at", "lease_until")),
        ("message", ("deletion", "indexed")),
        ("conversation", ("indexed", "imported_from", "unread", "archived", "pinned", "title_by")),
    ):
        for column in columns:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    op.create_index("ix_conversation_user_id_updated_at_id", "conversation", ["user_id", "updated_at", "id"])
