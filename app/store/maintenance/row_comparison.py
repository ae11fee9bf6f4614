"""The same rows of two databases side by side, in the order of their keys and in bounded memory."""

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

from app.store.db.desk_models import METADATA
from app.store.db.models import TokenIds

#: How many rows are held at a time.
ROWS_AT_ONCE = 500

#: Tables that each database makes from the others; ``indexed`` says what is in them.
DERIVED = frozenset({"search_entry"})
_INDEXED = "indexed"

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table as it is copied and compared: its values as they are stored, in an order that puts parents first."""

    name: str
    clause: TableClause
    columns: tuple[ColumnClause[Any], ...]
    names: tuple[str, ...]  #: of the columns
    key: tuple[str, ...]  #: what the order goes by
    key_of: Callable[[Row], Any]  #: its values in a row, comparable with those of another
    identity: str  #: the column with the id that people are told
    group: str | None  #: the column with the conversation's id; None for what belongs to none
    documents: tuple[int, ...]  #: where in a row JSON is

    def same(self, mine: Row, theirs: Row) -> bool:
        """Whether two rows are equal in every column."""
        # As text: 1, 1.0 and true are equal to Python, but not the same.
        return mine == theirs and all(json.dumps(mine[at]) == json.dumps(theirs[at]) for at in self.documents)

    def differing(self, mine: Row, theirs: Row) -> list[str]:
        """The columns in which two rows are not the same."""
        return [
            name
            for at, name in enumerate(self.names)
            if (json.dumps(mine[at]) != json.dumps(theirs[at]) if at in self.documents else mine[at] != theirs[at])
        ]


def compared_tables() -> tuple[ComparedTable, ...]:
    """Every table that holds something of its own, those that others point at first."""
    return tuple(_kind(one) for one in METADATA.sorted_tables if one.name not in DERIVED)


def _kind(made: Table) -> ComparedTable:
    # Token ids as they lie there: they need not be understood to be the same.
    # What the database computes by itself cannot be written, and is the same where the rest is.
    columns = tuple(
        column(one.name, LargeBinary() if isinstance(one.type, TokenIds) else one.type)
        for one in made.c
        if one.computed is None
    )
    group = "conversation_id" if "conversation_id" in made.c else "id" if made.name == "conversation" else None
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


def rows(
    connection: Connection, kind: ComparedTable, conversations: Sequence[str] | None = None, *, unindexed: bool = False
) -> Iterator[Row]:
    """The rows of these conversations, or all, by key.

    Args:
        unindexed: with ``indexed`` false in all of them, as they are in a database that has just got them.
    """
    wanted = [false().label(_INDEXED) if unindexed and one.name == _INDEXED else one for one in kind.columns]
    ordered = [one for name in kind.key for one in kind.columns if one.name == name]
    if connection.dialect.name == "postgresql":
        # By code points, as SQLite and Python do; a language's order may leave hyphens out.
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
    kind: ComparedTable, mine: Iterator[Row], theirs: Iterator[Row]
) -> Iterator[tuple[Row | None, Row | None]]:
    """The rows of both in the order of their keys, those of one key together; None where one side has no such row."""
    ours, other = next(mine, None), next(theirs, None)
    while ours is not None and other is not None:
        my_key, their_key = kind.key_of(ours), kind.key_of(other)
        if my_key == their_key:
            yield ours, other
            ours, other = next(mine, None), next(theirs, None)
        elif my_key < their_key:
            yield ours, None
            ours = next(mine, None)
        else:
            yield None, other
            other = next(theirs, None)
    while ours is not None:
        yield ours, None
        ours = next(mine, None)
    while other is not None:
        yield None, other
        other = next(theirs, None)
