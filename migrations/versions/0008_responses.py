"""Adds the responses that ``/v1/responses`` stores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COUNTED = ("input", "body")


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    size = "octet_length({})" if postgres else "length(CAST({} AS BLOB))"
    counted = sa.Computed(" + ".join(f"coalesce({size.format(column)}, 0)" for column in _COUNTED))
    op.create_table(
        "response",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column(
            "thread_id",
            sa.String(length=36),
            nullable=False,
            comment="The first response of its chain; retention deletes a chain as a whole.",
        ),
        sa.Column(
            "previous_id",
            sa.String(length=36),
            nullable=True,
            comment="The response that it continues. No foreign key: after a deletion it says that one is missing.",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input", sa.Text(), nullable=False, comment="Its own input items, as JSON."),
        sa.Column("body", sa.Text(), nullable=False, comment="The response as it was sent, as JSON."),
        sa.Column("stored_bytes", sa.BigInteger(), counted, nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_response_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_response")),
    )
    op.create_index("ix_response_user_id_created_at", "response", ["user_id", "created_at"])
    op.create_index("ix_response_thread_id_created_at", "response", ["thread_id", "created_at"])
    if not postgres:
        op.create_index("ix_response_user_id_stored_bytes", "response", ["user_id", "stored_bytes"])


def downgrade() -> None:
    op.drop_table("response")
