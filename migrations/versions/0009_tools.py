"""Adds the calls of tools in replies, the tools that a user has allowed in a chat, and the tool servers of prompts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_INDEX = "ix_message_conversation_id_stored_bytes"
_BEFORE = ("content", "token_ids", "reasoning")
_AFTER = (*_BEFORE, "tool_uses")


def upgrade() -> None:
    op.add_column(
        "message",
        sa.Column(
            "tool_uses", sa.Text(), nullable=True, comment="Of a reply: its calls of tools with their results, as JSON."
        ),
    )
    op.add_column(
        "conversation",
        sa.Column(
            "allowed_tools",
            sa.JSON(),
            nullable=True,
            comment="Names of the tools that the user has allowed for the whole chat. Never imported.",
        ),
    )
    op.add_column(
        "template_version",
        sa.Column(
            "tools",
            sa.JSON(),
            nullable=False,
            server_default="[]",
            comment="Of a prompt: names of the tool servers whose tools its chats are offered.",
        ),
    )
    _count(_AFTER)


def downgrade() -> None:
    _count(_BEFORE)
    op.drop_column("template_version", "tools")
    op.drop_column("conversation", "allowed_tools")
    op.drop_column("message", "tool_uses")


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
