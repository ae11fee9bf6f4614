"""Adds what a model thought before it answered, and counts it towards a user's storage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_INDEX = "ix_message_conversation_id_stored_bytes"
_BEFORE = ("content", "token_ids")
_AFTER = (*_BEFORE, "reasoning")


def upgrade() -> None:
    op.add_column(
        "message",
        sa.Column(
            "reasoning",
            sa.Text(),
            nullable=True,
            comment="What the model thought before the content; null if it did not. Not searched.",
        ),
    )
    op.add_column("message", sa.Column("reasoning_seconds", sa.Float(), nullable=True, comment="How long it thought."))
    _count(_AFTER)


def downgrade() -> None:
    _count(_BEFORE)
    op.drop_column("message", "reasoning_seconds")
    op.drop_column("message", "reasoning")


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
