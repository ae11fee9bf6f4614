"""Adds users' identities at sign-in providers, and what a session keeps of a sign-in there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "external_identity",
        sa.Column("issuer", sa.String(length=500), nullable=False),
        sa.Column(
            "subject",
            sa.String(length=255),
            nullable=False,
            comment="The provider's id of the user, which it gives to no other.",
        ),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column(
            "label",
            sa.String(length=200),
            nullable=False,
            comment="For display only: the username or e-mail address there.",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_external_identity_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_external_identity")),
    )
    op.create_index("uq_external_identity_user_id_issuer", "external_identity", ["user_id", "issuer"], unique=True)
    op.add_column(
        "login_session",
        sa.Column(
            "ends_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Of a sign-in with a provider: when it ends however much it is used; null otherwise.",
        ),
    )
    op.add_column(
        "login_session",
        sa.Column(
            "id_token",
            sa.Text(),
            nullable=True,
            comment="Encrypted with APP_SECRET_KEY: the provider asks for it at sign-out.",
        ),
    )


def downgrade() -> None:
    op.drop_column("login_session", "id_token")
    op.drop_column("login_session", "ends_at")
    op.drop_table("external_identity")
