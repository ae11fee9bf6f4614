"""The files of contacts. Each is stored before the message that names it is sent."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.attachments import MAX_CONTACT_BYTES, MAX_UNSENT
from app.domain.case_views import AttachmentView
from app.domain.ids import new_id
from app.errors import LimitReached, NotFound
from app.store.db.case_models import CaseAttachment, Contact
from app.store.db.database import Database
from app.store.db.rows import is_id


class Attachments:
    """The repository of a contact's own files. Agents read them through their case."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, contact_id: str, name: str, type: str, content: bytes) -> AttachmentView:
        """Stores a file of a contact, whose name and type have been checked.

        Raises:
            NotFound: the contact was deleted.
            LimitReached: the contact has as many files, or bytes, as may be stored.
        """

        def work(session: Session) -> AttachmentView:
            # Locked, so that two uploads at once do not pass the limits together.
            if session.scalar(select(Contact.id).where(Contact.id == contact_id).with_for_update()) is None:
                raise NotFound("This chat was deleted.")
            own = CaseAttachment.contact_id == contact_id
            unsent = session.scalar(
                select(func.count()).select_from(CaseAttachment).where(own, CaseAttachment.message_id.is_(None))
            )
            size = session.scalar(select(func.coalesce(func.sum(CaseAttachment.size), 0)).where(own)) or 0
            if (unsent or 0) >= MAX_UNSENT:
                raise LimitReached(f"{MAX_UNSENT} files wait to be sent. Send or remove some first.")
            if size + len(content) > MAX_CONTACT_BYTES:
                raise LimitReached(
                    f"Your files take {MAX_CONTACT_BYTES // 2**20} MiB, which is all that can be stored."
                )
            row = CaseAttachment(
                id=new_id(),
                contact_id=contact_id,
                name=name,
                type=type,
                size=len(content),
                content=content,
                created_at=datetime.now(UTC),
            )
            session.add(row)
            return AttachmentView(row.id, row.name, row.type, row.size)

        return await self._database.write(work)

    async def read(self, contact_id: str, attachment_id: str) -> tuple[str, str, bytes]:
        """Name, type and content of one of the contact's files.

        Raises:
            NotFound: it is missing, or another contact's.
        """

        def work(session: Session) -> tuple[str, str, bytes]:
            found = session.execute(
                select(CaseAttachment.name, CaseAttachment.type, CaseAttachment.content).where(
                    CaseAttachment.id == (attachment_id if is_id(attachment_id) else ""),
                    CaseAttachment.contact_id == contact_id,
                )
            ).one_or_none()
            if found is None:
                raise NotFound("There is no such file in this chat.")
            return found.name, found.type, found.content

        return await self._database.read(work)
