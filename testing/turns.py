"""Builds turns for the store's tests."""

from __future__ import annotations

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.store.chat.new_turns import NewTurn


def new_turn() -> NewTurn:
    """Makes a turn: the first message of a new conversation and the reply to it."""
    return NewTurn(
        turn_id=new_id(),
        conversation_id=new_id(),
        user_message_id=new_id(),
        message_id=new_id(),
        title="Title",
        parent_id=None,
        parent_is_tip=True,
        text="question",
        settings=ChatSettings(),
        save_settings=False,
        model="fake",
    )
