"""Adds the outbox of replies that visitors who have gone get by e-mail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reply_mail",
        sa.Column("message_id", sa.String(length=36), nullable=False),
        sa.Column("case_id", sa.String(length=36), nullable=False),
        sa.Column(
            "mail_id",
            sa.String(length=36),
            nullable=True,
            comment="Of the mail that it is a part of, from the first attempt on.",
        ),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'sent', 'read', 'no_address', 'failed')", name=op.f("ck_reply_mail_status")
        ),
        sa.ForeignKeyConstraint(
            ["case_id"], ["support_case.id"], name=op.f("fk_reply_mail_case_id_support_case"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["message.id"], name=op.f("fk_reply_mail_message_id_message"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_reply_mail")),
    )
    op.create_index("ix_reply_mail_due", "reply_mail", ["status", "next_attempt_at"])
    op.create_index("ix_reply_mail_case_id", "reply_mail", ["case_id"])
    op.create_index("ix_reply_mail_mail_id", "reply_mail", ["mail_id"])
    op.create_index("ix_reply_mail_sent_at", "reply_mail", ["sent_at"])
    _describe_external_id("In the desk's own system: as a signed token proves, or as a program with a key says.")


def downgrade() -> None:
    _describe_external_id("In the desk's own system; proven by a signed token.")
    op.drop_table("reply_mail")


def _describe_external_id(comment: str) -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column("contact", "external_id", existing_type=sa.String(length=200), comment=comment)
