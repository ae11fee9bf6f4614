"""Adds inboxes, contacts and cases: visitors write to a desk, and agents and the bot answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _id(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=36), nullable=nullable, comment=comment)


def _moment(name: str, *, nullable: bool = False, comment: str | None = None) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, comment=comment)


def _text(name: str, length: int, *, nullable: bool = False, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=nullable, comment=comment)


def _key(table: str, column: str, target: str, ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}_{target}"), ondelete=ondelete
    )


def _check(table: str, column: str, *values: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({_quoted(values)})", name=op.f(f"ck_{table}_{column}"))


def _quoted(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _checked_column(table: str, column: sa.Column[Any], *values: str, rest: str = "") -> None:
    """Adds a column with its check. Adding a check alone would rebuild SQLite's table and delete rows that refer to it;
    a column may bring one."""
    check = f"{column.name} IN ({_quoted(values)})"
    name = f"ck_{table}_{column.name}"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column.name} VARCHAR(8) {rest} CONSTRAINT {name} CHECK ({check})")
    else:
        op.add_column(table, column)
        op.create_check_constraint(op.f(name), table, check)


def upgrade() -> None:
    _checked_column(
        "account",
        sa.Column(
            "kind",
            sa.String(length=8),
            server_default="person",
            nullable=False,
            comment="An inbox's account owns its conversations and cannot sign in.",
        ),
        "person",
        "inbox",
        rest="DEFAULT 'person' NOT NULL",
    )
    _checked_column(
        "message",
        _text("author_kind", 8, nullable=True, comment="Of a case's message: its author. Null in other chats."),
        "contact",
        "bot",
        "agent",
        "system",
    )
    op.add_column("message", _id("author_id", nullable=True, comment="Id of the contact or of the agent's account."))
    op.add_column(
        "message",
        sa.Column(
            "internal",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="A note of the agents, which contacts and the bot never read.",
        ),
    )
    op.add_column(
        "message",
        _text("client_id", 64, nullable=True, comment="The client's own id: sending it again stores nothing."),
    )
    op.create_index(
        "uq_message_conversation_id_client_id",
        "message",
        ["conversation_id", "client_id"],
        unique=True,
        sqlite_where=sa.text("client_id IS NOT NULL"),
        postgresql_where=sa.text("client_id IS NOT NULL"),
    )

    op.create_table(
        "inbox",
        _id("id"),
        _id("user_id", comment="The account that owns its conversations."),
        _text("name", 100),
        _text("kind", 8),
        _text("token", 64, comment="Public: the address of its widget."),
        _text("secret", 64, comment="The key that signs the identities of contacts."),
        _text("previous_secret", 64, nullable=True, comment="The key before, which holds for a while."),
        _moment("previous_secret_until", nullable=True),
        sa.Column("allowed_origins", sa.JSON(), nullable=False, comment="Websites that may embed the widget."),
        _text("time_zone", 64),
        sa.Column("opening_hours", sa.JSON(), nullable=False, comment="Day, from and to; an empty list is always."),
        sa.Column("greeting", sa.Text(), nullable=False),
        sa.Column("collections", sa.JSON(), nullable=False, comment="Ids of those that the bot searches."),
        sa.Column("bot", sa.Boolean(), nullable=False, comment="Whether the bot answers first."),
        _moment("created_at"),
        _check("inbox", "kind", "widget", "api"),
        _key("inbox", "user_id", "account"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inbox")),
        sa.UniqueConstraint("user_id", name=op.f("uq_inbox_user_id")),
        sa.UniqueConstraint("token", name=op.f("uq_inbox_token")),
    )

    op.create_table(
        "inbox_member",
        _id("inbox_id"),
        _id("user_id"),
        _key("inbox_member", "inbox_id", "inbox"),
        _key("inbox_member", "user_id", "account"),
        sa.PrimaryKeyConstraint("inbox_id", "user_id", name=op.f("pk_inbox_member")),
    )
    op.create_index("ix_inbox_member_user_id", "inbox_member", ["user_id"])

    op.create_table(
        "contact",
        _id("id"),
        _id("inbox_id"),
        _text("external_id", 200, nullable=True, comment="In the desk's own system; proven by a signed token."),
        sa.Column("verified", sa.Boolean(), nullable=False, comment="The website has signed who it is."),
        _text("name", 200, nullable=True),
        _text("email", 320, nullable=True),
        _text("language", 35, nullable=True),
        _text("time_zone", 64, nullable=True),
        _moment("created_at"),
        _moment("last_seen_at"),
        _key("contact", "inbox_id", "inbox"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contact")),
        sa.UniqueConstraint("inbox_id", "external_id", name=op.f("uq_contact_inbox_id_external_id")),
    )

    op.create_table(
        "visitor_token",
        _text("token_hash", 64, comment="As of a session."),
        _id("contact_id"),
        _moment("created_at"),
        _moment("expires_at"),
        _moment("last_seen_at"),
        _key("visitor_token", "contact_id", "contact"),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_visitor_token")),
    )
    op.create_index("ix_visitor_token_contact_id", "visitor_token", ["contact_id"])
    op.create_index("ix_visitor_token_expires_at", "visitor_token", ["expires_at"])

    op.create_table(
        "support_case",
        _id("id", comment="That of its conversation."),
        _id("inbox_id"),
        _id("contact_id"),
        _text("status", 8),
        _text("priority", 8),
        _id("assignee_id", nullable=True),
        _text("subject", 200),
        _text("preview", 200, comment="The beginning of its last message that is no note."),
        sa.Column(
            "epoch", sa.BigInteger(), nullable=False, comment="Grows when a person acts: ends what the bot does."
        ),
        sa.Column("revision", sa.BigInteger(), nullable=False, comment="Grows with every change."),
        sa.Column(
            "bot_from", sa.BigInteger(), nullable=False, comment="Position of the first message that the bot reads."
        ),
        _moment("handed_off_at", nullable=True, comment="Since when people answer; null while the bot does."),
        _moment("waiting_since", nullable=True, comment="Since when the contact waits for a person."),
        _moment("snoozed_until", nullable=True),
        _moment("first_reply_at", nullable=True, comment="By a person."),
        _moment("resolved_at", nullable=True),
        _id(
            "merged_into",
            nullable=True,
            comment="The case that it is a part of. No foreign key, so that cases can be copied in parts.",
        ),
        _moment("created_at"),
        _moment("updated_at"),
        _check("support_case", "status", "bot", "open", "snoozed", "resolved"),
        _check("support_case", "priority", "low", "normal", "high", "urgent"),
        _key("support_case", "id", "conversation"),
        _key("support_case", "inbox_id", "inbox"),
        _key("support_case", "contact_id", "contact"),
        _key("support_case", "assignee_id", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_support_case")),
    )
    op.create_index("ix_support_case_list", "support_case", ["status", "updated_at", "id"])
    op.create_index("ix_support_case_updated_at", "support_case", ["updated_at", "id"])
    op.create_index("ix_support_case_counts", "support_case", ["inbox_id", "status", "assignee_id", "waiting_since"])
    op.create_index("ix_support_case_assignee_id", "support_case", ["assignee_id", "status", "updated_at", "id"])
    op.create_index("ix_support_case_contact_id", "support_case", ["contact_id", "id"])
    op.create_index("ix_support_case_merged_into", "support_case", ["merged_into"])
    op.create_index("ix_support_case_snoozed_until", "support_case", ["snoozed_until"])

    op.create_table(
        "case_event",
        _id("id", comment="UUIDv7: sorts by time."),
        _id("case_id"),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="Of the case, from 1 on."),
        _id("inbox_id"),
        _text("kind", 16),
        _text("reason", 20, nullable=True),
        _text("actor_kind", 8),
        _id("actor_id", nullable=True, comment="Of a contact or an account. No foreign key: the row never changes."),
        sa.Column("details", sa.JSON(), nullable=False),
        _moment("at"),
        _check("case_event", "actor_kind", "contact", "bot", "agent", "system"),
        _key("case_event", "case_id", "support_case"),
        _key("case_event", "inbox_id", "inbox"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_case_event")),
        sa.UniqueConstraint("case_id", "sequence", name=op.f("uq_case_event_case_id_sequence")),
    )
    op.create_index("ix_case_event_at", "case_event", ["at"])
    op.create_index("ix_case_event_inbox_id", "case_event", ["inbox_id", "at"])

    op.create_table(
        "satisfaction",
        _id("case_id"),
        sa.Column("score", sa.BigInteger(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        _moment("created_at"),
        _moment("updated_at"),
        sa.CheckConstraint("score BETWEEN 1 AND 5", name=op.f("ck_satisfaction_score")),
        _key("satisfaction", "case_id", "support_case"),
        sa.PrimaryKeyConstraint("case_id", name=op.f("pk_satisfaction")),
    )

    op.create_table(
        "case_attachment",
        _id("id"),
        _id("contact_id"),
        _id("case_id", nullable=True, comment="Null until the message is sent."),
        _id("message_id", nullable=True, comment="Null until the message is sent."),
        _text("name", 200),
        _text("type", 100, comment="By its content, not as the client said."),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="In bytes."),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        _moment("created_at"),
        _key("case_attachment", "contact_id", "contact"),
        _key("case_attachment", "case_id", "support_case"),
        _key("case_attachment", "message_id", "message"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_case_attachment")),
    )
    op.create_index("ix_case_attachment_contact_id", "case_attachment", ["contact_id"])
    op.create_index("ix_case_attachment_case_id", "case_attachment", ["case_id"])
    op.create_index("ix_case_attachment_message_id", "case_attachment", ["message_id"])

    op.create_table(
        "webhook",
        _id("id"),
        _id("inbox_id", nullable=True, comment="Null is every inbox."),
        sa.Column("url", sa.Text(), nullable=False),
        _text("secret", 64, comment="The key that signs what is sent."),
        sa.Column("events", sa.JSON(), nullable=False, comment="Kinds that are sent; an empty list is all."),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        _id("created_by", nullable=True),
        _moment("created_at"),
        _key("webhook", "inbox_id", "inbox"),
        _key("webhook", "created_by", "account", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook")),
    )
    op.create_index("ix_webhook_inbox_id", "webhook", ["inbox_id"])
    op.create_index("ix_webhook_created_by", "webhook", ["created_by"])

    op.create_table(
        "webhook_delivery",
        _id("id"),
        _id("webhook_id"),
        _id("event_id", comment="The same at every attempt and replay."),
        _text("event", 32),
        _id("case_id", nullable=True, comment="No foreign key: what was sent outlives the case."),
        sa.Column("payload", sa.JSON(), nullable=False),
        _text("status", 12),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        _moment("next_attempt_at", nullable=True, comment="Null once it was delivered or given up."),
        sa.Column("response_status", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _moment("created_at"),
        _moment("delivered_at", nullable=True),
        _check("webhook_delivery", "status", "pending", "delivered", "failed"),
        _key("webhook_delivery", "webhook_id", "webhook"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index("ix_webhook_delivery_webhook_id", "webhook_delivery", ["webhook_id", "id"])
    op.create_index("ix_webhook_delivery_next_attempt_at", "webhook_delivery", ["next_attempt_at"])
    op.create_index("ix_webhook_delivery_case_id", "webhook_delivery", ["case_id"])


def downgrade() -> None:
    # The conversations of inboxes would become those of accounts that sign in nowhere.
    op.execute("DELETE FROM account WHERE kind = 'inbox'")
    for table in (
        "webhook_delivery",
        "webhook",
        "case_attachment",
        "satisfaction",
        "case_event",
        "support_case",
        "visitor_token",
        "contact",
        "inbox_member",
        "inbox",
    ):
        op.drop_table(table)
    op.drop_index("uq_message_conversation_id_client_id", "message")
    for table, column in (
        ("message", "client_id"),
        ("message", "internal"),
        ("message", "author_id"),
        ("message", "author_kind"),
        ("account", "kind"),
    ):
        if column in ("author_kind", "kind") and op.get_bind().dialect.name != "sqlite":
            op.drop_constraint(op.f(f"ck_{table}_{column}"), table)
        op.drop_column(table, column)
