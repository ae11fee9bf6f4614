"""PostgreSQL's one statement for a message sent: a turn's start, if nothing is in its way.

A round trip takes as long as a database thread waits for its next turn on the CPU, and the transaction makes eight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Interval,
    Table,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from app.store.db.models import Conversation, Message, Turn, table_of
from app.store.db.prepared_statements import JsonRows, Prepared
from app.store.db.rows import RUNNING, count_running_of

_CONVERSATION, _MESSAGE, _TURN = table_of(Conversation), table_of(Message), table_of(Turn)

Values = Mapping[str, Any]
"""Column values of a row, in the order of the columns."""


class BeginStatement:
    """Writes a conversation, or that it has moved on, a message with its empty reply, and a running turn.

    It returns a row if it has written that. It has written nothing if the conversation is missing or another user's, if
    its tip is not the message's parent, if a reply is being written in it, or if it has had a comparison; nor if more
    of the user's replies are running than may be, or the conversation has changed since it was read. Raises
    IntegrityError if a reply has begun just now.

    Args:
        conversation: the columns that are set.
        creates_conversation: otherwise it exists.
        counts_running: limits the user's running replies.
        checks_change: requires that the conversation is as it was read.
    """

    def __init__(
        self,
        conversation: Sequence[str],
        messages: Sequence[str],
        turn: Sequence[str],
        *,
        creates_conversation: bool,
        counts_running: bool,
        checks_change: bool,
    ) -> None:
        self._conversation = _rows_of(_CONVERSATION, conversation)
        self._messages = _rows_of(_MESSAGE, messages)
        self._turn = _rows_of(_TURN, turn)
        conditions: list[ColumnElement[bool]] = []
        if counts_running:
            conditions.append(count_running_of("user_id").scalar_subquery() <= bindparam("max_running"))
        if checks_change:
            conditions.append(_CONVERSATION.c.updated_at == bindparam("read_as_of"))
        found = self._created(conditions) if creates_conversation else self._updated(conversation, conditions)
        message: dict[str, ColumnElement[Any]] = {name: self._messages.table.c[name] for name in messages}
        message["position"] += found.c.position
        of_messages = insert(_MESSAGE).from_select(
            list(message), select(*message.values()).select_from(found, self._messages.table), include_defaults=False
        )
        # By the database's clock, because processes on different machines compare it.
        lease_until = func.now() + bindparam("lease", type_=Interval)
        of_turn = insert(_TURN).from_select(
            [*turn, "lease_until"],
            select(*(self._turn.table.c[name] for name in turn), lease_until).select_from(found, self._turn.table),
            include_defaults=False,
        )
        self.statement = Prepared(of_turn.add_cte(of_messages.cte("messages")).returning(_TURN.c.id))

    def parameters(
        self,
        conversation: Values,
        messages: Sequence[Values],
        turn: Values,
        *,
        user_id: str,
        parent_id: str | None,
        lease: timedelta,
        max_running: int | None,
        read_as_of: datetime | None,
    ) -> dict[str, Any]:
        """The parameters of :attr:`statement`.

        Args:
            messages: their positions are relative to that of the first of them.
            parent_id: of the message before them; None in a new conversation.
            max_running: the most replies of the user that may be running, if that is limited.
            read_as_of: the conversation's ``updated_at`` when it was read, if that is checked.
        """
        given = {
            "new_conversation": self._conversation.parameter([conversation.values()]),
            "new_message": self._messages.parameter(message.values() for message in messages),
            "new_turn": self._turn.parameter([turn.values()]),
        }
        ids = {"conversation_id": turn["conversation_id"], "user_id": user_id, "parent_id": parent_id}
        checked = {"max_running": max_running, "read_as_of": read_as_of}
        return {**given, **ids, **checked, "lease": lease}

    def _created(self, conditions: Sequence[ColumnElement[bool]]) -> CTE:
        values = self._conversation.table.c
        row = select(*values).where(*conditions)
        new = insert(_CONVERSATION).from_select(values.keys(), row, include_defaults=False)
        return new.returning(literal(0).label("position")).cte("found")

    def _updated(self, columns: Sequence[str], conditions: Sequence[ColumnElement[bool]]) -> CTE:
        parent = _MESSAGE.alias("parent")
        # A reply that another transaction starts while this statement waits for the row is not seen here. Column 0
        # may run only once, by a unique index; where there are other columns, the transaction looks again.
        in_the_way = select(_TURN.c.id).where(
            _TURN.c.conversation_id == _CONVERSATION.c.id,
            or_(_TURN.c.status == RUNNING, _TURN.c.comparison_column > 0),
        )
        return (
            update(_CONVERSATION)
            .where(
                _CONVERSATION.c.id == bindparam("conversation_id"),
                _CONVERSATION.c.user_id == bindparam("user_id"),
                _CONVERSATION.c.deletion.is_(None),
                _CONVERSATION.c.tip_message_id == bindparam("parent_id"),
                parent.c.id == bindparam("parent_id"),
                parent.c.deletion.is_(None),
                ~in_the_way.exists(),
                *conditions,
            )
            .values({name: self._conversation.table.c[name] for name in columns})
            .returning((parent.c.position + 1).label("position"))
            .cte("found")
        )


@cache
def begin_statement(
    conversation: tuple[str, ...],
    messages: tuple[str, ...],
    turn: tuple[str, ...],
    *,
    creates_conversation: bool,
    counts_running: bool,
    checks_change: bool,
) -> BeginStatement:
    """The statement for these columns."""
    return BeginStatement(
        conversation,
        messages,
        turn,
        creates_conversation=creates_conversation,
        counts_running=counts_running,
        checks_change=checks_change,
    )


def _rows_of(table: Table, columns: Sequence[str]) -> JsonRows:
    return JsonRows(f"new_{table.name}", {name: table.c[name].type for name in columns})
