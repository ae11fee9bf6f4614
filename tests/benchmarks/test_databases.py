"""The databases that benchmarks measure are those that were asked for, and empty."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from benchmarks.databases import databases


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_name_is_an_empty_database_of_its_own(tmp_path: Path, kind: str) -> None:
    with databases([kind], tmp_path) as makers:
        assert list(makers) == [kind]
        for name in ("one", "two"):
            engine = sa.create_engine(makers[kind](name))
            assert engine.dialect.name == kind
            assert sa.inspect(engine).get_table_names() == []
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE made (id INTEGER)"))
            engine.dispose()
    assert len(list(tmp_path.glob("*.db"))) == (2 if kind == "sqlite" else 0)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kept_databases_are_there_the_next_time(tmp_path: Path, kind: str) -> None:
    for run in range(2):
        with databases([kind], tmp_path, keep=True) as makers:
            engine = sa.create_engine(makers[kind]("one"))
            assert sa.inspect(engine).get_table_names() == ["made"] * run
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE IF NOT EXISTS made (id INTEGER)"))
            engine.dispose()
