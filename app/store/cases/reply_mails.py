"""The outbox of replies that visitors who have gone get by e-mail. Each is stored in it in the reply's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Select, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from app.domain.cases import SYSTEM, AuthorKind, CaseEventKind, NewEvent, Transition
from app.domain.ids import new_id
from app.domain.reply_mails import MAX_AGE, ReplyMailStatus, retry_after
from app.store.cases.access import require_admin
from app.store.cases.case_rows import case_state
from app.store.cases.case_writes import apply
from app.store.cases.signals import CaseSignals
from app.store.db.case_models import Contact, Inbox, ReplyMail, SupportCase
from app.store.db.database import Database
from app.store.db.models import Message
from app.store.db.rows import change_rows, is_id

_PENDING = ReplyMail.status == ReplyMailStatus.PENDING
_TOO_OLD = "It could not be sent in time."


@dataclass(frozen=True, slots=True, kw_only=True)
class DueMail:
    """A mail that this process has claimed and is to send now: the replies of a case that are due."""

    id: str  #: the same at every attempt
    case_id: str
    attempts: int  #: that ended before this one
    lease_until: datetime  #: identifies the claim: a later one's is later
    email: str
    language: str | None
    inbox_name: str
    website: str | None  #: the only one that may show the widget
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MailStatus:
    """How the outbox is."""

    num_pending: int
    last_sent_at: datetime | None
    error: str | None  #: of the last failed attempt of those that are pending


def enqueue_reply(session: Session, case: SupportCase, message_id: str, now: datetime, delay: timedelta) -> None:
    """Stores a reply that is to be mailed unless it is read within ``delay``.

    It puts off those that wait already: one mail has all of them.
    """
    if session.get_one(Inbox, case.inbox_id).kind != "widget":  # a program brings its contacts the replies itself
        return
    due = now + delay
    waiting = (ReplyMail.case_id == case.id, _PENDING, ReplyMail.mail_id.is_(None))
    change_rows(session, update(ReplyMail).where(*waiting).values(next_attempt_at=due))
    session.add(
        ReplyMail(
            message_id=message_id,
            case_id=case.id,
            status=ReplyMailStatus.PENDING,
            attempts=0,
            next_attempt_at=due,
            created_at=now,
        )
    )


class ReplyMails:
    """The outbox. Sending takes no user id: it applies to every inbox's cases.

    Args:
        lease_seconds: a mail that was claimed and not finished within this time, because its process was killed, is
            claimed again. So each is sent at least once, and perhaps twice, with the same id. A lost claim is no
            attempt; the lease and the age at which a reply is given up limit how many there can be.
    """

    def __init__(self, database: Database, signals: CaseSignals, *, lease_seconds: float = 600.0) -> None:
        self._database = database
        self._signals = signals
        self._lease_seconds = lease_seconds

    async def read(self, contact_id: str, message_id: str) -> None:
        """Notes that a contact has read a message in the widget, and with it all replies above it."""

        def is_waiting(session: Session) -> bool:
            return session.scalar(_read_by(contact_id, message_id).limit(1)) is not None

        def work(session: Session) -> None:
            read = _read_by(contact_id, message_id)
            change_rows(
                session,
                update(ReplyMail).where(ReplyMail.message_id.in_(read)).values(status=ReplyMailStatus.READ),
            )

        if is_id(message_id) and await self._database.read(is_waiting):
            await self._database.write(work)

    async def claim(self) -> DueMail | None:
        """Claims the mail that has been due for the longest time; None if none is."""
        while await self._database.read(lambda session: session.scalar(_due(datetime.now(UTC)).limit(1))) is not None:
            case_ids, due = await self._database.write(self._claim)
            for case_id, inbox_id in case_ids:
                self._signals.changed(case_id, inbox_id)
            if due is not None:
                return due
            if not case_ids:  # another process has it
                return None
        return None

    def _claim(self, session: Session) -> tuple[list[tuple[str, str]], DueMail | None]:
        now = datetime.now(UTC)
        # The case is locked first, as by all who write in it.
        case = session.scalars(
            select(SupportCase)
            .where(SupportCase.id.in_(_due(now)))
            .order_by(SupportCase.id)
            .limit(1)
            .with_for_update(skip_locked=True, key_share=True)
        ).one_or_none()
        if case is None:
            return [], None
        changed = [(case.id, case.inbox_id)]
        contact, inbox = session.get_one(Contact, case.contact_id), session.get_one(Inbox, case.inbox_id)
        rows = _due_rows(session, case, now)
        unread = []
        for row in rows:
            if _was_answered(session, row):
                row.status = ReplyMailStatus.READ
            elif contact.email is None:
                row.status = ReplyMailStatus.NO_ADDRESS
            elif row.created_at < now - MAX_AGE:
                row.status, row.error = ReplyMailStatus.FAILED, _TOO_OLD
            else:
                unread.append(row)
        if any(row.status == ReplyMailStatus.FAILED for row in rows):
            _tell(session, case, CaseEventKind.MAIL_FAILED, {"email": contact.email, "error": _TOO_OLD}, now)
        if not unread or contact.email is None:
            return changed, None
        mail_id, lease_until = unread[0].mail_id or new_id(), now + timedelta(seconds=self._lease_seconds)
        for row in unread:
            row.mail_id, row.next_attempt_at = mail_id, lease_until
        session.flush()
        texts = session.scalars(
            select(Message.content)
            .where(Message.id.in_([row.message_id for row in unread]), Message.internal.is_(False))
            .order_by(Message.position)
        ).all()
        origins = inbox.allowed_origins
        return changed, DueMail(
            id=mail_id,
            case_id=case.id,
            attempts=unread[0].attempts,
            lease_until=lease_until,
            email=contact.email,
            language=contact.language,
            inbox_name=inbox.name,
            website=origins[0] if len(origins) == 1 else None,
            texts=tuple(texts),
        )

    async def sent(self, due: DueMail) -> None:
        """Records that the server has taken a mail, which the case's agents see."""
        await self._finish(due, ReplyMailStatus.SENT, CaseEventKind.MAILED)

    async def failed(self, due: DueMail, error: str, *, for_good: bool) -> None:
        """Records a failed attempt, and when to try again; after the last one, the case's agents see it.

        Args:
            for_good: another attempt would fail, too.
        """
        attempts = due.attempts + 1
        wait = None if for_good else retry_after(attempts)
        if wait is None:
            await self._finish(due, ReplyMailStatus.FAILED, CaseEventKind.MAIL_FAILED, error)
            return
        next_attempt_at = datetime.now(UTC) + timedelta(seconds=wait)
        await self._put_off(due, {"attempts": attempts, "next_attempt_at": next_attempt_at, "error": error})

    async def release(self, due: DueMail) -> None:
        """Gives back a mail that the server of mail has not taken before the process stops: it is due at once.

        This was no failed attempt. Whether the server has the mail is not known: the next one has the same id.
        """
        await self._put_off(due, {"next_attempt_at": datetime.now(UTC)})

    async def _put_off(self, due: DueMail, values: Mapping[str, object]) -> None:
        def work(session: Session) -> None:
            # Or a claim that has read the rows already would write over their new time, and the mail would not wait.
            if _locked_case(session, due) is not None:
                change_rows(session, update(ReplyMail).where(*_of(due), _PENDING).values(values))

        await self._database.write(work)

    async def _finish(
        self, due: DueMail, status: ReplyMailStatus, kind: CaseEventKind, error: str | None = None
    ) -> None:
        def work(session: Session) -> str | None:
            now = datetime.now(UTC)
            case = _locked_case(session, due)
            values = {
                "status": status,
                "attempts": due.attempts + 1,
                "error": error,
                "sent_at": now if status is ReplyMailStatus.SENT else None,
            }
            if case is None or not change_rows(session, update(ReplyMail).where(*_of(due)).values(values)):
                return None  # it was deleted, or another process has sent it meanwhile
            _tell(session, case, kind, {"email": due.email} | ({"error": error} if error else {}), now)
            return case.inbox_id

        inbox_id = await self._database.write(work)
        if inbox_id is not None:
            self._signals.changed(due.case_id, inbox_id)

    async def status(self, user_id: str) -> MailStatus:
        """How the outbox is.

        Raises:
            NotAllowed: the user is no admin.
        """

        def work(session: Session) -> MailStatus:
            require_admin(session, user_id)
            return MailStatus(
                num_pending=session.scalar(select(func.count()).select_from(ReplyMail).where(_PENDING)) or 0,
                last_sent_at=session.scalar(
                    select(ReplyMail.sent_at)
                    .where(ReplyMail.sent_at.is_not(None))
                    .order_by(ReplyMail.sent_at.desc())
                    .limit(1)
                ),
                error=session.scalar(
                    select(ReplyMail.error)
                    .where(_PENDING, ReplyMail.error.is_not(None))
                    .order_by(ReplyMail.message_id.desc())
                    .limit(1)
                ),
            )

        return await self._database.read(work)


