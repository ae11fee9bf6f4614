"""The repositories of cases, over one database: one instance per process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from app.cases.presence import Presence
from app.store.cases.agent_cases import AgentCases
from app.store.cases.attachments import Attachments
from app.store.cases.bot_cases import BotCases
from app.store.cases.case_details import CaseDetails
from app.store.cases.case_list import CaseList
from app.store.cases.contact_cases import ContactCases
from app.store.cases.contact_data import ContactDataRecords
from app.store.cases.contact_looks import ContactLooks
from app.store.cases.figures import CaseFigures
from app.store.cases.inboxes import Inboxes
from app.store.cases.received import ReceivedMessages
from app.store.cases.reply_mails import ReplyMails
from app.store.cases.signals import CaseSignals
from app.store.cases.snoozes import Snoozes
from app.store.cases.visitors import Visitors
from app.store.cases.webhooks import Webhooks
from app.store.chat.search_index import SearchIndex
from app.store.db.database import Database
from app.store.db.notifications import Notifications


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Inboxes, contacts and cases. Routes refuse them without accounts."""

    inboxes: Inboxes
    visitors: Visitors
    list: CaseList  #: the lists that agents read
    details: CaseDetails  #: one case, as agents read it
    agents: AgentCases  #: what agents do
    contacts: ContactCases  #: what contacts do
    looks: ContactLooks  #: what their streams read
    received: ReceivedMessages  #: what contacts wrote to other programs
    attachments: Attachments  #: what contacts send
    bot: BotCases  #: what the bot does
    signals: CaseSignals  #: wakes readers
    presence: Presence  #: which agents have a case open
    snoozes: Snoozes
    figures: CaseFigures
    contact_data: ContactDataRecords
    webhooks: Webhooks
    mails: ReplyMails

    @classmethod
    def create(
        cls,
        database: Database,
        notifications: Notifications,
        index: SearchIndex,
        owner: str,
        lease_seconds: float,
        *,
        max_message_chars: int,
        mail_delay: timedelta | None = None,
    ) -> Cases:
        """Creates the repositories. For ``owner`` and ``lease_seconds``, see :class:`BotCases`; for ``mail_delay``,
        :class:`AgentCases`."""
        signals = CaseSignals(notifications)
        return cls(
            inboxes=Inboxes(database),
            visitors=(visitors := Visitors(database)),
            list=CaseList(database, index),
            details=CaseDetails(database),
            agents=AgentCases(database, signals, max_message_chars=max_message_chars, mail_delay=mail_delay),
            contacts=ContactCases(database, signals, max_message_chars=max_message_chars),
            looks=ContactLooks(database, visitors),
            received=ReceivedMessages(database, signals, max_message_chars=max_message_chars),
            attachments=Attachments(database),
            bot=BotCases(database, signals, owner, lease_seconds),
            signals=signals,
            presence=Presence(database, notifications, signals),
            snoozes=Snoozes(database, signals),
            figures=CaseFigures(database),
            contact_data=ContactDataRecords(database),
            webhooks=Webhooks(database),
            mails=ReplyMails(database, signals),
        )
