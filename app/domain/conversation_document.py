"""Deskmate's export format: a JSON document, described in docs/export-format.md and by its JSON Schema.

Docstrings and field descriptions in this module become the schema's descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from app.domain.chat_settings import ChatSettings
from app.domain.citations import cited_numbers
from app.domain.folders import MAX_FOLDER_NAME_CHARS
from app.domain.reply_drafts import DraftChange, DraftUse
from app.domain.text import MAX_TITLE_CHARS, one_line
from app.domain.views import Role
from app.errors import InvalidInput

FORMAT = "deskmate.conversations"
VERSION = 1
MAX_TAG_CHARS = 50
MAX_TOOL_USES, MAX_TOOL_ID_CHARS = 1000, 200
MAX_SOURCES, MAX_SOURCE_ID_CHARS = 999, 100
MAX_DRAFTS = 10_000
_MAX_INTEGER = 2**63 - 1  # the databases' largest integer


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("this time cannot be expressed in UTC") from error


def _one_line(text: str) -> str:
    line = one_line(text)
    if not line:
        raise ValueError("it is empty")
    return line


def _known_settings(value: Any) -> Any:
    """Drops settings of other versions: they are no reason to refuse a conversation."""
    return {k: v for k, v in value.items() if k in ChatSettings.model_fields} if isinstance(value, dict) else value


def _settings_in_range(settings: ChatSettings) -> ChatSettings:
    try:
        settings.sampling_params()
    except InvalidInput as error:
        raise ValueError(error.message) from error
    return settings


def _sorted(tags: list[str]) -> list[str]:
    return sorted(set(tags))


Id = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="A UUID, lower case.")]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Count = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Tag = Annotated[str, AfterValidator(_one_line), Field(max_length=MAX_TAG_CHARS)]
FolderName = Annotated[str, AfterValidator(_one_line), Field(max_length=MAX_FOLDER_NAME_CHARS)]
Settings = Annotated[
    ChatSettings,
    BeforeValidator(_known_settings),
    AfterValidator(_settings_in_range),
    PlainSerializer(lambda settings: settings.model_dump(mode="json", exclude_defaults=True), when_used="json"),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class TurnDocument(_Part):
    """How a reply was generated. An imported reply has what the other program recorded."""

    id: Id
    status: Literal["complete", "stopped", "interrupted", "error"]
    model: str = Field(description="Name of the model.")
    params: Settings = Field(ChatSettings(), description="The conversation's settings at the time.")
    seed: int | None = Field(
        None,
        ge=-_MAX_INTEGER,
        le=_MAX_INTEGER,
        description="The seed, of the settings or drawn for this reply. Null: not known.",
    )
    edited: bool = Field(False, description="The user has written the beginning of the reply.")
    created_at: Moment
    ended_at: Moment | None = None
    omitted_messages: Count | None = Field(None, description="Oldest messages that did not fit the model's context.")
    context_length: Count | None = Field(None, description="The model's context length in tokens.")
    finish_reason: str | None = Field(
        None,
        max_length=16,
        description="Why the reply ended: stop, stop_string, length, abort, error, deadline or tool_calls.",
    )
    error: str | None = Field(None, description="The error as one sentence.")
    prompt_tokens: Count | None = None
    cached_prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    ttft_ms: Measure | None = Field(None, description="Milliseconds to the first token.")
    itl_ms: Measure | None = Field(None, description="Milliseconds from one later token to the next, on average.")
    tokens_per_second: Measure | None = None
    tokenize_ms: Measure | None = Field(None, description="Milliseconds to render and tokenize the prompt.")
    queue_ms: Measure | None = Field(None, description="Milliseconds until the first step; part of ttft_ms.")
    decode_ms: Measure | None = Field(
        None, description="Milliseconds from the first token to the last, in each round of tools."
    )
    delivery_ms: Measure | None = Field(None, description="Milliseconds from sampling the last tokens to their text.")
    draft_tokens: Count | None = Field(None, description="Tokens guessed by speculative decoding and verified.")
    accepted_draft_tokens: Count | None = None


class ToolUseDocument(_Part):
    """A call of a tool in a reply."""

    id: str = Field(max_length=MAX_TOOL_ID_CHARS)
    name: str = Field(max_length=MAX_TOOL_ID_CHARS)
    arguments: str = Field(description="JSON text.")
    round: Count = Field(0, description="Calls that the model made together have the same number.")
    at: Count = Field(0, description="Characters of the content before the call.")
    reasoning_at: Count = Field(0, description="The same of the reasoning.")
    status: Literal["done", "failed", "denied"]
    result: str = ""
    seconds: Measure | None = Field(None, description="How long it ran.")


class SourceDocument(_Part):
    """A passage of a document, which a reply cites by its place in the list: [1] is the first.

    Without a text, it only keeps its place: the reply does not cite it, or the user may not read it any more.
    """

    document_id: str = Field(max_length=MAX_SOURCE_ID_CHARS)
    version: Count
    title: str
    heading: str = Field("", description='The headings above it, outermost first, joined by " > ".')
    text: str
    start: Count = Field(description="Characters of the version's text before it.")
    end: Count
    score: float = Field(0.0, allow_inf_nan=False, description="How well it matched.")


def _source_texts(sources: Sequence[SourceDocument]) -> Iterator[tuple[str, str]]:
    for index, source in enumerate(sources):
        yield f"sources[{index}].title", source.title
        yield f"sources[{index}].heading", source.heading
        yield f"sources[{index}].text", source.text


def _readable_sources(
    sources: list[SourceDocument], texts: Sequence[str], closed: Collection[str]
) -> list[SourceDocument]:
    """Returns the sources that one of the texts cites, at their places: none of the others' words leave the server.

    Args:
        closed: ids of documents that the user may not read. Of these, the titles stay.
    """
    cited = set[int]().union(*map(cited_numbers, texts))
    return [
        _readable(source, is_cited=number in cited, is_closed=source.document_id in closed)
        for number, source in enumerate(sources[: max(cited, default=0)], start=1)
    ]


def _readable(source: SourceDocument, *, is_cited: bool, is_closed: bool) -> SourceDocument:
    if not is_cited:
        return source.model_copy(update={"title": "", "heading": "", "text": ""})
    return source.model_copy(update={"heading": "", "text": ""}) if is_closed else source


class MessageDocument(_Part):
    """A message. Messages without a parent begin the conversation; messages with the same parent are versions."""

    id: Id = Field(description="A UUID. The greatest of several versions is the latest.")
    parent_id: Id | None = Field(None, description="The message before it: a reply's question, a question's reply.")
    role: Role
    status: Literal["complete", "stopped", "interrupted", "error"] = Field(
        "complete", description="stopped by the user, interrupted by the server's end, or failed with an error."
    )
    content: str = Field(description="The text, verbatim.")
    reasoning: str | None = Field(None, description="For a reply: what the model thought before it answered.")
    reasoning_seconds: Measure | None = Field(None, description="How long it thought.")
    tool_uses: list[ToolUseDocument] = Field(
        [],
        max_length=MAX_TOOL_USES,
        description="For a reply: its calls of tools, in the order in which they were made.",
    )
    sources: list[SourceDocument] = Field(
        [],
        max_length=MAX_SOURCES,
        description="For a reply: the passages that it cites, in the order of their numbers.",
    )
    created_at: Moment
    turn: TurnDocument | None = Field(None, description="For a reply: how it was generated.")

    @property
    def chars(self) -> int:
        """Characters of all its texts."""
        return sum(len(text) for _, text in self.texts())

    def texts(self) -> Iterator[tuple[str, str]]:
        """Its long texts, each with the name of its field."""
        yield "content", self.content
        yield "reasoning", self.reasoning or ""
        for index, use in enumerate(self.tool_uses):
            yield f"tool_uses[{index}].arguments", use.arguments
            yield f"tool_uses[{index}].result", use.result
        yield from _source_texts(self.sources)


class DraftDocument(_Part):
    """A draft of a reply to a customer, beside the conversation's messages."""

    id: Id
    message: str = Field(description="The customer's message.")
    change: DraftChange | None = Field(None, description="How an earlier draft was changed; null: it is a new one.")
    model: str = Field(description="Name of the model.")
    text: str = Field(description="What the model wrote.")
    sources: list[SourceDocument] = Field(
        [], max_length=MAX_SOURCES, description="The passages that it cites, in the order of their numbers."
    )
    final_text: str | None = Field(None, description="What the user made of it; null if it was not used.")
    used_as: DraftUse | None = None
    used_at: Moment | None = None
    created_at: Moment

    @model_validator(mode="after")
    def _is_used_or_not(self) -> DraftDocument:
        if len({self.final_text is None, self.used_as is None, self.used_at is None}) > 1:
            raise ValueError("final_text, used_as and used_at belong together")
        return self

    def texts(self) -> Iterator[tuple[str, str]]:
        """Its long texts, each with the name of its field."""
        yield "message", self.message
        yield "text", self.text
        yield "final_text", self.final_text or ""
        yield from _source_texts(self.sources)


