"""Tables of what lets users in: their browsers' sessions, links, API keys, and identities at sign-in providers."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.store.db.models import ID_LENGTH, Base


class LoginSession(Base):
    """A browser that is signed in. Signing out deletes the row."""

    __tablename__ = "login_session"
    __table_args__ = (Index("ix_login_session_user_id", "user_id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    token_hash: Mapped[str] = mapped_column(
        String(64), unique=True, comment="HMAC-SHA256 of the cookie's token with APP_SECRET_KEY; the token is nowhere."
    )
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime] = mapped_column(comment="Within some minutes.")
    expires_at: Mapped[datetime]
    user_agent: Mapped[str] = mapped_column(String(200), comment="To tell one's own sessions apart.")
    address: Mapped[str] = mapped_column(String(45))
    ends_at: Mapped[datetime | None] = mapped_column(
        comment="Of a sign-in with a provider: when it ends however much it is used; null otherwise."
    )
    id_token: Mapped[str | None] = mapped_column(
        Text, comment="Encrypted with APP_SECRET_KEY: the provider asks for it at sign-out."
    )


class Invitation(Base):
    """A single-use link: to create an account, to create the first account, or to choose a new password."""

    __tablename__ = "invitation"
    __table_args__ = (
        CheckConstraint("purpose IN ('invitation', 'reset', 'setup')", name="purpose"),
        CheckConstraint("role IN ('admin', 'agent', 'viewer')", name="role"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    purpose: Mapped[str] = mapped_column(String(16))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True, comment="As of a session.")
    role: Mapped[str] = mapped_column(String(16), comment="What who follows it becomes.")
    user_id: Mapped[str | None] = mapped_column(
        ForeignKey("account.id", ondelete="CASCADE"), comment="Whose password it changes; null where it makes one."
    )
    note: Mapped[str | None] = mapped_column(String(200), comment="Who it is for, in the words of who made it.")
    created_by: Mapped[str | None] = mapped_column(ForeignKey("account.id", ondelete="SET NULL"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class ApiKey(Base):
    """A client's credential for ``/v1``. Revoking deletes the row."""

    __tablename__ = "api_key"
    __table_args__ = (Index("ix_api_key_user_id", "user_id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True, comment="As of a session.")
    beginning: Mapped[str] = mapped_column(String(16), comment="Its first characters, to tell one's keys apart.")
    scopes: Mapped[str] = mapped_column(String(200), comment="What it opens, separated by blanks.")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None] = mapped_column(comment="Null is never.")
    last_used_at: Mapped[datetime | None] = mapped_column(comment="Within some minutes.")


class ExternalIdentity(Base):
    """A user of a sign-in provider, and the account that they sign in to."""

    __tablename__ = "external_identity"
    __table_args__ = (Index("uq_external_identity_user_id_issuer", "user_id", "issuer", unique=True),)

    issuer: Mapped[str] = mapped_column(String(500), primary_key=True)
    subject: Mapped[str] = mapped_column(
        String(255), primary_key=True, comment="The provider's id of the user, which it gives to no other."
    )
    user_id: Mapped[str] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    label: Mapped[str] = mapped_column(String(200), comment="For display only: the username or e-mail address there.")
    created_at: Mapped[datetime]
