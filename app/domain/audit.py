"""Audit action types. The audit log never contains what users wrote."""

from __future__ import annotations

from enum import StrEnum


class AuditAction(StrEnum):
    """An audit action type. The values are stored in databases: add new ones, never change existing ones."""

    SIGNED_IN = "signed_in"
    SIGN_IN_FAILED = "sign_in_failed"
    SIGNED_OUT = "signed_out"
    SIGNED_OUT_EVERYWHERE = "signed_out_everywhere"
    SESSION_REVOKED = "session_revoked"
    PASSWORD_CHANGED = "password_changed"
    PASSWORD_RESET = "password_reset"
    RESET_LINK_MADE = "reset_link_made"
    ACCOUNT_CREATED = "account_created"
    ACCOUNT_DISABLED = "account_disabled"
    ACCOUNT_ENABLED = "account_enabled"
    ROLE_CHANGED = "role_changed"
    INVITED = "invited"
    INVITATION_REVOKED = "invitation_revoked"
    HISTORY_TAKEN_OVER = "history_taken_over"
    API_KEY_CREATED = "api_key_created"
    API_KEY_REVOKED = "api_key_revoked"
    CONVERSATION_DELETED = "conversation_deleted"
    MESSAGES_DELETED = "messages_deleted"
    EXPORTED = "exported"
    IMPORTED = "imported"
    MODEL_CHANGED = "model_changed"
    ADAPTER_LOADED = "adapter_loaded"
    ADAPTER_UNLOADED = "adapter_unloaded"
    PERSON_DELETED = "person_deleted"
    PROMPT_CHANGED = "prompt_changed"
    PROMPT_DELETED = "prompt_deleted"
    CANNED_REPLY_CHANGED = "canned_reply_changed"
    CANNED_REPLY_DELETED = "canned_reply_deleted"
    REPLY_REVIEWED = "reply_reviewed"
