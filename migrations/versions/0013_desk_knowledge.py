"""Adds what a desk learns from its chats: unanswered questions, proposed articles, and questions for evaluation."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _id(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=36), nullable=nullable, comment=comment)


def _moment(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, comment=comment)


def _key(table: str, column: str, target: str, ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}_{target}"), ondelete=ondelete
    )


def upgrade() -> None:
    op.create_table(
        "kb_gap",
        _id("message_id", comment="The reply."),
        sa.Column("reason", sa.String(length=16), nullable=False),
        _id("conversation_id"),
        sa.Column("collections", sa.JSON(), nullable=False, comment="Ids of those that were searched."),
        _moment("created_at"),
        _moment("done_at", nullable=True, comment="When an admin took it off the list."),
        _id("done_by", nullable=True),
        sa.CheckConstraint("reason IN ('nothing_found', 'not_cited', 'disliked')", name=op.f("ck_kb_gap_reason")),
        _key("kb_gap", "message_id", "message"),
        _key("kb_gap", "conversation_id", "conversation"),
        _key("kb_gap", "done_by", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("message_id", "reason", name=op.f("pk_kb_gap")),
    )
    for column in ("conversation_id", "created_at", "done_by"):
        op.create_index(f"ix_kb_gap_{column}", "kb_gap", [column])

    op.create_table(
        "kb_article",
        _id("id"),
        _id("collection_id"),
        _id("author_id"),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("body", sa.Text(), nullable=False, comment="Markdown without the title."),
        _moment("created_at"),
        _moment("updated_at"),
        _key("kb_article", "collection_id", "kb_collection"),
        _key("kb_article", "author_id", "account"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_article")),
    )
    for column in ("collection_id", "author_id"):
        op.create_index(f"ix_kb_article_{column}", "kb_article", [column])

    op.create_table(
        "kb_question",
        _id("id"),
        _id("collection_id"),
        _id("author_id"),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False, comment="A phrase of the passage."),
        sa.Column("document", sa.String(length=500), nullable=False, comment="Its name then."),
        _moment("created_at"),
        _key("kb_question", "collection_id", "kb_collection"),
        _key("kb_question", "author_id", "account"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kb_question")),
    )
    for column in ("collection_id", "author_id"):
        op.create_index(f"ix_kb_question_{column}", "kb_question", [column])


def downgrade() -> None:
    op.drop_table("kb_question")
    op.drop_table("kb_article")
    op.drop_table("kb_gap")
