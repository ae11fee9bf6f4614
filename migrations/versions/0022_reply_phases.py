"""Adds how long the phases of a reply took, and what became of its draft tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("tokenize_ms", sa.Float(), nullable=True, comment="Rendering and tokenizing the prompt."),
        sa.Column("queue_ms", sa.Float(), nullable=True, comment="From arrival to the first step; part of ttft_ms."),
        sa.Column(
            "decode_ms", sa.Float(), nullable=True, comment="From the first token to the last, in each round of tools."
        ),
        sa.Column("delivery_ms", sa.Float(), nullable=True, comment="From sampling the last tokens to their text."),
        sa.Column(
            "draft_tokens", sa.BigInteger(), nullable=True, comment="Guessed by speculative decoding and verified."
        ),
        sa.Column("accepted_draft_tokens", sa.BigInteger(), nullable=True),
    ):
        op.add_column("turn", column)


def downgrade() -> None:
    for name in ("accepted_draft_tokens", "draft_tokens", "delivery_ms", "decode_ms", "queue_ms", "tokenize_ms"):
        op.drop_column("turn", name)
