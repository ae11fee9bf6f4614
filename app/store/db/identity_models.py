"""The table of users' identities at sign-in providers."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.store.db.models import Base


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
