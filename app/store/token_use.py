"""How much of the engine each person takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.store.database import Database, is_postgres
from app.store.models import Conversation, TokenUse, Turn


class TokenUses:
    """The repository of tokens by person and day, and of replies under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, user_id: str, tokens: int) -> None:
        """Count tokens towards today."""

        def work(session: Session) -> None:
            insert = postgresql.insert(TokenUse) if is_postgres(session) else sqlite.insert(TokenUse)
            added = insert.values(user_id=user_id, day=today(), tokens=tokens)
            session.execute(
                added.on_conflict_do_update(
                    index_elements=[TokenUse.user_id, TokenUse.day],
                    set_={"tokens": TokenUse.tokens + added.excluded.tokens},
                )
            )

        await self._database.write(work)

    async def of_today(self, user_id: str) -> int:
        """How many tokens somebody's replies have taken today."""
        used = select(TokenUse.tokens).where(TokenUse.user_id == user_id, TokenUse.day == today())
        return await self._database.read(lambda session: session.scalar(used)) or 0

    async def replies_under_way(self, user_id: str) -> int:
        """How many replies are being written for somebody, by whatever process."""
        running = (
            select(func.count())
            .select_from(Turn)
            .join(Conversation, Conversation.id == Turn.conversation_id)
            .where(Turn.status == "running", Conversation.user_id == user_id)
        )
        return await self._database.read(lambda session: session.scalar(running)) or 0


def today() -> str:
    """The day in UTC."""
    return datetime.now(UTC).date().isoformat()


def seconds_until_tomorrow() -> int:
    """Until the next day in UTC begins."""
    now = datetime.now(UTC)
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return max(1, int((tomorrow - now).total_seconds()))
