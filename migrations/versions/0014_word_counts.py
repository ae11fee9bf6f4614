"""Counts the chunks that have a word, and keeps a vector of each window of a chunk. All chunks are indexed anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "kb_word",
        sa.Column("collection_id", sa.String(length=36), nullable=False),
        sa.Column(
            "word",
            sa.String(length=80, collation="C" if postgres else None),
            nullable=False,
            comment='A stem; "#" before it: in a heading or title; empty: every chunk.',
        ),
        sa.Column("chunks", sa.BigInteger(), nullable=False, comment="Indexed chunks of the collection that have it."),
        sa.ForeignKeyConstraint(
            ["collection_id"],
            ["kb_collection.id"],
            name=op.f("fk_kb_word_collection_id_kb_collection"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("collection_id", "word", name=op.f("pk_kb_word")),
    )
    op.add_column(
        "kb_chunk",
        sa.Column(
            "windows", sa.LargeBinary(), nullable=True, comment="Vectors of its windows, int8, one after another."
        ),
    )
    op.execute("UPDATE kb_chunk SET indexed = false")  # in the background, after the start


def downgrade() -> None:
    op.drop_column("kb_chunk", "windows")
    op.drop_table("kb_word")
    op.execute("UPDATE kb_chunk SET indexed = false")
