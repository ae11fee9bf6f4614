"""Adds the model's token ids to replies, and to turns the context length and the number of omitted messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "message",
        sa.Column(
            "token_ids",
            sa.LargeBinary(),
            nullable=True,
            comment="Of a reply: the token ids that spell content, 4 bytes each, little-endian. The next turn sends "
            "them again; null where they are not known.",
        ),
    )
    op.add_column(
        "turn",
        sa.Column(
            "omitted_messages",
            sa.BigInteger(),
            nullable=True,
            comment="Messages at the beginning of the conversation that the model's context had no room for.",
        ),
    )
    op.add_column(
        "turn",
        sa.Column(
            "context_length",
            sa.BigInteger(),
            nullable=True,
            comment="Most tokens the model read then, the reply included.",
        ),
    )


def downgrade() -> None:
    for table, column in (("turn", "context_length"), ("turn", "omitted_messages"), ("message", "token_ids")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
