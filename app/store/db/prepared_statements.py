"""Statements that every message runs: compiled once per database and executed by its driver directly.

SQLAlchemy's work between a statement and its rows takes several times as long as the database takes for these.
Here SQLAlchemy compiles the statement and picks the type converters once; both remain its own.
"""

from __future__ import annotations

import json
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Dialect,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    TextClause,
    TypeDecorator,
    Update,
    bindparam,
    func,
    insert,
    make_url,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.sql.schema import ScalarElementColumnDefault
from sqlalchemy.types import TypeEngine

from app.store.db import driver
from app.store.db.models import Base, table_of

Model = TypeVar("Model", bound=Base)

_Convert = Callable[[Any], Any]


class Compiled(NamedTuple):
    """A statement compiled for one dialect."""

    text: str
    names: tuple[str, ...] | None  #: parameter names in positional order; None if passed by name
    fixed: dict[str, Any]  #: parameters whose values are part of the statement
    given: tuple[tuple[str, _Convert], ...]  #: converters for those of the other parameters that need one
    columns: tuple[tuple[int, _Convert], ...]  #: converters for result columns, by index

    def parameters(self, given: Mapping[str, Any]) -> Sequence[Any] | dict[str, Any]:
        values = {**self.fixed, **given}
        for name, convert in self.given:
            values[name] = convert(values[name])
        return values if self.names is None else [values[name] for name in self.names]

    def converted_rows(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [self._converted(row) for row in rows] if self.columns else rows

    def _converted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for index, convert in self.columns:
            values[index] = convert(values[index])
        return tuple(values)


class Prepared:
    """One statement without the ORM. All its parameters are ``bindparam``, and none is a list.

    Runs in the connection's transaction and raises what any statement raises.
    """

    def __init__(self, statement: Select[Any] | Insert | Update | Delete | TextClause) -> None:
        self._statement = statement
        self._compiled: dict[str, Compiled] = {}  # by dialect name

    def rows(self, connection: Connection, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Returns the selected rows."""
        compiled = self._on(connection)
        return compiled.converted_rows(driver.fetch(connection, compiled.text, compiled.parameters(given)))

    def row(self, connection: Connection, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Returns the only selected row, or None."""
        found = self.rows(connection, given)
        return found[0] if found else None

    def rows_in(self, session: Session, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Returns the selected rows after a flush of the session, as its own statements do."""
        if session.autoflush:
            session.flush()
        return self.rows(session.connection(), given)

    def run(self, connection: Connection, given: Mapping[str, Any]) -> None:
        """Writes one row."""
        compiled = self._on(connection)
        driver.run(connection, compiled.text, compiled.parameters(given))

    def run_each(self, connection: Connection, given: Sequence[Mapping[str, Any]]) -> None:
        """Writes several rows in one round trip."""
        compiled = self._on(connection)
        driver.run_each(connection, compiled.text, [compiled.parameters(one) for one in given])

    def _on(self, connection: Connection) -> Compiled:
        return self.compiled(connection.dialect)

    def compiled(self, dialect: Dialect) -> Compiled:
        """The statement for a dialect."""
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            compiled = self._compiled[dialect.name] = _compile(self._statement, dialect)
        return compiled


class ListOf(TypeDecorator[Sequence[Any]]):
    """A list of strings or numbers as one parameter: an array on PostgreSQL, JSON on SQLite."""

    impl = Text
    cache_ok = True

    def __init__(self, item: TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.ARRAY(self.item) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> Any:
        return list(value or ()) if dialect.name == "postgresql" else json.dumps(list(value or ()))


class _IsAmong(FunctionElement[bool]):
    """Whether a column is one of the items of a parameter. Of no type: SQLAlchemy would append ``= 1`` to a boolean for
    SQLite, which then reads the whole table."""

    inherit_cache = True


@compiles(_IsAmong, "sqlite")
def _is_among_sqlite(element: _IsAmong, compiler: Any, **options: Any) -> str:
    of, items = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{of} IN (SELECT value FROM json_each({items}))"


@compiles(_IsAmong, "postgresql")
def _is_among_postgresql(element: _IsAmong, compiler: Any, **options: Any) -> str:
    of, items = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{of} = ANY({items})"


def is_among(of: InstrumentedAttribute[Any], parameter: str) -> ColumnElement[bool]:
    """Whether a column of strings or numbers is one of the list that is given as ``parameter``.

    A parameter for each of them would make a statement of each number of them.
    """
    item = BigInteger() if isinstance(of.type, Integer) else Text()
    return _IsAmong(of, bindparam(parameter, type_=ListOf(item)))


class JsonRows:
    """A table that PostgreSQL reads from one parameter, so that one statement writes any number of rows.

    Args:
        name: of the table, and of the parameter.
        types: of its columns, by name.
    """

    def __init__(self, name: str, types: Mapping[str, TypeEngine[Any]]) -> None:
        rows = func.json_to_recordset(bindparam(name, type_=JSON(none_as_null=True)))
        columns = [Column(key, type) for key, type in types.items()]
        self.table = rows.table_valued(*columns, name=name).render_derived(name=name, with_types=True)
        dialect = make_url("postgresql+psycopg://").get_dialect()()
        self._converts = [
            (key, None if isinstance(type, JSON) else type.dialect_impl(dialect).bind_processor(dialect))
            for key, type in types.items()
        ]

    def parameter(self, rows: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
        """The parameter for these rows, each of which has a value for each column, in their order."""
        return [
            {
                key: _as_json(value if convert is None else convert(value))
                for (key, convert), value in zip(self._converts, row, strict=True)
            }
            for row in rows
        ]


def _as_json(value: Any) -> Any:
    """A parameter of PostgreSQL's driver in a form that ``json_to_recordset`` reads as the same value."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


class PlainRows(Generic[Model]):
    """Rows of a model's table without the ORM: named tuples that have the model's attributes.

    Args:
        names: of the columns, separated by blanks; all of them by default.
    """

    def __init__(self, model: type[Model], names: str = "") -> None:
        table = table_of(model)
        self.columns = [table.c[name] for name in names.split()] or list(table.c)
        self._row = namedtuple(f"{model.__name__}Row", [column.key for column in self.columns])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.columns)

    def read(self, values: Iterable[Any]) -> Model:
        """Returns the selected values of :attr:`columns` as a row."""
        return cast(Model, self._row(*values))


def update_of(table: Table, columns: Iterable[str]) -> Prepared:
    """The statement that updates these columns in the row whose id is ``key``; cached per table and columns."""
    return _update_of(table, tuple(columns))


def insert_into(table: Table, columns: str, **computed: ColumnElement[Any]) -> Prepared:
    """The statement that inserts a row.

    Args:
        columns: names of the columns with a value per call, separated by blanks.
        computed: further columns, by the SQL expression that the database computes.
    """
    return Prepared(insert(table).values({name: bindparam(name) for name in columns.split()} | computed))


@cache
def insert_rows(table: Table, columns: str, number: int) -> Prepared:
    """The statement that inserts ``number`` rows at once; its parameters are :func:`row_parameters`."""
    chosen = [table.c[name] for name in columns.split()]
    # SQLAlchemy derives the types of the first row's parameters only.
    values = [{one.key: bindparam(f"{one.key}_{row}", type_=one.type) for one in chosen} for row in range(number)]
    return Prepared(insert(table).values(values))


def row_parameters(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of :func:`insert_rows`."""
    return {f"{name}_{row}": value for row, values in enumerate(rows) for name, value in values.items()}


@cache
def _update_of(table: Table, columns: tuple[str, ...]) -> Prepared:
    row = update(table).where(table.c.id == bindparam("key"))
    return Prepared(row.values({name: bindparam(name) for name in columns}))


def _compile(statement: Select[Any] | Insert | Update | Delete | TextClause, dialect: Dialect) -> Compiled:
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    assert not compiled.post_compile_params, "its text depends on its parameters"
    fixed = {name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required}
    for column in compiled.insert_prefetch:
        assert isinstance(column.default, ScalarElementColumnDefault), f"{column} has no value"
        fixed[column.key] = column.default.arg
    converts = {
        name: convert
        for name, bind in compiled.binds.items()
        if (convert := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
    }
    types = [column.type for column in statement.selected_columns] if isinstance(statement, Select) else []
    columns = [type.dialect_impl(dialect).result_processor(dialect, None) for type in types]
    return Compiled(
        text=str(compiled),
        names=tuple(compiled.positiontup) if compiled.positiontup is not None else None,
        fixed={name: converts[name](value) if name in converts else value for name, value in fixed.items()},
        given=tuple((name, convert) for name, convert in converts.items() if name not in fixed),
        columns=tuple((index, convert) for index, convert in enumerate(columns) if convert is not None),
    )
