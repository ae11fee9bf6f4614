"""Tables of cases: inboxes, contacts, cases with their events, ratings, attachments, and webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, synonym

from app.store.db.models import ID_LENGTH, Base


class Inbox(Base):
    """A way for contacts to write to the desk. Its own account, of the kind ``inbox``, owns its conversations."""

    __tablename__ = "inbox"
    __table_args__ = (CheckConstraint("kind IN ('widget', 'api')", name="kind"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(
        ForeignKey("account.id", ondelete="CASCADE"), unique=True, comment="The account that owns its conversations."
    )
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[str] = mapped_column(String(8))
    token: Mapped[str] = mapped_column(String(64), unique=True, comment="Public: the address of its widget.")
    secret: Mapped[str] = mapped_column(String(64), comment="The key that signs the identities of contacts.")
    previous_secret: Mapped[str | None] = mapped_column(String(64), comment="The key before, which holds for a while.")
    previous_secret_until: Mapped[datetime | None]
    allowed_origins: Mapped[list[Any]] = mapped_column(JSON, comment="Websites that may embed the widget.")
    time_zone: Mapped[str] = mapped_column(String(64))
    opening_hours: Mapped[list[Any]] = mapped_column(JSON, comment="Day, from and to; an empty list is always.")
    greeting: Mapped[str] = mapped_column(Text)
    collections: Mapped[list[Any]] = mapped_column(JSON, comment="Ids of those that the bot searches.")
    bot: Mapped[bool] = mapped_column(comment="Whether the bot answers first.")
    created_at: Mapped[datetime]


class InboxMember(Base):
    """A user who works with the cases of an inbox, or, as a viewer, reads them."""

    __tablename__ = "inbox_member"
    __table_args__ = (Index("ix_inbox_member_user_id", "user_id"),)

    inbox_id: Mapped[str] = mapped_column(ForeignKey("inbox.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"), primary_key=True)


class Contact(Base):
    """A person who writes to an inbox. Another inbox has contacts of its own."""

    __tablename__ = "contact"
    __table_args__ = (UniqueConstraint("inbox_id", "external_id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    inbox_id: Mapped[str] = mapped_column(ForeignKey("inbox.id", ondelete="CASCADE"))
    external_id: Mapped[str | None] = mapped_column(
        String(200), comment="In the desk's own system: as a signed token proves, or as a program with a key says."
    )
    verified: Mapped[bool] = mapped_column(comment="The website has signed who it is.")
    name: Mapped[str | None] = mapped_column(String(200))
    email: Mapped[str | None] = mapped_column(String(320))
    language: Mapped[str | None] = mapped_column(String(35))
    time_zone: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]


class VisitorToken(Base):
    """A contact's browser. The token itself is stored nowhere."""

    __tablename__ = "visitor_token"
    __table_args__ = (
        Index("ix_visitor_token_contact_id", "contact_id"),
        Index("ix_visitor_token_expires_at", "expires_at"),
    )

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True, comment="As of a session.")
    contact_id: Mapped[str] = mapped_column(ForeignKey("contact.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]


class SupportCase(Base):
    """A contact's matter: who answers it, and since when. Its messages are those of its conversation."""

    __tablename__ = "support_case"
    __table_args__ = (
        CheckConstraint("status IN ('bot', 'open', 'snoozed', 'resolved')", name="status"),
        CheckConstraint("priority IN ('low', 'normal', 'high', 'urgent')", name="priority"),
        Index("ix_support_case_list", "status", "updated_at", "id"),
        Index("ix_support_case_updated_at", "updated_at", "id"),
        Index("ix_support_case_counts", "inbox_id", "status", "assignee_id", "waiting_since"),
        Index("ix_support_case_assignee_id", "assignee_id", "status", "updated_at", "id"),
        Index("ix_support_case_contact_id", "contact_id", "id"),
        Index("ix_support_case_merged_into", "merged_into"),
        Index("ix_support_case_snoozed_until", "snoozed_until"),
    )

    id: Mapped[str] = mapped_column(
        ForeignKey("conversation.id", ondelete="CASCADE"), primary_key=True, comment="That of its conversation."
    )
    conversation_id = synonym("id")
    inbox_id: Mapped[str] = mapped_column(ForeignKey("inbox.id", ondelete="CASCADE"))
    contact_id: Mapped[str] = mapped_column(ForeignKey("contact.id", ondelete="CASCADE"))
    status: Mapped[str] = mapped_column(String(8))
    priority: Mapped[str] = mapped_column(String(8))
    assignee_id: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    subject: Mapped[str] = mapped_column(String(200))
    preview: Mapped[str] = mapped_column(String(200), comment="The beginning of its last message that is no note.")
    epoch: Mapped[int] = mapped_column(comment="Grows when a person acts: ends what the bot does.")
    revision: Mapped[int] = mapped_column(comment="Grows with every change.")
    bot_from: Mapped[int] = mapped_column(comment="Position of the first message that the bot reads.")
    handed_off_at: Mapped[datetime | None] = mapped_column(comment="Since when people answer; null while the bot does.")
    waiting_since: Mapped[datetime | None] = mapped_column(comment="Since when the contact waits for a person.")
    snoozed_until: Mapped[datetime | None]
    first_reply_at: Mapped[datetime | None] = mapped_column(comment="By a person.")
    resolved_at: Mapped[datetime | None]
    merged_into: Mapped[str | None] = mapped_column(
        String(ID_LENGTH),
        comment="The case that it is a part of. No foreign key, so that cases can be copied in parts.",
    )
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class CaseEvent(Base):
    """What happened to a case, when, and by whom. Every figure is computed from these rows.

    Rows are added, never changed; but the id of a contact becomes that of the known one that it turns out to be.
    """

    __tablename__ = "case_event"
    __table_args__ = (
        CheckConstraint("actor_kind IN ('contact', 'bot', 'agent', 'system')", name="actor_kind"),
        UniqueConstraint("case_id", "sequence"),
        Index("ix_case_event_at", "at"),
        Index("ix_case_event_inbox_id", "inbox_id", "at"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True, comment="UUIDv7: sorts by time.")
    case_id: Mapped[str] = mapped_column(ForeignKey("support_case.id", ondelete="CASCADE"))
    sequence: Mapped[int] = mapped_column(comment="Of the case, from 1 on.")
    inbox_id: Mapped[str] = mapped_column(ForeignKey("inbox.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(20))
    actor_kind: Mapped[str] = mapped_column(String(8))
    actor_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), comment="Of a contact or an account. No foreign key: the row never changes."
    )
    details: Mapped[dict[str, Any]]
    at: Mapped[datetime]


class Satisfaction(Base):
    """A contact's rating of a case."""

    __tablename__ = "satisfaction"
    __table_args__ = (CheckConstraint("score BETWEEN 1 AND 5", name="score"),)

    case_id: Mapped[str] = mapped_column(ForeignKey("support_case.id", ondelete="CASCADE"), primary_key=True)
    score: Mapped[int]
    comment: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class CaseAttachment(Base):
    """A contact's file. It is in the database, so that backups and erasures hold it; no address leads to it."""

    __tablename__ = "case_attachment"
    __table_args__ = (
        Index("ix_case_attachment_contact_id", "contact_id"),
        Index("ix_case_attachment_case_id", "case_id"),
        Index("ix_case_attachment_message_id", "message_id"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    contact_id: Mapped[str] = mapped_column(ForeignKey("contact.id", ondelete="CASCADE"))
    case_id: Mapped[str | None] = mapped_column(
        ForeignKey("support_case.id", ondelete="CASCADE"), comment="Null until the message is sent."
    )
    message_id: Mapped[str | None] = mapped_column(
        ForeignKey("message.id", ondelete="CASCADE"), comment="Null until the message is sent."
    )
    name: Mapped[str] = mapped_column(String(200))
    type: Mapped[str] = mapped_column(String(100), comment="By its content, not as the client said.")
    size: Mapped[int] = mapped_column(comment="In bytes.")
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[datetime]


class ReplyMail(Base):
    """The outbox of mails: an agent's reply that the contact gets by e-mail, unless it is read in the widget before."""

    __tablename__ = "reply_mail"
    __table_args__ = (
        CheckConstraint("status IN ('pending', 'sent', 'read', 'no_address', 'failed')", name="status"),
        Index("ix_reply_mail_due", "status", "next_attempt_at"),
        Index("ix_reply_mail_case_id", "case_id"),
        Index("ix_reply_mail_mail_id", "mail_id"),
        Index("ix_reply_mail_sent_at", "sent_at"),
    )

    message_id: Mapped[str] = mapped_column(ForeignKey("message.id", ondelete="CASCADE"), primary_key=True)
    case_id: Mapped[str] = mapped_column(ForeignKey("support_case.id", ondelete="CASCADE"))
    mail_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), comment="Of the mail that it is a part of, from the first attempt on."
    )
    status: Mapped[str] = mapped_column(String(12))
    attempts: Mapped[int]
    next_attempt_at: Mapped[datetime]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]


class Webhook(Base):
    """An address that is told what happens to cases."""

    __tablename__ = "webhook"
    __table_args__ = (Index("ix_webhook_inbox_id", "inbox_id"), Index("ix_webhook_created_by", "created_by"))

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    inbox_id: Mapped[str | None] = mapped_column(
        ForeignKey("inbox.id", ondelete="CASCADE"), comment="Null is every inbox."
    )
    url: Mapped[str] = mapped_column(Text)
    name: Mapped[str | None] = mapped_column(String(100), comment="Null: it is called by its address.")
    secret: Mapped[str] = mapped_column(String(64), comment="The key that signs what is sent.")
    previous_secret: Mapped[str | None] = mapped_column(String(64), comment="The key before, which signs for a while.")
    previous_secret_until: Mapped[datetime | None]
    events: Mapped[list[Any]] = mapped_column(JSON, comment="Kinds that are sent; an empty list is all.")
    enabled: Mapped[bool]
    failing_since: Mapped[datetime | None] = mapped_column(
        comment="The first failed attempt after the last successful one."
    )
    failure: Mapped[str | None] = mapped_column(Text, comment="The sentence of the last failed attempt since then.")
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(String(8), comment="admin, gone or failing.")
    created_by: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]


class WebhookDelivery(Base):
    """The outbox: what a webhook is to be told. Committed with the change that it tells of."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        CheckConstraint("status IN ('pending', 'delivered', 'failed')", name="status"),
        Index("ix_webhook_delivery_webhook_id", "webhook_id", "id"),
        Index("ix_webhook_delivery_next_attempt_at", "next_attempt_at"),
        Index("ix_webhook_delivery_case_id", "case_id"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    event_id: Mapped[str] = mapped_column(String(ID_LENGTH), comment="The same at every attempt and replay.")
    event: Mapped[str] = mapped_column(String(32))
    case_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), comment="No foreign key: what was sent outlives the case."
    )
    payload: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(12))
    attempts: Mapped[int]
    claims: Mapped[int] = mapped_column(
        default=0, server_default=text("0"), comment="Claims since the last attempt that ended."
    )
    next_attempt_at: Mapped[datetime | None] = mapped_column(comment="Null once it was delivered or given up.")
    response_status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
