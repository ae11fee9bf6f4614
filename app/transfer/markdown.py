"""Renders a conversation's shown branch as Markdown.

Each message is a block quote. An unfinished code fence, a heading or HTML in it ends with the
quote, and without the quote marks the text is verbatim, but for citations: they become footnotes,
which stand at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from app.domain.citations import cited_numbers, with_footnotes
from app.domain.conversation_document import ConversationDocument, MessageDocument, SourceDocument, ToolUseDocument
from app.domain.knowledge import WITHHELD, place_of
from app.domain.markdown_marks import escape_marks
from app.domain.views import Role

_LINE_END = re.compile(r"\r\n|\r|\n")
_ENDINGS = {
    "stopped": "This reply was stopped.",
    "interrupted": "This reply was interrupted.",
    "error": "This reply failed.",
}


def as_markdown(conversation: ConversationDocument) -> str:
    """Renders the whole file."""
    return "\n".join(_lines(conversation)) + "\n"


def _lines(conversation: ConversationDocument) -> Iterator[str]:
    yield f"# {_literal(conversation.title)}"
    yield ""
    yield f"- Started: {_time(conversation.created_at)}"
    yield f"- Last message: {_time(conversation.updated_at)}"
    if conversation.tags:
        yield f"- Tags: {', '.join(map(_literal, conversation.tags))}"
    settings = conversation.settings
    if settings.system_prompt_name is not None:
        yield f"- System prompt: {_literal(settings.system_prompt_name)}"
    elif settings.system_prompt.strip():
        yield from _section("System prompt", settings.system_prompt)
    footnotes: list[SourceDocument] = []
    for message in _shown(conversation):
        content = _with_footnotes(message, footnotes)
        yield from _section(_heading(message), content, message.reasoning, message.tool_uses)
        if message.status in _ENDINGS:
            error = message.turn.error if message.turn is not None else None
            yield ""
            yield f"*{_ENDINGS[message.status]}*{f' {_literal(error)}' if error else ''}"
    for label, source in enumerate(footnotes, start=1):
        yield ""
        place = _literal(place_of(source.title, source.heading))
        yield f"[^{label}]: {place}, version {source.version}: {_literal(source.text or WITHHELD)}"


def _with_footnotes(message: MessageDocument, footnotes: list[SourceDocument]) -> str:
    """Returns a message with its citations as footnotes, which are added to the list."""
    if not message.sources:
        return message.content
    labels: dict[int, str] = {}
    for number in sorted(cited_numbers(message.content)):
        if number <= len(message.sources):
            footnotes.append(message.sources[number - 1])
            labels[number] = str(len(footnotes))
    return with_footnotes(message.content, labels)


def _shown(conversation: ConversationDocument) -> list[MessageDocument]:
    """The path from the first message to the tip."""
    by_id = {message.id: message for message in conversation.messages}
    path: list[MessageDocument] = []
    message = by_id.get(conversation.tip or "")
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or "")
    return path[::-1]


def _heading(message: MessageDocument) -> str:
    if message.role is Role.USER:
        return f"You, {_time(message.created_at)}"
    model = f" by {_literal(message.turn.model)}" if message.turn is not None else ""
    return f"Reply{model}, {_time(message.created_at)}"


def _section(
    heading: str, text: str, reasoning: str | None = None, tool_uses: Sequence[ToolUseDocument] = ()
) -> Iterator[str]:
    yield ""
    yield f"## {heading}"
    yield ""
    if reasoning:
        yield from _folded("Thinking", reasoning)
    for use in tool_uses:
        parts = (_literal(use.name), _code(use.arguments), _code(use.result))
        yield from _folded(f"Tool, {use.status}", "\n\n".join(parts))
    for line in _LINE_END.split(text):
        yield f"> {line}"


def _folded(summary: str, text: str) -> Iterator[str]:
    # A block of HTML ends at a blank line, so that what follows is Markdown again.
    yield f"<details><summary>{summary}</summary>"
    yield ""
    for line in _LINE_END.split(text):
        yield f"> {line}"
    yield ""
    yield "</details>"
    yield ""


def _code(text: str) -> str:
    """A block of code that no text can end: data, which is not read as Markdown."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _literal(text: str) -> str:
    """Escapes a text for one line of Markdown."""
    return escape_marks(" ".join(text.split()))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
