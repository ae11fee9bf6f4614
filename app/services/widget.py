"""The widget's service: visitors and their sessions, and how much of the server one of them may take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from app.auth.accounts import AccountService
from app.auth.identity_tokens import CustomerIdentity, WrongIdentity, read_identity
from app.auth.rate_limits import RateLimit, RateLimiter, too_many_requests
from app.auth.visitors import VisitorIdentity, site_of
from app.cases.bot import CaseBot
from app.cases.bot_replies import closed_notice
from app.cases.cases import Cases
from app.cases.live_replies import LiveReplies
from app.cases.sentences import Sentence, say
from app.domain.case_views import CaseMessage, CaseView, ContactView, InboxView, RatingView
from app.domain.cases import CaseStatus
from app.domain.opening_hours import zone
from app.domain.text import clean_text
from app.errors import InvalidInput, NotFound
from app.store.cases.visitors import Visitor

MAX_MESSAGE_CHARS = 8000
MAX_LANGUAGE_CHARS = 35
MAX_ZONE_CHARS = 64
TOKEN_PREFIX = "dmv_"
MAX_STREAMS_PER_ADDRESS = 500  # each looks into the database from time to time, and a request makes a visitor
_FILES_AT_ONCE = 4  # that are in memory while they are stored, of all visitors

# An office may share one address. What a visitor or an address may not do is counted towards no inbox, so that a flood
# is refused before it takes anything from the inbox's other visitors.
SESSIONS_BY_ADDRESS = (RateLimit(60, 60, "widget session"), RateLimit(1000, 3600, "widget session"))
SESSIONS_BY_INBOX = (RateLimit(3000, 60, "inbox session"),)
MESSAGES_BY_VISITOR = (RateLimit(10, 20, "visitor message"), RateLimit(60, 600, "visitor message"))
MESSAGES_BY_ADDRESS = (RateLimit(60, 60, "address message"), RateLimit(600, 3600, "address message"))
MESSAGES_BY_INBOX = (RateLimit(3000, 60, "inbox message"),)
FILES_BY_ADDRESS = (RateLimit(30, 60, "address file"), RateLimit(150, 3600, "address file"))
FILES_BY_INBOX = (RateLimit(300, 60, "inbox file"),)
COMMANDS_BY_VISITOR = (RateLimit(60, 60, "visitor command"),)

TOO_MANY_SESSIONS = "Too many chats were opened from your network."
TOO_MANY_MESSAGES = "You've sent too many messages in a short time."
INBOX_IS_BUSY = "This chat has too many messages at the moment."
TOO_MANY_STREAMS = "Too many chats are open in your network."
TOO_MANY_FILES = "You've sent too many files in a short time."
TOO_MANY_COMMANDS = "You've done this too often in a short time."
NO_INBOX = "There is no such chat. It may have been removed from this website."


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWish:
    """What a browser says when it opens the widget."""

    token: str | None  #: of an earlier session
    identity: str | None  #: signed by the website
    language: str | None
    time_zone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetSession:
    """A visitor's session."""

    token: str
    visitor: Visitor
    inbox: InboxView
    identity_error: str | None  #: for the website's developers: why its identity token proves nothing
    is_new: bool  #: the visitor has just come, and has no case


