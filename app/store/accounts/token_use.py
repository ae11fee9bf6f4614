"""Token use per user and day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger, Integer, String, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from app.store.db.database import Database
from app.store.db.models import Account, TokenUse, table_of
from app.store.db.prepared_statements import JsonRows, Prepared
from app.store.db.rows import count_running_of


class TokenUsageRecords:
    """The repository of tokens per user and day, and of running replies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, spent: Mapping[str, int]) -> None:
        """Adds tokens, by user id, to today's counts."""
        rows = [{"person": user_id, "today": today(), "spent": tokens} for user_id, tokens in sorted(spent.items())]

        if self._database.is_postgres:
            parameters = {"spent": _SPENT.parameter(row.values() for row in rows)}
            await self._database.write_statement(_ADD_POSTGRES, parameters)
        else:
            await self._database.write_rows(lambda connection: _ADD.run_each(connection, rows))

    async def of_today(self, user_id: str) -> int:
        """The tokens of the user's replies today."""
        parameters = {"person": user_id, "today": today()}
        rows = await self._database.read_statement(_USED, parameters)
        return int(rows[0][0]) if rows else 0

    async def replies_under_way(self, user_id: str) -> int:
        """How many replies are being written for the user, in all processes."""
        ((count,),) = await self._database.read_statement(_RUNNING, {"person": user_id})
        return int(count)


_ACCOUNT = table_of(Account)
_TABLE = table_of(TokenUse)
_KEY = (_TABLE.c.user_id, _TABLE.c.day)
# Statements of every message sent.
_USED = Prepared(
    select(_TABLE.c.tokens).where(_TABLE.c.user_id == bindparam("person"), _TABLE.c.day == bindparam("today"))
)
_RUNNING = Prepared(count_running_of("person"))
# Counting needs a statement per database: their upserts differ, and one statement adds all counts on PostgreSQL.
# Both skip deleted users: one who was deleted meanwhile must not cost the others their counts.
_NAMES = ["user_id", "day", "tokens"]
_ONE = select(_ACCOUNT.c.id, bindparam("today", type_=String), bindparam("spent", type_=Integer)).where(
    _ACCOUNT.c.id == bindparam("person")
)
_INSERT = sqlite.insert(_TABLE).from_select(_NAMES, _ONE)
_ADD = Prepared(
    _INSERT.on_conflict_do_update(index_elements=_KEY, set_={"tokens": _TABLE.c.tokens + _INSERT.excluded.tokens})
)
_SPENT = JsonRows("spent", {"user_id": String(), "day": String(), "tokens": BigInteger()})
# In the same order in each process, so that two of them do not wait for each other.
_ALL = (
    select(_ACCOUNT.c.id, _SPENT.table.c.day, _SPENT.table.c.tokens)
    .where(_ACCOUNT.c.id == _SPENT.table.c.user_id)
    .order_by(_ACCOUNT.c.id)
)
_INSERT_POSTGRES = postgresql.insert(_TABLE).from_select(_NAMES, _ALL)
_ADD_POSTGRES = Prepared(
    _INSERT_POSTGRES.on_conflict_do_update(
        index_elements=_KEY, set_={"tokens": _TABLE.c.tokens + _INSERT_POSTGRES.excluded.tokens}
    )
)


def today() -> str:
    """Today's date in UTC, ISO format."""
    return datetime.now(UTC).date().isoformat()


def seconds_until_tomorrow() -> int:
    """Seconds until the next day in UTC."""
    now = datetime.now(UTC)
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return max(1, int((tomorrow - now).total_seconds()))
