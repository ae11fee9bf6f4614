"""The table of scheduled backups."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.store.db.models import ID_LENGTH, Base


class BackupRun(Base):
    """The scheduled backups of this database: one row, which the servers take turns with by a lease."""

    __tablename__ = "backup_run"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[str | None] = mapped_column(String(ID_LENGTH), comment="The server's start that makes a backup.")
    lease_until: Mapped[datetime | None] = mapped_column(comment="After it, the owner is dead. Null: none is made now.")
    started_at: Mapped[datetime | None] = mapped_column(comment="Of the last attempt.")
    good_at: Mapped[datetime | None] = mapped_column(comment="When the last good one was complete and checked.")
    good_file: Mapped[str | None] = mapped_column(Text)
    good_bytes: Mapped[int | None] = mapped_column(BigInteger)
    good_check: Mapped[str | None] = mapped_column(String(16), comment="How it was checked: restored, or read.")
    failed_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text, comment="The sentence of the last failure.")
