"""Put into the database directly: long conversations, texts a tiny model would never write, messages of visitors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID, new_id
from app.store.cases.contact_cases import ContactCases
from app.store.cases.signals import CaseSignals
from app.store.cases.visitors import Visitors
from app.store.db.case_models import SupportCase
from app.store.db.database import Database
from app.store.db.models import Conversation, Message
from app.store.db.notifications import Notifications

T = TypeVar("T")


def seed_conversation(data_dir: Path, title: str, texts: Sequence[str]) -> str:
    """Insert a finished conversation of ``texts``, user and assistant in turn; returns its id."""
    now = datetime.now(UTC)
    conversation_id = new_id()
    ids = [new_id() for _ in texts]
    engine = create_engine(f"sqlite:///{data_dir / 'deskmate.db'}", connect_args={"timeout": 10})
    with Session(engine) as session, session.begin():
        session.add(
            Conversation(
                id=conversation_id,
                user_id=LOCAL_USER_ID,
                title=title,
                settings={},
                tip_message_id=ids[-1],
                created_at=now,
                updated_at=now,
            )
        )
        session.flush()
        for position, text in enumerate(texts):
            session.add(
                Message(
                    id=ids[position],
                    conversation_id=conversation_id,
                    parent_id=ids[position - 1] if position else None,
                    role="assistant" if position % 2 else "user",
                    status="complete",
                    content=text,
                    position=position,
                    created_at=now,
                )
            )
            session.flush()
    engine.dispose()
    return conversation_id


def seed_case(data_dir: Path, inbox_id: str, name: str, *texts: str) -> str:
    """Lets a new visitor write to an inbox; returns the id of the case."""

    async def write(database: Database, contacts: ContactCases) -> str:
        visitor = await Visitors(database).create(inbox_id, new_id(), name=name, email="visitor@example.com")
        ids = [(await contacts.write(visitor.contact.id, text))[1].id for text in texts]
        return ids[-1]

    return _as_contact(data_dir, write)


def seed_case_message(data_dir: Path, case_id: str, text: str) -> None:
    """Lets the customer of a case write once more."""

    async def write(database: Database, contacts: ContactCases) -> None:
        case = await database.read(lambda session: session.get_one(SupportCase, case_id))
        await contacts.write(case.contact_id, text)

    _as_contact(data_dir, write)


def _as_contact(data_dir: Path, write: Callable[[Database, ContactCases], Awaitable[T]]) -> T:
    url = f"sqlite:///{data_dir / 'deskmate.db'}"

    async def run() -> T:
        database = Database(url)
        try:
            signals = CaseSignals(Notifications(url))
            return await write(database, ContactCases(database, signals, max_message_chars=100_000))
        finally:
            await database.close()

    with ThreadPoolExecutor(1) as thread:  # Playwright's loop runs in this one
        return thread.submit(lambda: asyncio.run(run())).result()
