"""In which form a chat template takes the content of messages, and whose text it leaves out.

Some templates take text, some lists of parts as OpenAI's API has them (``[{"type": "text", "text": ...}]``), some
both. One that only knows lists finds nothing in a text, and the message vanishes without a word. vLLM looks for loops
over ``message.content`` in the template's syntax tree; here short conversations are rendered, which also shows
templates that leave messages out whatever their form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Render = Callable[[list[dict[str, Any]]], str]
"""A conversation to the text of the prompt."""

_SENTINELS: Mapping[str, str] = MappingProxyType(
    {"system": "sentinelsystem", "user": "sentineluser", "assistant": "sentinelassistant", "next": "sentinelnext"}
)
_CONVERSATIONS: Sequence[tuple[str, Sequence[Sequence[str]]]] = (
    ("user", (("user",), ("system", "user"))),  # some templates insist on a system message
    ("system", (("system", "user"),)),
    ("assistant", (("user", "assistant", "next"), ("system", "user", "assistant", "next"))),
)
"""In which a role is tried: the next one where the template refuses the one before."""


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """How to hand messages to a template."""

    in_parts: frozenset[str] = frozenset()  #: roles whose content goes in as a list of parts
    left_out: frozenset[str] = frozenset()  #: roles whose text the template shows in neither form

    def convert(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages, their content in the form that the template takes."""
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if message["role"] in self.in_parts
            else dict(message)
            for message in messages
        ]


def detect_content_format(render: Render) -> ContentFormat:
    """Try a template on a few words of each role.

    A conversation that it refuses in every form tells nothing: what the template raises then is its answer to a
    request, too.
    """
    in_parts: set[str] = set()
    left_out: set[str] = set()
    for role, conversations in _CONVERSATIONS:
        for conversation in conversations:
            forms = [in_parts - {role}, in_parts | {role}]
            if role == "user" and "system" in conversation:  # whose form is not known yet
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
    """Whether the text of a role is in the prompt; None where the template refuses the conversation."""
    messages = [{"role": "user" if name == "next" else name, "content": _SENTINELS[name]} for name in conversation]
    try:
        return _SENTINELS[role] in render(form.convert(messages))
    except Exception:  # a template is the model's own program, and may fail in any way
        return None
