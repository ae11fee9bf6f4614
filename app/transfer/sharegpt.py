"""Reads ShareGPT, a format of datasets: ``{"conversations": [{"from": "human", "value": ...}, ...]}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.broken_conversation import BrokenConversation
from app.domain.views import Role
from app.transfer.fields import a_list, a_text, an_object, text_or_none
from app.transfer.foreign import ForeignConversation, ForeignMessage

PROGRAM = "sharegpt"
_LISTS = ("conversations", "items")
_ROLES = {
    **dict.fromkeys(("human", "user"), Role.USER),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), Role.ASSISTANT),
}


def can_read(conversation: Mapping[str, Any]) -> bool:
    return any(isinstance(conversation.get(name), list) for name in _LISTS)


def read(conversation: Mapping[str, Any]) -> ForeignConversation:
    """Reads one conversation.

    Raises:
        BrokenConversation: one of the turns is malformed.
    """
    name = next(name for name in _LISTS if isinstance(conversation.get(name), list))
    messages: list[ForeignMessage] = []
    prompts: list[str] = []
    for index, value in enumerate(a_list(conversation[name], name)):
        field = f"{name}[{index}]"
        turn = an_object(value, field)
        speaker = turn.get("from", turn.get("role"))
        if not isinstance(speaker, str):
            raise BrokenConversation(f"{field}.from", "this should be text")
        text = a_text(turn.get("value", turn.get("content")), f"{field}.value")
        role = _ROLES.get(speaker.lower())
        if speaker.lower() == "system":
            prompts.append(text)
        messages.append(ForeignMessage(key=str(index), parent=str(index - 1) if index else None, role=role, text=text))
    return ForeignConversation(
        program=PROGRAM,
        # Ids such as "identity_0" occur in many such files: only the text identifies a conversation.
        id=None,
        messages=messages,
        title=text_or_none(conversation, "title"),
        system_prompt="\n\n".join(prompts),
    )
