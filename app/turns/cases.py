"""A conversation as a case, and any case as a model is shown it: its messages, numbered, within its context."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from app.domain.citations import without_citations
from app.domain.text import clean_text
from app.domain.views import ConversationView, MessageStatus, Role
from app.errors import EngineUnavailable, InvalidInput
from app.turns.engine_requests import EngineRequests, count_tokens
from engine import ChatMessage, ChatOptions, FinishReason, SamplingParams

MAX_MESSAGES = 300
"""The latest messages of a longer conversation are its case."""
_PAGE = 100
_MAX_MESSAGE_SHARE = 4  # one message takes at most a quarter of what all may
_DELIMITER = re.compile(r"<(?=[\s/\u200b-\u200f\u2060\ufeff]*(?:message|case)\b)", re.IGNORECASE)

Count = Callable[[str], Awaitable[int]]
"""Counts the tokens of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseMessage:
    """A message of a case. Its number is that in the prompt."""

    number: int
    message_id: str
    role: Role
    text: str
    internal: bool = False  #: a note, which the customer does not see


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The messages of a case that have text, oldest first."""

    title: str
    messages: tuple[CaseMessage, ...]
    left_out: int = 0  #: messages between the first and the others that did not fit
    has_earlier: bool = False  #: there are still older messages, which were not read


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Read = TypeVar("Read", bound=_Identified, covariant=True)


class Page(Protocol[Read]):
    """Some messages, oldest first, and whether there are earlier ones."""

    @property
    def messages(self) -> Sequence[Read]: ...
    @property
    def has_earlier(self) -> bool: ...


async def read_latest(
    newest: Page[Read], read_above: Callable[[str], Awaitable[Page[Read]]]
) -> tuple[list[Read], bool]:
    """The latest messages, at least :data:`MAX_MESSAGES` if there are as many, and whether there are earlier ones.

    Args:
        newest: the page of the newest messages.
        read_above: reads the page above a message, by its id.
    """
    found, has_earlier = [*newest.messages], newest.has_earlier
    while has_earlier and len(found) < MAX_MESSAGES:
        page = await read_above(found[0].id)
        found = [*page.messages, *found]
        has_earlier = page.has_earlier and bool(page.messages)
    return found, has_earlier


class ConversationReader(Protocol):
    async def get(
        self, user_id: str, conversation_id: str, *, limit: int = 100, before: str | None = None
    ) -> ConversationView: ...


async def read_case(conversations: ConversationReader, user_id: str, conversation_id: str) -> Case:
    """Reads the branch of a conversation that is shown.

    Raises:
        NotFound: the conversation is missing or another user's.
        InvalidInput: it has no message with text.
    """
    view = await conversations.get(user_id, conversation_id, limit=_PAGE)
    found, has_earlier = await read_latest(
        view, lambda before: conversations.get(user_id, conversation_id, limit=_PAGE, before=before)
    )
    told = [one for one in found if one.content.strip() and one.status is not MessageStatus.STREAMING]
    if not told:
        raise InvalidInput("This conversation has no messages yet.")
    messages = tuple(
        CaseMessage(number=number, message_id=one.id, role=one.role, text=without_citations(one.content, one.citations))
        for number, one in enumerate(told, start=1)
    )
    return Case(title=view.title, messages=messages, has_earlier=has_earlier)


async def fit_case(case: Case, budget: int, count: Count) -> Case:
    """Returns the case with the first message and as many of the latest as ``budget`` tokens hold, numbered anew.

    Of a message that takes more than a quarter of them, the beginning and the end are kept.
    """
    shown: list[CaseMessage] = []
    left = budget
    first, *others = case.messages
    for message in (first, *reversed(others)):
        text = await _cut(message.text, max(budget // _MAX_MESSAGE_SHARE, 1), count)
        cut = replace(message, text=text)
        left -= await count(_show(cut))
        if left < 0 and len(shown) > 1:
            break
        shown.append(cut)
    kept = (shown[0], *reversed(shown[1:]))
    numbered = tuple(replace(one, number=number) for number, one in enumerate(kept, start=1))
    return Case(
        title=case.title,
        messages=numbered,
        left_out=len(case.messages) - len(numbered),
        has_earlier=case.has_earlier,
    )


def show_case(case: Case) -> str:
    """The case in its delimiters, which no message can open or close."""
    parts = [_show(message) for message in case.messages]
    return "\n".join(["<case>", *parts, "</case>"])


def _show(message: CaseMessage) -> str:
    author = "note" if message.internal else "user" if message.role is Role.USER else "reply"
    return f'<message number="{message.number}" from="{author}">\n{_DELIMITER.sub("&lt;", message.text)}\n</message>'


async def _cut(text: str, tokens: int, count: Count) -> str:
    while (taken := await count(text)) > tokens and len(text) > 20:
        half = max(len(text) * tokens // (2 * taken) - 4, 5)
        text = f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
    return text


class CaseModel:
    """Asks the model about a case."""

    def __init__(self, requests: EngineRequests) -> None:
        self._requests = requests

    @property
    def budget(self) -> int:
        """Tokens that a case may take: half the context, as the rest is for the request and the answer."""
        return self._requests.engine.info.max_model_len // 2

    async def count(self, text: str) -> int:
        return await count_tokens(self._requests.engine, text)

    async def write(self, user_id: str, messages: Sequence[ChatMessage], params: SamplingParams) -> tuple[str, bool]:
        """Returns the model's answer, and whether it was cut off at its maximum length.

        Raises:
            ContextTooLong: the model cannot read that much.
            TooManyRequests: the user has reached a limit on replies.
            Overloaded, EngineUnavailable: the engine takes no request, or failed.
        """
        options = ChatOptions(thinking=False) if self._requests.engine.info.can_think else None
        parts: list[str] = []
        end: FinishReason | None = None
        subject, advice = "With its prompt, this case is", "Shorten the prompt, or load a model that reads more"
        prepared = await self._requests.prepare(user_id, messages, params, options, subject=subject, advice=advice)
        async with aclosing(self._requests.stream(user_id, prepared)) as deltas:
            async for delta in deltas:
                parts.append(clean_text(delta.text))
                end = delta.finish_reason or end
        if end not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineUnavailable("The model was interrupted while it wrote. Try again.")
        return "".join(parts).strip(), end is FinishReason.LENGTH
