"""Conversations put into the database directly: long ones, and texts a tiny model would never write."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID, new_id
from app.store.db.models import Conversation, Message


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