class Widget:
    """What visitors do. Every method but :meth:`start` takes the visitor whom the guard has found by the token."""

    def __init__(self, cases: Cases, accounts: AccountService, bot: CaseBot, live: LiveReplies) -> None:
        self.cases = cases
        self.live = live
        self._accounts = accounts
        self._bot = bot
        self._limiter = RateLimiter()
        self._streams: Counter[str] = Counter()  # open ones, by address
        self.stored_at_once = asyncio.Semaphore(_FILES_AT_ONCE)

    async def find_inbox(self, token: str) -> InboxView | None:
        """The inbox whose widget has this public token."""
        inbox = await self.cases.inboxes.by_token(token) if len(token) <= 64 else None
        return inbox if inbox is not None and inbox.kind == "widget" else None

    async def find_visitor(self, token: str) -> VisitorIdentity | None:
        """The visitor of a token; None if it is unknown or has expired."""
        if not token.startswith(TOKEN_PREFIX):
            return None
        hashed = self._accounts.mint.hash(token)
        found = await self.cases.visitors.contact_of(hashed)
        return VisitorIdentity(*found, hashed) if found is not None else None

    async def start(self, inbox_token: str, wish: SessionWish, address: str) -> WidgetSession:
        """Goes on with an earlier session, or begins a new one: a token that is not valid here is passed over.

        A signed identity makes the visitor the website's customer, under a new token: the old one may be known to
        another person who used the same browser.

        Raises:
            NotFound: there is no such inbox.
            TooManyRequests: too many sessions from this address, or in this inbox.
        """
        self._limiter.hit(SESSIONS_BY_ADDRESS, site_of(address), TOO_MANY_SESSIONS)
        inbox = await self.find_inbox(inbox_token)
        if inbox is None:
            raise NotFound(NO_INBOX)
        self._limiter.hit(SESSIONS_BY_INBOX, inbox.id, INBOX_IS_BUSY)
        token = wish.token if wish.token is not None and wish.token.startswith(TOKEN_PREFIX) else None
        hashed = self._accounts.mint.hash(token) if token is not None else None
        visitor = await self.cases.visitors.find(hashed, inbox.id) if hashed is not None else None
        identity, identity_error = await self._identity(inbox, wish.identity)
        new = self._accounts.mint.new(TOKEN_PREFIX)
        new_hash = self._accounts.mint.hash(new)
        if visitor is not None and hashed is not None and token is not None:
            if identity is None or visitor.contact.external_id == identity.external_id:
                return WidgetSession(
                    token=token, visitor=visitor, inbox=inbox, identity_error=identity_error, is_new=False
                )
            visitor = await self.cases.visitors.identify(
                hashed, new_hash, external_id=identity.external_id, name=identity.name, email=identity.email
            )
        is_new = visitor is None and identity is None
        if visitor is None:
            visitor = await self.cases.visitors.create(
                inbox.id,
                new_hash,
                external_id=identity.external_id if identity is not None else None,
                name=identity.name if identity is not None else None,
                email=identity.email if identity is not None else None,
                language=_language(wish.language),
                time_zone=_time_zone(wish.time_zone),
            )
        return WidgetSession(token=new, visitor=visitor, inbox=inbox, identity_error=identity_error, is_new=is_new)

    async def write(
        self, visitor: VisitorIdentity, address: str, text: str, client_id: str, attachments: list[str]
    ) -> tuple[CaseMessage, CaseView]:
        """Stores a message, once for each ``client_id``, and lets the bot answer if it has the case.

        Raises:
            InvalidInput: it is empty or too long, or names a file that is not the visitor's.
            Conflict: another message has this ``client_id``.
            TooManyRequests: too many messages from this visitor, this address, or in this inbox.
        """
        if len(text) > MAX_MESSAGE_CHARS:
            raise InvalidInput(
                f"This message has {len(text):,} characters; at most {MAX_MESSAGE_CHARS:,} fit. Shorten it."
            )
        self._check_message(visitor, address)
        message, case = await self.cases.contacts.write(
            visitor.contact_id, text, client_id=client_id, attachments=attachments
        )
        self.cases.signals.changed(case.id, visitor.contact_id)  # the visitor's other tabs learn of a new case
        if case.status is CaseStatus.BOT:
            self._bot.answer(case.id)
        elif message.position == 0 and (closed := closed_notice(await self.inbox(visitor), case.contact)):
            await self.cases.contacts.say(visitor.contact_id, closed)
        return message, case

    async def ask_for_person(self, visitor: VisitorIdentity, address: str) -> CaseView:
        """Gives the visitor's case to people, at any time; without a case, the wish itself begins one.

        Raises:
            TooManyRequests: too many commands of this visitor; a wish that begins a case counts as a message, too.
        """
        self.check_rate(visitor)
        contact, inbox = await self.contact(visitor), await self.inbox(visitor)
        if await self.cases.contacts.current(visitor.contact_id) is None:
            self._check_message(visitor, address)
        told = [say(Sentence.ASKED_FOR_PERSON, contact.language), closed_notice(inbox, contact)]
        case = await self.cases.contacts.ask_for_person(
            visitor.contact_id,
            wish=say(Sentence.TALK_TO_PERSON, contact.language),
            sentence="\n\n".join(part for part in told if part),
        )
        self.cases.signals.changed(case.id, visitor.contact_id)
        return case

    async def rate(self, visitor: VisitorIdentity, score: int, comment: str) -> RatingView:
        """Rates the visitor's case.

        Raises:
            InvalidInput: the score is not 1 to 5, or the comment is too long.
            NotFound: there is no case.
            TooManyRequests: too many commands of this visitor.
        """
        self.check_rate(visitor)
        return await self.cases.contacts.rate(visitor.contact_id, score, comment)

    async def edit_contact(self, visitor: VisitorIdentity, name: str, email: str) -> ContactView:
        """Stores the visitor's name and e-mail address.

        Raises:
            Conflict: the website has told both.
            TooManyRequests: too many commands of this visitor.
        """
        self.check_rate(visitor)
        return await self.cases.visitors.edit(visitor.contact_id, name=name or None, email=email or None)

    async def read(self, visitor: VisitorIdentity, message_id: str) -> None:
        """Notes which messages the visitor has seen.

        Raises:
            TooManyRequests: too many commands of this visitor.
        """
        self.check_rate(visitor)
        await self.cases.mails.read(visitor.contact_id, message_id)

    async def contact(self, visitor: VisitorIdentity) -> ContactView:
        """The visitor's contact.

        Raises:
            NotFound: it was deleted.
        """
        return await self.cases.contacts.contact(visitor.contact_id)

    async def inbox(self, visitor: VisitorIdentity) -> InboxView:
        """The inbox that the visitor writes to.

        Raises:
            NotFound: it was deleted.
        """
        inbox = await self.cases.inboxes.view(visitor.inbox_id)
        if inbox is None:
            raise NotFound(NO_INBOX)
        return inbox

    def check_rate(self, visitor: VisitorIdentity) -> None:
        """Counts a command of the visitor.

        Raises:
            TooManyRequests: there were too many.
        """
        self._limiter.hit(COMMANDS_BY_VISITOR, visitor.contact_id, TOO_MANY_COMMANDS)

    def check_stream(self, visitor: VisitorIdentity, address: str) -> None:
        """Counts the opening of a stream.

        Raises:
            TooManyRequests: there were too many, or too many are open from this address.
        """
        self.check_rate(visitor)
        if self._streams[site_of(address)] >= MAX_STREAMS_PER_ADDRESS:
            raise too_many_requests(TOO_MANY_STREAMS, 5)

    @contextmanager
    def streaming(self, address: str) -> Iterator[None]:
        """Context of an open stream."""
        site = site_of(address)
        self._streams[site] += 1
        try:
            yield
        finally:
            self._streams[site] -= 1
            if not self._streams[site]:
                del self._streams[site]

    def check_upload(self, visitor: VisitorIdentity, address: str) -> None:
        """Counts a file, before it is read: an address begins as many sessions as it likes to fill the database.

        Raises:
            TooManyRequests: there were too many from this visitor, this address, or in this inbox.
        """
        self.check_rate(visitor)
        self._limiter.hit(FILES_BY_ADDRESS, site_of(address), TOO_MANY_FILES)
        self._limiter.hit(FILES_BY_INBOX, visitor.inbox_id, INBOX_IS_BUSY)

    def _check_message(self, visitor: VisitorIdentity, address: str) -> None:
        self._limiter.hit(MESSAGES_BY_VISITOR, visitor.contact_id, TOO_MANY_MESSAGES)
        self._limiter.hit(MESSAGES_BY_ADDRESS, site_of(address), TOO_MANY_MESSAGES)
        self._limiter.hit(MESSAGES_BY_INBOX, visitor.inbox_id, INBOX_IS_BUSY)

    async def _identity(self, inbox: InboxView, token: str | None) -> tuple[CustomerIdentity | None, str | None]:
        if not token:
            return None, None
        keys = await self.cases.inboxes.identity_keys(inbox.id)
        try:
            return read_identity(token, keys, inbox.token, datetime.now(UTC)), None
        except WrongIdentity as error:
            return None, f"The identity token was refused: {error.reason}"


def _language(text: str | None) -> str | None:
    cleaned = clean_text(text or "").strip()
    return cleaned if 0 < len(cleaned) <= MAX_LANGUAGE_CHARS else None


def _time_zone(name: str | None) -> str | None:
    """The name of a zone that is known; None for any other."""
    return zone(name).key if name and len(name) <= MAX_ZONE_CHARS and zone(name).key == name else None
