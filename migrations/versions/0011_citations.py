"""Adds the sources of replies, which they cite."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INDEX = "ix_message_conversation_id_stored_bytes"
_BEFORE = ("content", "token_ids", "reasoning", "tool_uses")
_AFTER = (*_BEFORE, "sources")


def upgrade() -> None:
    op.add_column(
        "message",
        sa.Column(
            "sources",
            sa.Text(),
            nullable=True,
            comment="Of a reply: the passages that it was given, as JSON, in the order of their numbers. It keeps "
            "their words: the documents may be deleted.",
        ),
    )
    _count(_AFTER)


def downgrade() -> None:
    _count(_BEFORE)
    op.drop_column("message", "sources")


def _count(columns: tuple[str, ...]) -> None:
    """Makes ``stored_bytes`` the size of these columns. Neither database can change a computed column's expression."""
    postgres = op.get_bind().dialect.name == "postgresql"
    if not postgres:
        op.drop_index(_INDEX, "message")
    op.execute("ALTER TABLE message DROP COLUMN stored_bytes")
    size = "octet_length({})" if postgres else "length(CAST({} AS BLOB))"
    total = " + ".join(f"coalesce({size.format(column)}, 0)" for column in columns)
    if postgres:
        op.execute(f"ALTER TABLE message ADD COLUMN stored_bytes BIGINT NOT NULL GENERATED ALWAYS AS ({total}) STORED")
    else:
        op.execute(f"ALTER TABLE message ADD COLUMN stored_bytes BIGINT GENERATED ALWAYS AS ({total})")
        op.create_index(_INDEX, "message", ["conversation_id", "stored_bytes"])
