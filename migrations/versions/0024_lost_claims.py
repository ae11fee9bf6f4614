"""Adds how often a delivery of a webhook was claimed since its last attempt ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "webhook_delivery",
        sa.Column(
            "claims",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Claims since the last attempt that ended.",
        ),
    )


def downgrade() -> None:
    op.drop_column("webhook_delivery", "claims")