def _locked_case(session: Session, due: DueMail) -> SupportCase | None:
    """The case of a mail, unless it was deleted, locked against other writers and claims."""
    return session.get(SupportCase, due.case_id, with_for_update={"key_share": True})


def _of(due: DueMail) -> tuple[ColumnElement[bool], ...]:
    """The rows of a mail, unless it was claimed again. What was read while it was sent was sent all the same."""
    statuses = (ReplyMailStatus.PENDING, ReplyMailStatus.READ)
    is_claimed = ReplyMail.next_attempt_at == due.lease_until
    return ReplyMail.mail_id == due.id, is_claimed, ReplyMail.status.in_(statuses)


def _due(now: datetime) -> Select[tuple[str]]:
    return select(ReplyMail.case_id).where(ReplyMail.next_attempt_at <= now, _PENDING)


def _due_rows(session: Session, case: SupportCase, now: datetime) -> Sequence[ReplyMail]:
    """The due replies of one mail, the oldest first: what a mail had at its first attempt, it has at each."""
    due = session.scalars(
        select(ReplyMail)
        .where(ReplyMail.case_id == case.id, ReplyMail.next_attempt_at <= now, _PENDING)
        .order_by(ReplyMail.mail_id.is_(None), ReplyMail.mail_id, ReplyMail.message_id)
        .execution_options(populate_existing=True)
    ).all()
    return [row for row in due if row.mail_id == due[0].mail_id] if due else []


def _was_answered(session: Session, row: ReplyMail) -> bool:
    """Whether the contact has written after the reply."""
    later, reply = aliased(Message), aliased(Message)
    found = exists().where(
        reply.id == row.message_id,
        later.conversation_id == reply.conversation_id,
        later.author_kind == AuthorKind.CONTACT,
        later.position > reply.position,
    )
    return bool(session.scalar(select(found)))


def _read_by(contact_id: str, message_id: str) -> Select[tuple[str]]:
    """The waiting replies up to a message of one of the contact's cases."""
    shown, reply = aliased(Message), aliased(Message)
    return (
        select(ReplyMail.message_id)
        .join(SupportCase, SupportCase.id == ReplyMail.case_id)
        .join(reply, reply.id == ReplyMail.message_id)
        .join(shown, shown.conversation_id == reply.conversation_id)
        .where(
            SupportCase.contact_id == contact_id,
            _PENDING,
            shown.id == message_id,
            reply.position <= shown.position,
        )
    )


def _tell(
    session: Session, case: SupportCase, kind: CaseEventKind, details: Mapping[str, object], now: datetime
) -> None:
    apply(session, case, Transition(case_state(case), (NewEvent(kind, SYSTEM, details=details),)), now)
