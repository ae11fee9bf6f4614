"""Alembic's environment: runs on the connection that the program passes, or on the configured database (CLI)."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from app.settings import AppSettings
from app.store.db.database import postgres_engine, sqlite_engine
from app.store.db.metadata import METADATA
from app.store.maintenance.migrate import sqlite_file


def run(connection: Connection) -> None:
    def compared(_object: object, name: str | None, kind: str, _reflected: bool, _other: object) -> bool:
        """Whether ``alembic check`` compares it: FTS5's tables have no models, some indexes are for one database."""
        if connection.dialect.name != "sqlite":
            return not (kind == "index" and (name or "").endswith("_stored_bytes"))
        is_fts = kind == "table" and (name or "").startswith(("search_entry_fts", "kb_entry_fts"))
        return not is_fts and name not in ("ix_search_entry_words", "ix_kb_entry_words")

    context.configure(
        connection=connection,
        include_object=compared,
        target_metadata=METADATA,
        render_as_batch=True,
        # DDL is transactional on our SQLite connections too, so a killed migration leaves nothing behind.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("Migrations look at the database; there is no offline mode.")

given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = AppSettings().resolved_database_url
    engine = sqlite_engine(url, connections=1) if sqlite_file(url) else postgres_engine(url, connections=1)
    with engine.begin() as connection:
        run(connection)
