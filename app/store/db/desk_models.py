"""Tables of the support desk: feedback, reviews, drafts of replies, and versions of prompts and canned replies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, column, false
from sqlalchemy.orm import Mapped, mapped_column

from app.domain.knowledge import Passage
from app.store.db.models import ID_LENGTH, Base, Sources, stored_bytes


class Feedback(Base):
    """One user's rating of one reply."""

    __tablename__ = "feedback"
    __table_args__ = (
        CheckConstraint("rating IN ('up', 'down')", name="rating"),
        Index("ix_feedback_conversation_id", "conversation_id"),
        Index("ix_feedback_user_id", "user_id"),
        Index("ix_feedback_created_at", "created_at"),
    )

    message_id: Mapped[str] = mapped_column(ForeignKey("message.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    rating: Mapped[str] = mapped_column(String(8))
    reasons: Mapped[list[Any]] = mapped_column(JSON, comment="Names of the reasons that were ticked.")
    comment: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(comment="Of the first thumb; usage counts the rating on that day.")
    updated_at: Mapped[datetime]


class Review(Base):
    """A reply that was reviewed on the review page. New feedback deletes the row."""

    __tablename__ = "review"
    __table_args__ = (
        Index("ix_review_conversation_id", "conversation_id"),
        Index("ix_review_reviewer_id", "reviewer_id"),
    )

    message_id: Mapped[str] = mapped_column(ForeignKey("message.id", ondelete="CASCADE"), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    reviewer_id: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    reviewed_at: Mapped[datetime]


class ReplyDraft(Base):
    """A draft of a reply to a customer, and what became of it. Its conversation's user asked for it."""

    __tablename__ = "reply_draft"
    __table_args__ = (
        CheckConstraint("change IN ('shorter', 'friendlier')", name="change"),
        CheckConstraint("used_as IN ('copied', 'inserted')", name="used_as"),
        Index("ix_reply_draft_conversation_id", "conversation_id", "id"),
        Index("ix_reply_draft_used_at", "used_at", "id"),
        Index("ix_reply_draft_conversation_id_stored_bytes", "conversation_id", "stored_bytes").ddl_if(
            dialect="sqlite"
        ),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True, comment="UUIDv7: sorts by time.")
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversation.id", ondelete="CASCADE"))
    message: Mapped[str] = mapped_column(Text, comment="The customer's message.")
    change: Mapped[str | None] = mapped_column(String(16), comment="How an earlier draft was changed.")
    model: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(
        Text, comment="What the model wrote. Empty while it writes, and if the server stopped meanwhile."
    )
    sources: Mapped[tuple[Passage, ...] | None] = mapped_column(
        Sources, comment="The passages that it was given, as JSON, in the order of their numbers."
    )
    final_text: Mapped[str | None] = mapped_column(Text, comment="What the user made of it; null until it is used.")
    used_as: Mapped[str | None] = mapped_column(String(8))
    used_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    stored_bytes: Mapped[int] = mapped_column(
        stored_bytes(
            column("message", Text), column("text", Text), column("sources", Text), column("final_text", Text)
        ),
        deferred=True,
    )


class TemplateVersion(Base):
    """A version of a prompt or a canned reply by an admin; the highest is in use. A file on disk is its version 0."""

    __tablename__ = "template_version"
    __table_args__ = (
        CheckConstraint("kind IN ('prompt', 'canned')", name="kind"),
        CheckConstraint("version > 0", name="version"),
        Index("ix_template_version_author_id", "author_id"),
    )

    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(String(60))
    description: Mapped[str] = mapped_column(String(200))
    variables: Mapped[list[Any]] = mapped_column(JSON, comment="Name, description and default of each.")
    recommended: Mapped[dict[str, Any]] = mapped_column(comment="ChatSettings, defaults left out; of prompts only.")
    tools: Mapped[list[str]] = mapped_column(
        JSON,
        default=list,
        server_default="[]",
        comment="Of a prompt: names of the tool servers whose tools its chats are offered.",
    )
    min_parameters: Mapped[int | None] = mapped_column(
        comment="Of a prompt: how many parameters a model needs for it; null for any model."
    )
    body: Mapped[str] = mapped_column(Text, comment="A Jinja2 template.")
    removed: Mapped[bool] = mapped_column(
        default=False, server_default=false(), comment="From this version on it is not offered any more."
    )
    author_id: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
