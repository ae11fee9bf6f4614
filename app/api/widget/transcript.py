"""A visitor's talk as a text."""

from __future__ import annotations

from collections.abc import Iterable

from app.api.widget.views import is_shown
from app.cases.sentences import Sentence, say
from app.domain.case_views import CaseMessage, ContactView, InboxView
from app.domain.cases import AuthorKind
from app.domain.opening_hours import zone
from app.domain.text import one_line

_AUTHORS = {
    AuthorKind.CONTACT: Sentence.CONTACT,
    AuthorKind.BOT: Sentence.BOT,
    AuthorKind.AGENT: Sentence.AGENT,
    AuthorKind.SYSTEM: Sentence.AGENT,
}


def transcript(inbox: InboxView, contact: ContactView, messages: Iterable[CaseMessage]) -> str:
    """The talk in the visitor's language and time zone, with the sources of each reply and the names of its files."""
    there = zone(contact.time_zone or inbox.time_zone)
    parts = [say(Sentence.TRANSCRIPT, contact.language, name=one_line(inbox.name))]
    for message in messages:
        if not is_shown(message):
            continue
        author = message.author_name if message.author is AuthorKind.AGENT else None
        name = author or say(_AUTHORS[message.author], contact.language)
        at = message.created_at.astimezone(there).strftime("%Y-%m-%d %H:%M")
        lines = [f"{name}, {at} ({there.key})", message.text.strip()]
        lines += [f"[{one.number}] {one_line(one.title)}" for one in message.citations]
        lines += [f"({one_line(file.name)})" for file in message.attachments]
        parts.append("\n".join(line for line in lines if line))
    return "\n\n".join(parts) + "\n"
