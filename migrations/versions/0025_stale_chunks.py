"""Adds which documents have chunks to be deleted: a large version is stored, replaced and removed in batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "kb_document",
        sa.Column(
            "has_stale_chunks",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="Chunks of other versions than the searched one may be there: half a new one, or the rest of an "
            "old one.",
        ),
    )
    op.add_column(
        "kb_document",
        sa.Column(
            "removed",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="Only the cleanup sees the row, whose name is then its id. It goes when its chunks have gone.",
        ),
    )
    op.create_index(
        "ix_kb_document_stale",
        "kb_document",
        ["id"],
        sqlite_where=sa.text("has_stale_chunks = 1"),
        postgresql_where=sa.text("has_stale_chunks"),
    )


def downgrade() -> None:
    # Searches would find them again. All words are counted anew in the background.
    op.execute("DELETE FROM kb_document WHERE removed")
    op.execute(
        "DELETE FROM kb_chunk WHERE EXISTS (SELECT 1 FROM kb_document WHERE kb_document.id = kb_chunk.document_id "
        "AND kb_document.has_stale_chunks AND (kb_document.version IS NULL OR kb_document.version <> kb_chunk.version))"
    )
    op.execute("DELETE FROM kb_word")
    op.execute("UPDATE kb_chunk SET indexed = false")
    op.drop_index("ix_kb_document_stale", table_name="kb_document")
    for column in ("removed", "has_stale_chunks"):
        op.execute(f"ALTER TABLE kb_document DROP COLUMN {column}")
