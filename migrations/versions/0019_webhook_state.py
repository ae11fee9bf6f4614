"""Adds the name of a webhook, its key before, and since when and why it fails or is off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("name", sa.String(length=100), nullable=True, comment="Null: it is called by its address."),
        sa.Column(
            "previous_secret", sa.String(length=64), nullable=True, comment="The key before, which signs for a while."
        ),
        sa.Column("previous_secret_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "failing_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The first failed attempt after the last successful one.",
        ),
        sa.Column("failure", sa.Text(), nullable=True, comment="The sentence of the last failed attempt since then."),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.String(length=8), nullable=True, comment="admin, gone or failing."),
    ):
        op.add_column("webhook", column)


def downgrade() -> None:
    for name in (
        "disabled_reason",
        "disabled_at",
        "failure",
        "failing_since",
        "previous_secret_until",
        "previous_secret",
        "name",
    ):
        op.drop_column("webhook", name)
