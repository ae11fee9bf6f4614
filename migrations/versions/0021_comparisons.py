"""Adds comparisons: several replies to one message at the same time, and replies that the user has edited."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

SEED_BEFORE = "Beside params for queries; null drew a new one."
SEED = "Of the settings, or drawn for this reply; null where unknown."


def upgrade() -> None:
    for column in (
        sa.Column(
            "edited",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="The user has written the beginning of the reply.",
        ),
        sa.Column(
            "comparison_id",
            sa.String(length=36),
            nullable=True,
            comment="Id of the first turn of the replies that are compared. Null in other replies, and once one is "
            "kept.",
        ),
        sa.Column(
            "comparison_column",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Which of them, from 0.",
        ),
    ):
        op.add_column("turn", column)
    _comment_seed(SEED, SEED_BEFORE)
    _index_running("conversation_id", "comparison_column")


def downgrade() -> None:
    op.execute("UPDATE turn SET status = 'interrupted' WHERE status = 'running' AND comparison_column > 0")
    _index_running("conversation_id")
    _comment_seed(SEED_BEFORE, SEED)
    for name in ("comparison_column", "comparison_id", "edited"):
        op.drop_column("turn", name)


def _index_running(*columns: str) -> None:
    op.drop_index("uq_turn_running", "turn")
    op.create_index(
        "uq_turn_running",
        "turn",
        list(columns),
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _comment_seed(comment: str, before: str) -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite has no comments
        op.alter_column("turn", "seed", comment=comment, existing_comment=before, existing_type=sa.BigInteger())
