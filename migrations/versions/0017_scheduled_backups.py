"""Adds the state of scheduled backups."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def _moment(name: str, comment: str | None = None) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=True, comment=comment)


def upgrade() -> None:
    op.create_table(
        "backup_run",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=36), nullable=True, comment="The server's start that makes a backup."),
        _moment("lease_until", "After it, the owner is dead. Null: none is made now."),
        _moment("started_at", "Of the last attempt."),
        _moment("good_at", "When the last good one was complete and checked."),
        sa.Column("good_file", sa.Text(), nullable=True),
        sa.Column("good_bytes", sa.BigInteger(), nullable=True),
        sa.Column("good_check", sa.String(length=16), nullable=True, comment="How it was checked: restored, or read."),
        _moment("failed_at"),
        sa.Column("error", sa.Text(), nullable=True, comment="The sentence of the last failure."),
        sa.CheckConstraint("id = 1", name=op.f("ck_backup_run_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backup_run")),
    )


def downgrade() -> None:
    op.drop_table("backup_run")
