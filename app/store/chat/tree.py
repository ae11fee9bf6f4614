"""Queries on the message tree. Callers have checked that the conversation is the user's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import CTE, Connection, FromClause, Row, Select, bindparam, func, insert, literal, select, true
from sqlalchemy.orm import Session, aliased, undefer

from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.tool_use import ToolUse
from app.store.db.database import is_postgres
from app.store.db.models import Message, Turn, table_of
from app.store.db.prepared_statements import Prepared

_MESSAGE, _TURN = table_of(Message), table_of(Turn)
#: The turn is None if the outer join found none, which SQLAlchemy's types do not express.
MessageRow = Row[tuple[Message, Turn]]


def path_to(
    session: Session, message_id: str | None, limit: int | None = None, *, token_ids: bool = False
) -> Sequence[MessageRow]:
    """The messages from the root (or ``limit`` messages up) to ``message_id``, oldest first, with their turns.

    ``token_ids``: also load the token ids.
    """
    if message_id is None:
        return ()
    given = {"message_id": message_id} if limit is None else {"message_id": message_id, "limit": limit}
    return session.execute(_path(limit is not None, token_ids), given).all()


class PromptRow(NamedTuple):
    """The columns that a prompt needs of a message and, for a reply, of its turn."""

    role: str
    content: str
    token_ids: tuple[int, ...] | None
    omitted_messages: int | None
    context_length: int | None
    reasoning: str | None
    tool_uses: tuple[ToolUse, ...] | None
    sources: tuple[Passage, ...] | None


def prompt_path(connection: Connection, message_id: str | None) -> list[PromptRow]:
    """As :func:`path_to` from the root, but without the ORM: every message sent reads the whole conversation."""
    if message_id is None:
        return []
    statement = _PROMPT_PATH_POSTGRES if is_postgres(connection) else _PROMPT_PATH
    return [PromptRow(*row) for row in statement.rows(connection, {"message_id": message_id})]


@cache
def _path(limited: bool, token_ids: bool) -> Select[tuple[Message, Turn]]:
    """Cached: building the statement takes longer than running it."""
    path = _ids_on_path(limited)
    return (
        select(Message, Turn)
        .options(*([undefer(Message.token_ids)] if token_ids else []))
        .join(path, Message.id == path.c.id)
        .outerjoin(Turn, Turn.message_id == Message.id)
        .order_by(Message.position)
    )


def _first_on_path() -> CTE:
    first = select(_MESSAGE.c.id, _MESSAGE.c.parent_id, literal(1).label("length"))
    return first.where(_MESSAGE.c.id == bindparam("message_id")).cte("path", recursive=True)


def _ids_on_path(limited: bool) -> CTE:
    path, parent = _first_on_path(), _MESSAGE.alias()
    step = select(parent.c.id, parent.c.parent_id, path.c.length + 1).join(path, parent.c.id == path.c.parent_id)
    if limited:
        step = step.where(path.c.length < bindparam("limit"))
    return path.union_all(step)


_OF_MESSAGE = (
    _MESSAGE.c.role,
    _MESSAGE.c.content,
    _MESSAGE.c.token_ids,
    _MESSAGE.c.reasoning,
    _MESSAGE.c.tool_uses,
    _MESSAGE.c.sources,
    _MESSAGE.c.position,
)
_OF_TURN = (_TURN.c.omitted_messages, _TURN.c.context_length)


def _prompt_columns(of_message: FromClause, of_turn: FromClause) -> Select[Any]:
    names_of_turn = {column.name for column in _OF_TURN}
    return select(*((of_turn if name in names_of_turn else of_message).c[name] for name in PromptRow._fields))


def _prompt_path() -> Prepared:
    path = _ids_on_path(limited=False)
    return Prepared(
        _prompt_columns(_MESSAGE, _TURN)
        .join(path, _MESSAGE.c.id == path.c.id)
        .outerjoin(_TURN, _TURN.c.message_id == _MESSAGE.c.id)
        .order_by(_MESSAGE.c.position)
    )


def _prompt_path_postgres() -> Prepared:
    """As :func:`_prompt_path`, with a lookup by id for each message.

    PostgreSQL estimates every path at about a hundred messages, and reads all messages and turns for it, until the
    tables are large and it plans the statement again. ``LIMIT`` keeps it from making a join of a lookup.
    """
    path, parent = _first_on_path(), _MESSAGE.alias()
    above = select(parent.c.id, parent.c.parent_id).where(parent.c.id == path.c.parent_id).limit(1).lateral()
    step = select(above.c.id, above.c.parent_id, path.c.length + 1).select_from(path).join(above, true())
    path = path.union_all(step)
    of_message = select(*_OF_MESSAGE).where(_MESSAGE.c.id == path.c.id).limit(1).lateral()
    of_turn = select(*_OF_TURN).where(_TURN.c.message_id == path.c.id).limit(1).lateral()
    return Prepared(
        _prompt_columns(of_message, of_turn)
        .select_from(path)
        .join(of_message, true())
        .outerjoin(of_turn, true())
        .order_by(of_message.c.position)
    )


_PROMPT_PATH = _prompt_path()
_PROMPT_PATH_POSTGRES = _prompt_path_postgres()


def siblings_of(session: Session, messages: Sequence[Message]) -> dict[str, list[str]]:
    """For each of these messages of one path: the ids of its siblings, itself included, oldest first."""
    if not messages:
        return {}
    rows = session.execute(
        select(Message.id, Message.parent_id)
        .where(
            Message.conversation_id == messages[0].conversation_id,
            Message.position.between(messages[0].position, messages[-1].position),
            Message.deletion.is_(None),
        )
        .order_by(Message.id)
    )
    following: dict[str | None, list[str]] = {}
    for id, parent_id in rows:
        following.setdefault(parent_id, []).append(id)
    return {message.id: following[message.parent_id] for message in messages}


def latest_below(session: Session, message_id: str) -> str:
    """The last message of the branch that starts at ``message_id`` and takes the latest child at every fork."""
    branch = select(Message.id, literal(0).label("depth")).where(Message.id == message_id).cte("branch", recursive=True)
    child, younger = aliased(Message), aliased(Message)
    latest = (
        select(func.max(younger.id))
        .where(younger.parent_id == branch.c.id, younger.deletion.is_(None))
        .correlate(branch)
        .scalar_subquery()
    )
    branch = branch.union_all(select(child.id, branch.c.depth + 1).join(branch, child.id == latest))
    last: str = session.execute(select(branch.c.id).order_by(branch.c.depth.desc()).limit(1)).scalar_one()
    return last


def copy_path(session: Session, path: Sequence[MessageRow], conversation_id: str) -> str | None:
    """Copies a path of messages and their turns into another conversation; returns the last copy's id."""
    parent_id = None
    messages: list[dict[str, object]] = []
    turns: list[dict[str, object]] = []
    for position, (message, turn) in enumerate(path):
        id = new_id()
        ids = {"id": id, "conversation_id": conversation_id, "parent_id": parent_id, "position": position}
        messages.append(_values(message) | ids | {"indexed": False})
        if turn is not None:
            ids = {"id": new_id(), "conversation_id": conversation_id, "message_id": id}
            turns.append(_values(turn) | ids | {"comparison_id": None, "comparison_column": 0})
        parent_id = id
    for table, rows in ((_MESSAGE, messages), (_TURN, turns)):
        if rows:
            session.execute(insert(table), rows)
    return parent_id


def _values(row: Message | Turn) -> dict[str, object]:
    return {
        column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs if not column.columns[0].computed
    }