class ConversationDocument(_Part):
    """A conversation with every version of every message."""

    id: Id
    title: Annotated[str, AfterValidator(_one_line)] = Field(max_length=MAX_TITLE_CHARS)
    title_by: Literal["message", "model", "person"] = Field(
        "message", description="Origin of the title: the first message's words, the model, or the user."
    )
    pinned: bool = False
    archived: bool = False
    tags: Annotated[list[Tag], AfterValidator(_sorted)] = []
    folder: FolderName | None = Field(None, description="Name of its folder; null: it is in none.")
    settings: Settings = ChatSettings()
    imported_from: str | None = Field(
        None, max_length=200, description="The program it was imported from, and its id there."
    )
    created_at: Moment
    updated_at: Moment = Field(description="When the last message was sent.")
    tip: Id | None = Field(None, description="The last message of the branch that is shown.")
    drafts: list[DraftDocument] = Field(
        [], max_length=MAX_DRAFTS, description="Drafts of replies to customers, oldest first."
    )
    messages: list[MessageDocument] = Field(description="All messages; each comes after its parent.")

    def source_documents(self) -> Iterator[str]:
        """The ids of the documents that replies and drafts were given passages of."""
        for message in self.messages:
            yield from (source.document_id for source in message.sources)
        for draft in self.drafts:
            yield from (source.document_id for source in draft.sources)

    def with_readable_sources(self, closed: Collection[str]) -> ConversationDocument:
        """The conversation as its user may take it along.

        Args:
            closed: ids of documents that the user may not read.
        """
        messages = [
            one.model_copy(update={"sources": _readable_sources(one.sources, [one.content], closed)})
            if one.sources
            else one
            for one in self.messages
        ]
        drafts = [
            one.model_copy(update={"sources": _readable_sources(one.sources, [one.text, one.final_text or ""], closed)})
            if one.sources
            else one
            for one in self.drafts
        ]
        return self.model_copy(update={"messages": messages, "drafts": drafts})


