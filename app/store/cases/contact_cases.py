"""What contacts do: write, ask for a person, rate. Every method takes the contact's id, which a token has proven."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.orm import Session

from app.domain import cases as rules
from app.domain.case_views import CaseMessage, CaseView, ContactView, RatingView
from app.domain.cases import (
    REOPEN_DAYS,
    SYSTEM,
    Actor,
    AuthorKind,
    CaseEventKind,
    CasePriority,
    CaseStatus,
    HandOffReason,
    NewEvent,
    Transition,
)
from app.domain.ids import new_id
from app.domain.text import clean_text, title_from
from app.errors import InvalidInput, NotFound
from app.store.cases.case_rows import (
    case_messages,
    case_state,
    case_view,
    contact_view,
    view_of,
)
from app.store.cases.case_writes import (
    append_message,
    apply,
    checked_message,
    find_message,
    preview_of,
    require_same,
    touch,
)
from app.store.cases.signals import CaseSignals
from app.store.cases.visitor_reads import messages_of_contact, newest_case
from app.store.db.case_models import CaseAttachment, Contact, Inbox, Satisfaction, SupportCase
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, table_of
from app.store.db.notifications import Channel, notify
from app.store.db.prepared_statements import insert_into
from app.store.db.rows import change_rows

MAX_COMMENT_CHARS = 2000
MAX_MESSAGES = 200
"""Messages that a contact reads at once, the newest ones: a talk may go on for years."""
NO_CASE = "You have not written anything yet. Send a message first."
NO_CONTACT = "You are not known here any more. Reload the page to begin again."

# Built once: every message of a visitor runs these.
_LOCKED_CONTACT = (
    select(Contact, Inbox)
    .join(Inbox, Inbox.id == Contact.inbox_id)
    .where(Contact.id == bindparam("id"))
    .with_for_update(key_share=True, of=Contact)
)
_NEW_CONVERSATION = insert_into(table_of(Conversation), "id user_id title settings created_at updated_at")
_LOCKED_CASE = (
    select(SupportCase)
    .where(SupportCase.contact_id == bindparam("contact_id"), SupportCase.merged_into.is_(None))
    .order_by(SupportCase.id.desc())
    .limit(1)
    .with_for_update(key_share=True)
    .execution_options(populate_existing=True)
)


class ContactCases:
    """The commands and the view of a contact, who has at most one case at a time.

    The row of the contact is locked first: of two first messages at once, one creates the case and the other joins it.
    """

    def __init__(self, database: Database, signals: CaseSignals, *, max_message_chars: int) -> None:
        self._database = database
        self._signals = signals
        self._max_message_chars = max_message_chars

    async def write(
        self, contact_id: str, text: str, *, client_id: str | None = None, attachments: Sequence[str] = ()
    ) -> tuple[CaseMessage, CaseView]:
        """Stores a message, once for each ``client_id``, in the contact's case, or in a new one.

        Args:
            attachments: ids of files of this contact that no message has yet.

        Raises:
            InvalidInput: there is neither text nor file, the text is too long, or a file is unknown or sent already.
            NotFound: the contact was deleted.
            Conflict: the ``client_id`` is another message's.
        """
        text, client_id = checked_message(text, client_id, self._max_message_chars, may_be_empty=bool(attachments))
        actor = Actor(AuthorKind.CONTACT, contact_id)

        def work(session: Session) -> tuple[CaseMessage, CaseView]:
            contact, inbox = _locked_contact(session, contact_id, NO_CONTACT)
            if (found := find_message(session, contact_id, client_id)) is not None:
                require_same(found, actor, text)
                return found, case_view(session, found.case_id)
            now = datetime.now(UTC)
            case = current_case(session, contact_id, now)
            if is_new := case is None:
                case = new_case(session, contact, inbox, text, now)
            else:
                apply(session, case, rules.contact_wrote(case_state(case), actor, now, bot=inbox.bot), now)
            message = append_message(session, case, actor, text, now, client_id=client_id, is_first=is_new)
            if attachments:
                _attach(session, contact_id, message, attachments)
                message = case_messages(session, Message.id == message.id)[0]
            return message, view_of(session, case)

        message, view = await self._database.write(work)
        self._signals.changed(view.id, view.inbox_id)
        return message, view

    async def contact(self, contact_id: str) -> ContactView:
        """The contact.

        Raises:
            NotFound: the contact was deleted.
        """

        def work(session: Session) -> ContactView:
            contact = session.get(Contact, contact_id)
            if contact is None:
                raise NotFound(NO_CONTACT)
            return contact_view(contact)

        return await self._database.read(work)

    async def current(self, contact_id: str) -> CaseView | None:
        """The case that the contact's next message continues; None if it would begin one."""

        found = await self._database.read_rows(lambda connection: newest_case(connection, contact_id))
        if found is None or is_over(found.case.status, found.case.resolved_at, datetime.now(UTC)):
            return None
        return found.case

    async def messages(
        self, contact_id: str, case_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[CaseMessage]:
        """The messages of the contact's case after a position, oldest first. No notes.

        Args:
            limit: the newest ones; None is :data:`MAX_MESSAGES`.
        """
        return await self._database.read_rows(
            lambda connection: contact_messages(connection, contact_id, case_id, after=after, limit=limit)
        )

    async def ask_for_person(
        self, contact_id: str, *, sentence: str | None = None, wish: str | None = None
    ) -> CaseView:
        """Hands the contact's case to people. One that is over is opened.

        Args:
            sentence: what the contact is told in the same transaction, unless people had the case already.
            wish: the contact's message that begins a case where there is none, likewise.

        Raises:
            NotFound: the contact has no case.
        """
        actor = Actor(AuthorKind.CONTACT, contact_id)

        def work(session: Session) -> CaseView:
            contact = locked_contact(session, contact_id)
            now = datetime.now(UTC)
            case = current_case(session, contact_id, now)
            is_new = False
            if case is None and wish is not None:
                is_new = True
                case = new_case(session, contact, session.get_one(Inbox, contact.inbox_id), wish, now)
                append_message(session, case, actor, wish, now, is_first=True)
            if case is None:
                raise NotFound(NO_CASE)
            had_it = not is_new and case.status in (CaseStatus.OPEN, CaseStatus.SNOOZED)
            reason = HandOffReason.ASKED_FOR_PERSON
            apply(session, case, rules.hand_off(case_state(case), actor, reason, now), now)
            if sentence and not had_it:
                append_message(session, case, SYSTEM, sentence, now)
            return view_of(session, case)

        view = await self._database.write(work)
        self._signals.changed(view.id, view.inbox_id)
        return view

    async def rate(self, contact_id: str, score: int, comment: str = "") -> RatingView:
        """Rates the contact's case, or changes the rating.

        Raises:
            InvalidInput: the score is not 1 to 5, or the comment is too long.
            NotFound: the contact has no case.
        """
        comment = clean_text(comment).strip()
        if not 1 <= score <= 5:
            raise InvalidInput("A rating is a number from 1 to 5.")
        if len(comment) > MAX_COMMENT_CHARS:
            raise InvalidInput(f"This comment is too long; at most {MAX_COMMENT_CHARS:,} characters are allowed.")
        actor = Actor(AuthorKind.CONTACT, contact_id)

        def work(session: Session) -> CaseView:
            locked_contact(session, contact_id)
            now = datetime.now(UTC)
            case = _required_case(session, contact_id, now)
            row = session.get(Satisfaction, case.id)
            if row is None:
                row = Satisfaction(case_id=case.id, created_at=now)
                session.add(row)
            elif (row.score, row.comment) == (score, comment):
                return case_view(session, case.id)
            row.score, row.comment, row.updated_at = score, comment, now
            details = {"score": score, "user_id": case.assignee_id}
            event = NewEvent(CaseEventKind.RATED, actor, details=details)
            apply(session, case, Transition(case_state(case), (event,)), now)
            return case_view(session, case.id)

        view = await self._database.write(work)
        self._signals.changed(view.id, view.inbox_id)
        return RatingView(score, comment)

    async def rating(self, contact_id: str, case_id: str) -> RatingView | None:
        """The contact's rating of a case."""

        def work(session: Session) -> RatingView | None:
            row = session.scalars(
                select(Satisfaction)
                .join(SupportCase, SupportCase.id == Satisfaction.case_id)
                .where(Satisfaction.case_id == case_id, SupportCase.contact_id == contact_id)
            ).one_or_none()
            return RatingView(row.score, row.comment) if row is not None else None

        return await self._database.read(work)

    async def say(self, contact_id: str, text: str) -> CaseMessage | None:
        """Adds a sentence of the system to the contact's case, such as when people will answer; None without a case."""

        def work(session: Session) -> tuple[CaseMessage, SupportCase] | None:
            now = datetime.now(UTC)
            locked_contact(session, contact_id)
            case = current_case(session, contact_id, now)
            if case is None:
                return None
            touch(session, case, now)
            return append_message(session, case, SYSTEM, text, now), case

        said = await self._database.write(work)
        if said is None:
            return None
        message, case = said
        self._signals.changed(case.id, case.inbox_id)
        return message


def locked_contact(session: Session, contact_id: str, *, missing: str = NO_CONTACT) -> Contact:
    return _locked_contact(session, contact_id, missing)[0]


def _locked_contact(session: Session, contact_id: str, missing: str) -> tuple[Contact, Inbox]:
    found = session.execute(_LOCKED_CONTACT, {"id": contact_id}).one_or_none()
    if found is None:
        raise NotFound(missing)
    contact, inbox = found
    return contact, inbox


def current_case(session: Session, contact_id: str, now: datetime) -> SupportCase | None:
    """The case that the contact's next message continues, locked against other writers."""
    case = session.scalars(_LOCKED_CASE, {"contact_id": contact_id}).one_or_none()
    if case is None or is_over(CaseStatus(case.status), case.resolved_at, now):
        return None
    return case


def is_over(status: CaseStatus, resolved_at: datetime | None, now: datetime) -> bool:
    """Whether the contact's next message begins another case."""
    is_resolved = status is CaseStatus.RESOLVED and resolved_at is not None
    return is_resolved and resolved_at < now - timedelta(days=REOPEN_DAYS)  # type: ignore[operator]


def contact_messages(
    connection: Connection, contact_id: str, case_id: str, *, after: int = -1, limit: int | None = None
) -> list[CaseMessage]:
    """As :meth:`ContactCases.messages`, within a transaction."""
    return messages_of_contact(connection, contact_id, case_id, after=after, limit=limit or MAX_MESSAGES)


def _required_case(session: Session, contact_id: str, now: datetime) -> SupportCase:
    case = current_case(session, contact_id, now)
    if case is None:
        raise NotFound(NO_CASE)
    return case


def new_case(session: Session, contact: Contact, inbox: Inbox, text: str, now: datetime) -> SupportCase:
    case_id, subject = new_id(), title_from(text)
    values = {"id": case_id, "user_id": inbox.user_id, "title": subject, "settings": {}}
    _NEW_CONVERSATION.run(session.connection(), {**values, "created_at": now, "updated_at": now})
    created = rules.new_case(Actor(AuthorKind.CONTACT, contact.id), now, bot=inbox.bot)
    case = SupportCase(
        id=case_id,
        inbox_id=inbox.id,
        contact_id=contact.id,
        status=created.state.status,
        priority=CasePriority.NORMAL,
        assignee_id=created.state.assignee_id,
        handed_off_at=created.state.handed_off_at,
        waiting_since=created.state.waiting_since,
        snoozed_until=created.state.snoozed_until,
        first_reply_at=created.state.first_reply_at,
        resolved_at=created.state.resolved_at,
        merged_into=created.state.merged_into,
        subject=subject,
        preview=preview_of(text),
        epoch=created.state.epoch,
        revision=0,
        bot_from=0,
        created_at=now,
        updated_at=now,
    )
    apply(session, case, created, now)
    notify(session, Channel.CASE_CHANGED, contact.id)  # the contact's streams do not know the case yet
    return case


def _attach(session: Session, contact_id: str, message: CaseMessage, attachment_ids: Sequence[str]) -> None:
    ids = list(dict.fromkeys(attachment_ids))
    unsent = (CaseAttachment.id.in_(ids), CaseAttachment.contact_id == contact_id, CaseAttachment.message_id.is_(None))
    if change_rows(
        session, update(CaseAttachment).where(*unsent).values(case_id=message.case_id, message_id=message.id)
    ) != len(ids):
        raise InvalidInput("One of these files is not here any more, or was sent already. Attach it again.")
