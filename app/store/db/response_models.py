"""The table of the responses that ``/v1/responses`` stores."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Dialect, ForeignKey, Index, String, Text, column
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from app.store.db.models import ID_LENGTH, Base, stored_bytes


class JsonText(TypeDecorator[Any]):
    """JSON as text in UTF-8. The type JSON escapes what is not ASCII, so that most languages take twice the room."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class StoredResponse(Base):
    """A response that ended, with its own input. Those before it in its chain have rows of their own."""

    __tablename__ = "response"
    __table_args__ = (
        Index("ix_response_user_id_created_at", "user_id", "created_at"),
        Index("ix_response_thread_id_created_at", "thread_id", "created_at"),
        Index("ix_response_user_id_stored_bytes", "user_id", "stored_bytes").ddl_if(dialect="sqlite"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    thread_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), comment="The first response of its chain; retention deletes a chain as a whole."
    )
    previous_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="The response that it continues. No foreign key: after a deletion it says that one is missing.",
    )
    created_at: Mapped[datetime]
    input: Mapped[list[Any]] = mapped_column(JsonText, comment="Its own input items, as JSON.")
    body: Mapped[dict[str, Any]] = mapped_column(JsonText, comment="The response as it was sent, as JSON.")
    stored_bytes: Mapped[int] = mapped_column(stored_bytes(column("input", Text), column("body", Text)), deferred=True)
