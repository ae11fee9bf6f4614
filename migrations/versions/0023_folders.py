"""Adds folders of conversations, and deletions of whole conversations that can be undone for a while."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_DELETED = sa.text("deletion IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "folder",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_folder_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_folder")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_folder_user_id_name")),
    )
    op.add_column(
        "conversation",
        sa.Column(
            "folder_id",
            sa.String(length=36),
            nullable=True,
            comment="A folder of the same user; null: in none. No foreign key: SQLite could not add one to this table.",
        ),
    )
    op.add_column(
        "conversation",
        sa.Column(
            "deletion",
            sa.String(length=36),
            nullable=True,
            comment="Deleted by the deletion of this id (UUIDv7: it tells when), which can be undone for a while. "
            "Until then only the import and the cleanup see the row.",
        ),
    )
    op.create_index(
        "ix_conversation_folder_list",
        "conversation",
        ["folder_id", "user_id", "archived", "pinned", "updated_at", "id"],
    )
    op.create_index(
        "ix_conversation_deletion",
        "conversation",
        ["deletion"],
        sqlite_where=_DELETED,
        postgresql_where=_DELETED,
    )


def downgrade() -> None:
    # What was deleted would come back.
    op.execute("DELETE FROM conversation WHERE deletion IS NOT NULL")
    op.drop_index("ix_conversation_deletion", table_name="conversation")
    op.drop_index("ix_conversation_folder_list", table_name="conversation")
    for column in ("deletion", "folder_id"):
        op.execute(f"ALTER TABLE conversation DROP COLUMN {column}")
    op.drop_table("folder")
