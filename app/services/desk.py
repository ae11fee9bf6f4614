"""The services behind the desk's pages for admins and viewers: usage, review, audit log, erasure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.services.erasure import Erasure
from app.store.accounts.personal_data import UserDataRecords
from app.store.db.database import Database
from app.store.desk.audit_log import AuditLog
from app.store.desk.draft_review import DraftReviews
from app.store.desk.review import Reviews
from app.store.desk.usage import UsageRecords
from app.store.knowledge.withheld import withheld, withheld_drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The desk's services over one database."""

    usage: UsageRecords
    reviews: Reviews
    drafts: DraftReviews
    audit_log: AuditLog
    erasure: Erasure

    @classmethod
    def create(
        cls,
        database: Database,
        *,
        disable_account: Callable[[str, str | None], Awaitable[None]],
        delete_conversation: Callable[[str, str], Awaitable[None]],
        delete_temporary_chats: Callable[[str], Awaitable[None]],
    ) -> Desk:
        """Creates the services. For the callbacks, see :class:`app.services.erasure.Erasure`."""
        return cls(
            usage=UsageRecords(database),
            reviews=Reviews(database, withheld),
            drafts=DraftReviews(database, withheld_drafts),
            audit_log=AuditLog(database),
            erasure=Erasure(UserDataRecords(database), disable_account, delete_conversation, delete_temporary_chats),
        )
