"""Detects the form in which a chat template takes message content, and the roles whose text it leaves out.

Some templates take text, some take lists of parts as in OpenAI's API (``[{"type": "text", "text": ...}]``), some take
both. A template that only knows lists finds nothing in a text, and the message vanishes without an error. vLLM looks
for loops over ``message.content`` in the template's syntax tree. Deskmate renders short conversations instead, which
also detects templates that leave messages out in either form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Render = Callable[[list[dict[str, Any]]], str]
"""Renders a conversation to the text of the prompt."""

_SENTINELS: Mapping[str, str] = MappingProxyType(
    {"system": "sentinelsystem", "user": "sentineluser", "assistant": "sentinelassistant", "next": "sentinelnext"}
)
_CONVERSATIONS: Sequence[tuple[str, Sequence[Sequence[str]]]] = (
    ("user", (("user",), ("system", "user"))),  # some templates insist on a system message
    ("system", (("system", "user"),)),
    ("assistant", (("user", "assistant", "next"), ("system", "user", "assistant", "next"))),
)
"""Role -> conversations to test it with. The next one is tried where the template refuses the one before."""


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """The form in which a template takes messages."""

    in_parts: frozenset[str] = frozenset()  #: roles whose content is passed as a list of parts
    left_out: frozenset[str] = frozenset()  #: roles whose text the template shows in neither form

    def convert(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the messages with their content in the form that the template takes."""
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if message["role"] in self.in_parts
            else dict(message)
            for message in messages
        ]


def detect_content_format(render: Render) -> ContentFormat:
    """Renders a few words of each role and checks which forms the template shows.

    A conversation that the template refuses in every form is ignored: a request with it will get the same error.
    """
    in_parts: set[str] = set()
    left_out: set[str] = set()
    for role, conversations in _CONVERSATIONS:
        for conversation in conversations:
            forms = [in_parts - {role}, in_parts | {role}]
            if role == "user" and "system" in conversation:  # the form for system messages is not known yet
                forms += [form | {"system"} for form in forms]
            shown = [(form, _is_shown(render, conversation, role, ContentFormat(frozenset(form)))) for form in forms]
            if any(is_shown is not None for _, is_shown in shown):
                found = next((form for form, is_shown in shown if is_shown), None)
                if found is None:
                    left_out.add(role)
                elif role in found:
                    in_parts.add(role)
                break
    return ContentFormat(frozenset(in_parts), frozenset(left_out))


def _is_shown(render: Render, conversation: Sequence[str], role: str, form: ContentFormat) -> bool | None:
    """Whether the text of a role appears in the prompt; None if the template refuses the conversation."""
    messages = [{"role": "user" if name == "next" else name, "content": _SENTINELS[name]} for name in conversation]
    try:
        return _SENTINELS[role] in render(form.convert(messages))
    except Exception:  # the template is the model's own program and may raise anything
        return None
