"""Pairs the rows of two databases for comparison, in key order and in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnClause,
    Connection,
    LargeBinary,
    String,
    Table,
    TableClause,
    collate,
    column,
    false,
    select,
    table,
)

from app.store.db.metadata import METADATA
from app.store.db.models import TokenIds

#: Rows held in memory at a time.
ROWS_AT_ONCE = 500

#: Tables that a copy has of its own: search indexes, whose covered rows ``indexed`` marks, and the state of backups.
DERIVED = frozenset({"search_entry", "kb_entry", "kb_word", "backup_run"})
_INDEXED = "indexed"

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table as it is copied and compared: stored values, in an order that puts parents first."""

    name: str
    clause: TableClause
    columns: tuple[ColumnClause[Any], ...]
    names: tuple[str, ...]  #: column names
    key: tuple[str, ...]  #: columns that define the order
    key_of: Callable[[Row], Any]  #: a row's key, comparable across both databases
    identity: str  #: the id column, for messages
    group: str | None  #: the column with the conversation's id; None if rows belong to no conversation
    documents: tuple[int, ...]  #: indices of JSON columns

    def same(self, left: Row, right: Row) -> bool:
        """Whether two rows are equal in every column."""
        # Compares JSON as text: 1, 1.0 and true are equal in Python but differ as JSON.
        return left == right and all(json.dumps(left[at]) == json.dumps(right[at]) for at in self.documents)

    def differing(self, left: Row, right: Row) -> list[str]:
        """The columns in which two rows differ."""
        return [
            name
            for at, name in enumerate(self.names)
            if (json.dumps(left[at]) != json.dumps(right[at]) if at in self.documents else left[at] != right[at])
        ]


def compared_tables() -> tuple[ComparedTable, ...]:
    """All tables except derived ones, referenced tables first."""
    return tuple(_kind(one) for one in METADATA.sorted_tables if one.name not in DERIVED)


def _kind(made: Table) -> ComparedTable:
    # Token ids as raw bytes: they need not be decoded to be compared.
    # Computed columns cannot be written, and are equal if the others are.
    columns = tuple(
        column(one.name, LargeBinary() if isinstance(one.type, TokenIds) else one.type)
        for one in made.c
        if one.computed is None
    )
    group = _group(made)
    leading = [name for name in (group, "position") if name is not None and name in made.c]
    identity = [one.name for one in made.primary_key]
    key = (*leading, *(name for name in identity if name not in leading))
    names = tuple(one.name for one in columns)
    return ComparedTable(
        name=made.name,
        clause=table(made.name, *columns),
        columns=columns,
        names=names,
        key=key,
        key_of=itemgetter(*map(names.index, key)),
        identity=identity[0],
        group=group,
        documents=tuple(at for at, one in enumerate(columns) if isinstance(one.type, JSON)),
    )


def _group(made: Table) -> str | None:
    """The column that holds a conversation's id; a case has that of its conversation.

    A case's file that no message has yet is of no conversation and stays behind; none is kept for longer than a day.
    """
    if made.name == "conversation":
        return "id"
    of_conversation = (
        one.name
        for one in made.c
        for key in one.foreign_keys
        if key.column.table.name in ("conversation", "support_case")
    )
    return next(of_conversation, None)


def rows(
    connection: Connection, kind: ComparedTable, conversations: Sequence[str] | None = None, *, unindexed: bool = False
) -> Iterator[Row]:
    """The rows of these conversations, or all rows, in key order.

    Args:
        unindexed: return ``indexed`` as false in all rows, as it is in a freshly filled database.
    """
    wanted = [false().label(_INDEXED) if unindexed and one.name == _INDEXED else one for one in kind.columns]
    ordered = [one for name in kind.key for one in kind.columns if one.name == name]
    if connection.dialect.name == "postgresql":
        # By code points, as SQLite and Python do; a language's collation may ignore hyphens.
        order = [collate(one, "C") if isinstance(one.type, String) else one for one in ordered]
    else:
        order = list(ordered)
    statement = select(*wanted).select_from(kind.clause).order_by(*order)
    if conversations is not None:
        assert kind.group is not None
        statement = statement.where(column(kind.group).in_(conversations))
    result = connection.execute(statement, execution_options={"stream_results": True, "yield_per": ROWS_AT_ONCE})
    for row in result:
        yield row._tuple()


def side_by_side(
    kind: ComparedTable, left: Iterator[Row], right: Iterator[Row]
) -> Iterator[tuple[Row | None, Row | None]]:
    """Pairs the rows of both sides by key, in key order; None where a side has no such row."""
    left_row, right_row = next(left, None), next(right, None)
    while left_row is not None and right_row is not None:
        left_key, right_key = kind.key_of(left_row), kind.key_of(right_row)
        if left_key == right_key:
            yield left_row, right_row
            left_row, right_row = next(left, None), next(right, None)
        elif left_key < right_key:
            yield left_row, None
            left_row = next(left, None)
        else:
            yield None, right_row
            right_row = next(right, None)
    while left_row is not None:
        yield left_row, None
        left_row = next(left, None)
    while right_row is not None:
        yield None, right_row
        right_row = next(right, None)
