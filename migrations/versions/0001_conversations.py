"""Creates accounts, conversations, messages and turns, and inserts the local user."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LOCAL_USER_ID = "00000000-0000-7000-8000-000000000001"


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        sa.UniqueConstraint("name", name=op.f("uq_account_name")),
    )
    op.create_table(
        "conversation",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column(
            "user_id",
            sa.String(length=36),
            nullable=False,
            comment="Never null: every query asks for it, so that nobody meets another's conversation.",
        ),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column(
            "settings",
            sa.JSON(),
            nullable=False,
            comment="ChatSettings; here, not in the browser, so that another tab and another day find the same.",
        ),
        sa.Column(
            "tip_message_id",
            sa.String(length=36),
            nullable=True,
            comment="The last message of the branch that is shown. The only pointer that moves; no foreign key, "
            "as messages already point here.",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="When the last message was sent. Renaming does not count: the list must not jump.",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_conversation_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversation")),
    )
    op.create_index(
        "ix_conversation_user_id_updated_at_id", "conversation", ["user_id", "updated_at", "id"], unique=False
    )
    op.create_table(
        "message",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("conversation_id", sa.String(length=36), nullable=False),
        sa.Column("parent_id", sa.String(length=36), nullable=True, comment="Null at the root."),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column(
            "status",
            sa.String(length=16),
            nullable=False,
            comment="Only 'streaming' may change; the row exists before the first token does.",
        ),
        sa.Column(
            "content", sa.Text(), nullable=False, comment="For a reply in flight: the text up to the last checkpoint."
        ),
        sa.Column(
            "position",
            sa.BigInteger(),
            nullable=False,
            comment="Depth in the tree, 0 at the root: order without walking.",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('user', 'assistant')", name=op.f("ck_message_role")),
        sa.CheckConstraint(
            "status IN ('streaming', 'complete', 'stopped', 'interrupted', 'error')", name=op.f("ck_message_status")
        ),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversation.id"],
            name=op.f("fk_message_conversation_id_conversation"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["message.id"], name=op.f("fk_message_parent_id_message")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_message")),
    )
    op.create_index("ix_message_conversation_id_position", "message", ["conversation_id", "position"], unique=False)
    op.create_index("ix_message_parent_id", "message", ["parent_id"], unique=False)
    op.create_table(
        "turn",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("conversation_id", sa.String(length=36), nullable=False),
        sa.Column("message_id", sa.String(length=36), nullable=False, comment="The reply this turn writes."),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("model", sa.Text(), nullable=False, comment="Name of the model, as /v1/models listed it then."),
        sa.Column(
            "params",
            sa.JSON(),
            nullable=False,
            comment="ChatSettings at the time, defaults left out: the conversation's may change later.",
        ),
        sa.Column("seed", sa.BigInteger(), nullable=True, comment="Beside params for queries; null drew a new one."),
        sa.Column(
            "owner",
            sa.String(length=36),
            nullable=False,
            comment="Which start of which process runs it; a later start finds the dead ones by it.",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "heartbeat_at", sa.DateTime(timezone=True), nullable=False, comment="Last sign of life of the owner."
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "checkpoint_offset",
            sa.BigInteger(),
            nullable=False,
            comment="Characters of the reply that are in message.content.",
        ),
        sa.Column("finish_reason", sa.String(length=16), nullable=True, comment="Why the engine ended it."),
        sa.Column("error", sa.Text(), nullable=True, comment="A sentence for the person; never a traceback."),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("ttft_ms", sa.Float(), nullable=True, comment="From arrival to the first token."),
        sa.Column("itl_ms", sa.Float(), nullable=True, comment="Mean gap between later tokens."),
        sa.Column("tokens_per_second", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "status IN ('running', 'complete', 'stopped', 'interrupted', 'error')", name=op.f("ck_turn_status")
        ),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversation.id"],
            name=op.f("fk_turn_conversation_id_conversation"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["message.id"], name=op.f("fk_turn_message_id_message"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turn")),
        sa.UniqueConstraint("message_id", name=op.f("uq_turn_message_id")),
    )
    op.create_index("ix_turn_conversation_id", "turn", ["conversation_id"], unique=False)
    op.create_index(
        "uq_turn_running",
        "turn",
        ["conversation_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    # ### end Alembic commands ###
    account = sa.table(
        "account", sa.column("id"), sa.column("name"), sa.column("created_at", sa.DateTime(timezone=True))
    )
    op.execute(account.insert().values(id=LOCAL_USER_ID, name="local", created_at=datetime(2026, 1, 1, tzinfo=UTC)))


def downgrade() -> None:
    for table in ("turn", "message", "conversation", "account"):
        op.drop_table(table)
