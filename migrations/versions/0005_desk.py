"""Adds feedback, reviews, versions of prompts and canned replies, and indexes for usage counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_FAILED = sa.text("status IN ('error', 'interrupted') OR (status = 'complete' AND completion_tokens <= 4)")
_BY_TIME = {
    "conversation": ["created_at"],
    "message": ["created_at", "role", "deletion"],  # all columns that counting needs
    "turn": ["created_at"],
}


def _id(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=36), nullable=nullable)


def _moment(name: str, comment: str | None = None) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, comment=comment)


def _key(table: str, column: str, target: str, ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}_{target}"), ondelete=ondelete
    )


def upgrade() -> None:
    op.create_table(
        "feedback",
        _id("message_id"),
        _id("user_id"),
        _id("conversation_id"),
        sa.Column("rating", sa.String(length=8), nullable=False),
        sa.Column("reasons", sa.JSON(), nullable=False, comment="Names of the reasons that were ticked."),
        sa.Column("comment", sa.Text(), nullable=False),
        _moment("created_at", "Of the first thumb; usage counts the rating on that day."),
        _moment("updated_at"),
        sa.CheckConstraint("rating IN ('up', 'down')", name=op.f("ck_feedback_rating")),
        _key("feedback", "message_id", "message"),
        _key("feedback", "user_id", "account"),
        _key("feedback", "conversation_id", "conversation"),
        sa.PrimaryKeyConstraint("message_id", "user_id", name=op.f("pk_feedback")),
    )
    for column in ("conversation_id", "user_id", "created_at"):
        op.create_index(f"ix_feedback_{column}", "feedback", [column])

    op.create_table(
        "review",
        _id("message_id"),
        _id("conversation_id"),
        _id("reviewer_id", nullable=True),
        _moment("reviewed_at"),
        _key("review", "message_id", "message"),
        _key("review", "conversation_id", "conversation"),
        _key("review", "reviewer_id", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_review")),
    )
    for column in ("conversation_id", "reviewer_id"):
        op.create_index(f"ix_review_{column}", "review", [column])

    op.create_table(
        "template_version",
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("title", sa.String(length=60), nullable=False),
        sa.Column("description", sa.String(length=200), nullable=False),
        sa.Column("variables", sa.JSON(), nullable=False, comment="Name, description and default of each."),
        sa.Column(
            "recommended", sa.JSON(), nullable=False, comment="ChatSettings, defaults left out; of prompts only."
        ),
        sa.Column("body", sa.Text(), nullable=False, comment="A Jinja2 template."),
        sa.Column(
            "removed",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="From this version on it is not offered any more.",
        ),
        _id("author_id", nullable=True),
        _moment("created_at"),
        sa.CheckConstraint("kind IN ('prompt', 'canned')", name=op.f("ck_template_version_kind")),
        sa.CheckConstraint("version > 0", name=op.f("ck_template_version_version")),
        _key("template_version", "author_id", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("kind", "name", "version", name=op.f("pk_template_version")),
    )
    op.create_index("ix_template_version_author_id", "template_version", ["author_id"])

    for table, columns in _BY_TIME.items():
        op.create_index(f"ix_{table}_created_at", table, columns)
    op.create_index("ix_turn_unanswered", "turn", ["created_at"], sqlite_where=_FAILED, postgresql_where=_FAILED)


def downgrade() -> None:
    op.drop_index("ix_turn_unanswered", "turn")
    for table in _BY_TIME:
        op.drop_index(f"ix_{table}_created_at", table)
    for table in ("template_version", "review", "feedback"):
        op.drop_table(table)
