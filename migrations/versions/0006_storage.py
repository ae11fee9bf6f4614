"""Adds the stored size of each row's long columns, so that a user's storage is counted without reading texts."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

#: By table: the column that sizes are grouped by, and the size expression on SQLite and on PostgreSQL.
_COUNTED = {
    "conversation": (
        "user_id",
        "coalesce(length(CAST(settings AS BLOB)), 0)",
        "coalesce(octet_length(settings::text), 0)",
    ),
    "message": (
        "conversation_id",
        "coalesce(length(CAST(content AS BLOB)), 0) + coalesce(length(CAST(token_ids AS BLOB)), 0)",
        "coalesce(octet_length(content), 0) + coalesce(octet_length(token_ids), 0)",
    ),
    "turn": (
        "conversation_id",
        "coalesce(length(CAST(params AS BLOB)), 0)",
        "coalesce(octet_length(params::text), 0)",
    ),
}


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for table, (counted_by, on_sqlite, on_postgres) in _COUNTED.items():
        if postgres:
            computed = f"BIGINT NOT NULL GENERATED ALWAYS AS ({on_postgres}) STORED"
            op.execute(f"ALTER TABLE {table} ADD COLUMN stored_bytes {computed}")
        else:
            op.execute(f"ALTER TABLE {table} ADD COLUMN stored_bytes BIGINT GENERATED ALWAYS AS ({on_sqlite})")
            op.create_index(f"ix_{table}_{counted_by}_stored_bytes", table, [counted_by, "stored_bytes"])


def downgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for table, (counted_by, *_) in _COUNTED.items():
        if not postgres:
            op.drop_index(f"ix_{table}_{counted_by}_stored_bytes", table)
        op.execute(f"ALTER TABLE {table} DROP COLUMN stored_bytes")
