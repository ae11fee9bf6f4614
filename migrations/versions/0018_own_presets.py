"""Adds presets of one's own, and what new chats begin with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preset",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False, comment="The sampling parameters that are set."),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_preset_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_preset")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_preset_user_id_name")),
    )
    op.add_column(
        "account",
        sa.Column(
            "new_chat_settings",
            sa.JSON(),
            nullable=True,
            comment="Settings that their new chats begin with. Null: the model's defaults.",
        ),
    )


def downgrade() -> None:
    op.drop_column("account", "new_chat_settings")
    op.drop_table("preset")
