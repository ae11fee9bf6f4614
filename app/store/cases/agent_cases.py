"""What agents do with cases. Every method takes the user's id, and acts within the rights of its inboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified

from app.domain import cases as rules
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import (
    MAX_SUBJECT_CHARS,
    Actor,
    AuthorKind,
    CaseEventKind,
    CasePriority,
    CaseState,
    NewEvent,
    Transition,
)
from app.domain.text import clean_text, one_line
from app.errors import Conflict, InvalidInput
from app.store.cases.access import may_work, worked_case
from app.store.cases.case_rows import case_state, case_view
from app.store.cases.case_writes import append_message, apply, checked_message, find_message, require_same, touch
from app.store.cases.reply_mails import enqueue_reply
from app.store.cases.signals import CaseSignals
from app.store.chat.conversations import clean_tags
from app.store.db.case_models import Inbox, SupportCase
from app.store.db.database import Database
from app.store.db.models import Account, Conversation, ConversationTag
from app.store.db.rows import is_id

Rule = Callable[[CaseState, Actor, datetime], Transition]


class AgentCases:
    """The commands of agents. Each runs in one transaction, which locks the case: of two at once, the second one sees
    what the first one did, and is refused if it names an older ``epoch``."""

    def __init__(
        self,
        database: Database,
        signals: CaseSignals,
        *,
        max_message_chars: int,
        mail_delay: timedelta | None = None,
    ) -> None:
        """Args:
        mail_delay: after which a reply that was not read is mailed; None: never.
        """
        self._database = database
        self._signals = signals
        self._max_message_chars = max_message_chars
        self._mail_delay = mail_delay

    async def reply(
        self, user_id: str, case_id: str, text: str, *, client_id: str | None = None, epoch: int | None = None
    ) -> tuple[CaseMessage, CaseView]:
        """Sends a reply to the contact, once for each ``client_id``. A bot's reply under way ends.

        Raises:
            InvalidInput: the text is empty or too long.
            NotFound: the case is missing, or the user may not read it.
            NotAllowed: the user may only read it.
            StaleCase: another person has acted since ``epoch``.
            Conflict: the ``client_id`` is another message's, or the case was merged into another one.
        """
        return await self._write(user_id, case_id, text, client_id, epoch, internal=False)

    async def note(
        self, user_id: str, case_id: str, text: str, *, client_id: str | None = None, epoch: int | None = None
    ) -> tuple[CaseMessage, CaseView]:
        """Stores a note, which only agents read. Raises as :meth:`reply`."""
        return await self._write(user_id, case_id, text, client_id, epoch, internal=True)

    async def _write(
        self, user_id: str, case_id: str, text: str, client_id: str | None, epoch: int | None, *, internal: bool
    ) -> tuple[CaseMessage, CaseView]:
        text, client_id = checked_message(text, client_id, self._max_message_chars)
        agent = Actor(AuthorKind.AGENT, user_id)

        def work(session: Session) -> tuple[CaseMessage, CaseView]:
            case = worked_case(session, user_id, case_id)
            if (found := find_message(session, case.contact_id, client_id)) is not None:
                require_same(found, agent, text, internal=internal)
                return found, case_view(session, found.case_id)
            state, now = case_state(case), datetime.now(UTC)
            rules.require_current(state, epoch)
            if internal:
                touch(session, case, now)
            else:
                if state.merged_into is not None:
                    raise Conflict("This case was merged into another one. Reply in that one.")
                apply(session, case, rules.agent_wrote(state, agent, now), now)
            message = append_message(session, case, agent, text, now, client_id=client_id, internal=internal)
            if not internal and self._mail_delay is not None:
                enqueue_reply(session, case, message.id, now, self._mail_delay)
            return message, case_view(session, case.id)

        message, view = await self._database.write(work)
        self._signals.changed(view.id, view.inbox_id)
        return message, view

    async def assign(
        self, user_id: str, case_id: str, assignee_id: str | None, *, epoch: int | None = None
    ) -> CaseView:
        """Assigns the case to a user who may work with it, or to none.

        Raises:
            InvalidInput: the assignee may not work with the case.
            NotFound, NotAllowed, StaleCase: as for :meth:`reply`.
        """

        def work(session: Session) -> CaseView:
            case = worked_case(session, user_id, case_id)
            rules.require_current(case_state(case), epoch)
            if assignee_id is not None and not (is_id(assignee_id) and _works(session, assignee_id, case)):
                raise InvalidInput("This user cannot answer the cases of this inbox. Make them a member of it first.")
            now = datetime.now(UTC)
            agent = Actor(AuthorKind.AGENT, user_id)
            return _changed(session, case, rules.assign(case_state(case), agent, assignee_id, now), now)

        return await self._run(work)

    async def snooze(self, user_id: str, case_id: str, until: datetime, *, epoch: int | None = None) -> CaseView:
        """Puts the case aside. Raises as :meth:`reply`, and as :func:`app.domain.cases.snooze`."""
        return await self._act(
            user_id, case_id, epoch, lambda state, actor, now: rules.snooze(state, actor, until, now)
        )

    async def resolve(self, user_id: str, case_id: str, *, epoch: int | None = None) -> CaseView:
        """Ends the case. Raises as :meth:`reply`."""
        return await self._act(user_id, case_id, epoch, rules.resolve)

    async def reopen(self, user_id: str, case_id: str, *, epoch: int | None = None) -> CaseView:
        """Opens a snoozed or resolved case. Raises as :meth:`reply`."""

        def opened(state: CaseState, actor: Actor, now: datetime) -> Transition:
            woken = rules.wake(state, actor)
            return woken.then(rules.reopen(woken.state, actor, now))

        return await self._act(user_id, case_id, epoch, opened)

    async def take_over(self, user_id: str, case_id: str, *, epoch: int | None = None) -> CaseView:
        """Takes a case from the bot, for the user. Raises as :meth:`reply`."""
        return await self._act(
            user_id, case_id, epoch, lambda state, actor, now: rules.assign(state, actor, user_id, now)
        )

    async def edit(
        self,
        user_id: str,
        case_id: str,
        *,
        priority: CasePriority | None = None,
        tags: Sequence[str] | None = None,
        subject: str | None = None,
        epoch: int | None = None,
    ) -> CaseView:
        """Changes what is given.

        Raises:
            InvalidInput: the subject or a tag is empty or too long, or there are too many tags.
            NotFound, NotAllowed, StaleCase: as for :meth:`reply`.
        """
        wanted = clean_tags(tags) if tags is not None else None
        if subject is not None:
            subject = one_line(clean_text(subject))
            if not 0 < len(subject) <= MAX_SUBJECT_CHARS:
                raise InvalidInput(f"A subject needs 1 to {MAX_SUBJECT_CHARS} characters.")
        agent = Actor(AuthorKind.AGENT, user_id)

        def work(session: Session) -> CaseView:
            case = worked_case(session, user_id, case_id)
            state, now = case_state(case), datetime.now(UTC)
            rules.require_current(state, epoch)
            events: list[NewEvent] = []
            if priority is not None and priority != case.priority:
                details = {"from": case.priority, "to": priority}
                events.append(NewEvent(CaseEventKind.PRIORITY, agent, details=details))
                case.priority = priority
            if subject is not None:
                case.subject = subject
                conversation = session.get_one(Conversation, case.conversation_id)
                conversation.title, conversation.title_by, conversation.indexed = subject, "person", False
                flag_modified(conversation, "indexed")  # its old title may be being indexed
            if wanted is not None:
                events += _set_tags(session, case, wanted, agent)
            return _changed(session, case, Transition(state, tuple(events)), now)

        return await self._run(work)

    async def merge(self, user_id: str, case_id: str, into: str, *, epoch: int | None = None) -> CaseView:
        """Makes the case a part of another one of the same contact, and returns that one.

        Raises:
            Conflict: the other case is another contact's, or itself, or part of a third one.
            NotFound, NotAllowed, StaleCase: as for :meth:`reply`.
        """
        agent = Actor(AuthorKind.AGENT, user_id)

        def work(session: Session) -> tuple[CaseView, CaseView]:
            # Both rows are locked in one order, so that two merges at once do not wait for each other.
            rows = {id: worked_case(session, user_id, id) for id in sorted({case_id, into})}
            case, target = rows[case_id], rows[into]
            state, now = case_state(case), datetime.now(UTC)
            rules.require_current(state, epoch)
            if case.id == target.id:
                raise Conflict("A case cannot be merged into itself. Choose another one.")
            if case.contact_id != target.contact_id:
                raise Conflict(
                    "These cases are of different contacts, and each would read the other's messages. Merge cases of "
                    "one contact only."
                )
            if target.merged_into is not None or case.merged_into is not None:
                raise Conflict("One of these cases was merged already. Choose others.")
            if session.scalar(select(exists().where(SupportCase.merged_into == case.id))):
                raise Conflict("Other cases were merged into this one. Merge the other case into this one instead.")
            event = NewEvent(CaseEventKind.MERGED, agent, details={"from": case.id})
            merged = _changed(session, case, rules.merge(state, agent, target.id, now), now)
            return merged, _changed(session, target, Transition(case_state(target), (event,)), now)

        merged, target = await self._database.write(work)
        self._signals.changed(merged.id, merged.inbox_id)
        self._signals.changed(target.id, target.inbox_id)
        return target

    async def _act(self, user_id: str, case_id: str, epoch: int | None, rule: Rule) -> CaseView:
        def work(session: Session) -> CaseView:
            case = worked_case(session, user_id, case_id)
            state, now = case_state(case), datetime.now(UTC)
            rules.require_current(state, epoch)
            return _changed(session, case, rule(state, Actor(AuthorKind.AGENT, user_id), now), now)

        return await self._run(work)

    async def _run(self, work: Callable[[Session], CaseView]) -> CaseView:
        view = await self._database.write(work)
        self._signals.changed(view.id, view.inbox_id)
        return view


def _changed(session: Session, case: SupportCase, transition: Transition, now: datetime) -> CaseView:
    apply(session, case, transition, now)
    return case_view(session, case.id)


def _works(session: Session, user_id: str, case: SupportCase) -> bool:
    active = exists().where(Account.id == user_id, Account.disabled_at.is_(None))
    return bool(session.scalar(select(active & may_work(user_id, Inbox.id)).where(Inbox.id == case.inbox_id)))


def _set_tags(session: Session, case: SupportCase, wanted: Sequence[str], agent: Actor) -> list[NewEvent]:
    of_case = ConversationTag.conversation_id == case.conversation_id
    before = set(session.scalars(select(ConversationTag.tag).where(of_case)))
    if before == set(wanted):
        return []
    session.execute(delete(ConversationTag).where(of_case))
    session.add_all(ConversationTag(conversation_id=case.conversation_id, tag=tag) for tag in wanted)
    added, removed = sorted(set(wanted) - before), sorted(before - set(wanted))
    return [NewEvent(CaseEventKind.TAGS, agent, details={"added": added, "removed": removed})]
