"""Adds the drafts of replies to customers, and the size of model that a prompt needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COUNTED = ("message", "text", "sources", "final_text")


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    op.add_column(
        "template_version",
        sa.Column(
            "min_parameters",
            sa.BigInteger(),
            nullable=True,
            comment="Of a prompt: how many parameters a model needs for it; null for any model.",
        ),
    )
    size = "octet_length({})" if postgres else "length(CAST({} AS BLOB))"
    counted = sa.Computed(" + ".join(f"coalesce({size.format(column)}, 0)" for column in _COUNTED))
    op.create_table(
        "reply_draft",
        sa.Column("id", sa.String(length=36), nullable=False, comment="UUIDv7: sorts by time."),
        sa.Column("conversation_id", sa.String(length=36), nullable=False),
        sa.Column("message", sa.Text(), nullable=False, comment="The customer's message."),
        sa.Column("change", sa.String(length=16), nullable=True, comment="How an earlier draft was changed."),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "text",
            sa.Text(),
            nullable=False,
            comment="What the model wrote. Empty while it writes, and if the server stopped meanwhile.",
        ),
        sa.Column(
            "sources",
            sa.Text(),
            nullable=True,
            comment="The passages that it was given, as JSON, in the order of their numbers.",
        ),
        sa.Column("final_text", sa.Text(), nullable=True, comment="What the user made of it; null until it is used."),
        sa.Column("used_as", sa.String(length=8), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), counted, nullable=False),
        sa.CheckConstraint("change IN ('shorter', 'friendlier')", name=op.f("ck_reply_draft_change")),
        sa.CheckConstraint("used_as IN ('copied', 'inserted')", name=op.f("ck_reply_draft_used_as")),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversation.id"],
            name=op.f("fk_reply_draft_conversation_id_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reply_draft")),
    )
    op.create_index("ix_reply_draft_conversation_id", "reply_draft", ["conversation_id", "id"])
    op.create_index("ix_reply_draft_used_at", "reply_draft", ["used_at", "id"])
    if not postgres:
        op.create_index(
            "ix_reply_draft_conversation_id_stored_bytes", "reply_draft", ["conversation_id", "stored_bytes"]
        )


def downgrade() -> None:
    op.drop_table("reply_draft")
    op.drop_column("template_version", "min_parameters")
