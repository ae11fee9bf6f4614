"""Adds passwords, roles, sessions, invitations, API keys, the audit log, and tokens per day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LOCAL_USER_ID = "00000000-0000-7000-8000-000000000001"

_ROLES = "role IN ('admin', 'agent', 'viewer')"


def _id(name: str = "id", *, nullable: bool = False, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=36), nullable=nullable, comment=comment)


def _moment(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, comment=comment)


def _token_hash(comment: str = "As of a session.") -> sa.Column[str]:
    return sa.Column("token_hash", sa.String(length=64), nullable=False, comment=comment)


def _account(table: str, column: str, ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], ["account.id"], name=op.f(f"fk_{table}_{column}_account"), ondelete=ondelete
    )


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    for column in (
        sa.Column("display_name", sa.String(length=200), nullable=True, comment="Null is the name."),
        sa.Column(
            "password_hash",
            sa.String(length=300),
            nullable=True,
            comment="argon2's own text, with its parameters and salt. Null lets nobody in.",
        ),
        _moment("disabled_at", nullable=True, comment="Since when they may not sign in; null lets them."),
        _moment("last_seen_at", nullable=True, comment="Within some minutes: not every request writes it."),
    ):
        op.add_column("account", column)
    # Adding a constraint alone would rebuild SQLite's table and delete rows that refer to it; a column may bring one.
    if sqlite:
        op.execute(
            "ALTER TABLE account ADD COLUMN role VARCHAR(16) DEFAULT 'agent' NOT NULL "
            f"CONSTRAINT ck_account_role CHECK ({_ROLES})"
        )
    else:
        op.add_column("account", sa.Column("role", sa.String(length=16), server_default="agent", nullable=False))
        op.create_check_constraint(op.f("ck_account_role"), "account", _ROLES)
        comment = "What is typed to sign in, in lower case: a name or an e-mail address."
        op.alter_column(
            "account", "name", existing_type=sa.String(length=200), existing_nullable=False, comment=comment
        )
    account = sa.table("account", sa.column("id"), sa.column("role"))
    op.execute(account.update().where(account.c.id == LOCAL_USER_ID).values(role="admin"))

    op.create_table(
        "login_session",
        _id(),
        _id("user_id"),
        _token_hash("HMAC-SHA256 of the cookie's token with APP_SECRET_KEY; the token is nowhere."),
        _moment("created_at"),
        _moment("last_seen_at", comment="Within some minutes."),
        _moment("expires_at"),
        sa.Column("user_agent", sa.String(length=200), nullable=False, comment="To tell one's own sessions apart."),
        sa.Column("address", sa.String(length=45), nullable=False),
        _account("login_session", "user_id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_session")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_login_session_token_hash")),
    )
    op.create_index("ix_login_session_user_id", "login_session", ["user_id"])
    op.create_table(
        "invitation",
        _id(),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        _token_hash(),
        sa.Column("role", sa.String(length=16), nullable=False, comment="What who follows it becomes."),
        _id("user_id", nullable=True, comment="Whose password it changes; null where it makes one."),
        sa.Column("note", sa.String(length=200), nullable=True, comment="Who it is for, in the words of who made it."),
        _id("created_by", nullable=True),
        _moment("created_at"),
        _moment("expires_at"),
        _moment("used_at", nullable=True),
        sa.CheckConstraint("purpose IN ('invitation', 'reset', 'setup')", name=op.f("ck_invitation_purpose")),
        sa.CheckConstraint(_ROLES, name=op.f("ck_invitation_role")),
        _account("invitation", "user_id"),
        _account("invitation", "created_by", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitation")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_invitation_token_hash")),
    )
    op.create_table(
        "api_key",
        _id(),
        _id("user_id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        _token_hash(),
        sa.Column(
            "beginning", sa.String(length=16), nullable=False, comment="Its first characters, to tell one's keys apart."
        ),
        sa.Column("scopes", sa.String(length=200), nullable=False, comment="What it opens, separated by blanks."),
        _moment("created_at"),
        _moment("expires_at", nullable=True, comment="Null is never."),
        _moment("last_used_at", nullable=True, comment="Within some minutes."),
        _account("api_key", "user_id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_key_token_hash")),
    )
    op.create_index("ix_api_key_user_id", "api_key", ["user_id"])
    op.create_table(
        "token_use",
        _id("user_id"),
        sa.Column("day", sa.String(length=10), nullable=False, comment="In UTC, such as 2026-11-21."),
        sa.Column(
            "tokens", sa.BigInteger(), nullable=False, comment="Read and written, by the chat and through API keys."
        ),
        _account("token_use", "user_id"),
        sa.PrimaryKeyConstraint("user_id", "day", name=op.f("pk_token_use")),
    )
    op.create_table(
        "audit_event",
        _id(comment="UUIDv7: sorts by time."),
        _moment("at"),
        _id("actor_id", nullable=True, comment="Null where nobody was signed in."),
        sa.Column("action", sa.String(length=40), nullable=False, comment="AuditAction."),
        sa.Column("target", sa.String(length=200), nullable=True, comment="The id or name of what it was done to."),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index("ix_audit_event_actor_id", "audit_event", ["actor_id"])


def downgrade() -> None:
    for table in ("audit_event", "token_use", "api_key", "invitation", "login_session"):
        op.drop_table(table)
    for column in ("role", "last_seen_at", "disabled_at", "password_hash", "display_name"):
        op.execute(f"ALTER TABLE account DROP COLUMN {column}")