class ResponseDocument(_Part):
    """A response that a program stored through /v1/responses. It is exported only: an import leaves it out."""

    input: list[dict[str, Any]] = Field(description="Its own input items, as OpenAI's API has them.")
    response: dict[str, Any] = Field(description="The response as it was sent.")


class Document(_Part):
    """A file of conversations."""

    format: Literal["deskmate.conversations"]
    version: Literal[1]
    conversations: list[ConversationDocument]
    responses: list[ResponseDocument] = Field([], description="Only in an export of everything.")


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}


def document_start() -> str:
    """The text of a document before its first conversation."""
    return f'{{"format":"{FORMAT}","version":{VERSION},"conversations":['


def response_text(response: ResponseDocument, *, first: bool) -> str:
    """A stored response's text in a document: one line. All responses come after the last conversation."""
    before = '\n],"responses":[' if first else ","
    return f"{before}\n{json.dumps(response.model_dump(), ensure_ascii=False, separators=(',', ':'))}"


def document_end() -> str:
    """The text of a document after its last conversation or response."""
    return "\n]}\n"


def conversation_text(conversation: ConversationDocument, *, first: bool) -> Iterator[str]:
    """A conversation's text in a document: one line for its fields, then one line per message."""
    head = conversation.model_dump_json(exclude={"messages"}, exclude_none=True)
    yield f'{"" if first else ","}\n{head[:-1]},"messages":['
    for index, message in enumerate(conversation.messages):
        yield f"{',' if index else ''}\n{message.model_dump_json(exclude_none=True)}"
    yield "\n]}"
