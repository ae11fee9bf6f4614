"""Our own format: conversations as a JSON document, described in docs/export-format.md and by its JSON Schema.

What a class or a field says of itself here is what the schema says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from app.domain.chat_settings import ChatSettings
from app.domain.text import MAX_TITLE_CHARS, one_line
from app.domain.views import Role
from app.errors import InvalidInput

FORMAT = "deskmate.conversations"
VERSION = 1
MAX_TAG_CHARS = 50
_MAX_INTEGER = 2**63 - 1  # of the databases' integers


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("this moment cannot be told in UTC") from error


def _one_line(text: str) -> str:
    line = one_line(text)
    if not line:
        raise ValueError("it is empty")
    return line


def _known_settings(value: Any) -> Any:
    """What another version has beside ours is no reason to refuse a conversation."""
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
Settings = Annotated[
    ChatSettings,
    BeforeValidator(_known_settings),
    AfterValidator(_settings_in_range),
    PlainSerializer(lambda settings: settings.model_dump(mode="json", exclude_defaults=True), when_used="json"),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class TurnDocument(_Part):
    """How a reply was made. A reply that came from another program has what that program told."""

    id: Id
    status: Literal["complete", "stopped", "interrupted", "error"]
    model: str = Field(description="Name of the model.")
    params: Settings = Field(ChatSettings(), description="The conversation's settings at the time.")
    created_at: Moment
    ended_at: Moment | None = None
    omitted_messages: Count | None = Field(
        None, description="Messages at the beginning of the conversation that the model's context had no room for."
    )
    context_length: Count | None = Field(None, description="Most tokens the model could read, its reply included.")
    finish_reason: str | None = Field(
        None, max_length=16, description="Why it ended: stop, stop_string, length, abort, error or deadline."
    )
    error: str | None = Field(None, description="A sentence that says what went wrong.")
    prompt_tokens: Count | None = None
    cached_prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    ttft_ms: Measure | None = Field(None, description="Milliseconds to the first token.")
    itl_ms: Measure | None = Field(None, description="Milliseconds from one later token to the next, on average.")
    tokens_per_second: Measure | None = None


class MessageDocument(_Part):
    """A message. Those without a parent begin the conversation; those with the same parent are versions."""

    id: Id = Field(description="A UUID. Among versions the greatest is the latest.")
    parent_id: Id | None = Field(None, description="The message before it: a reply's question, a question's reply.")
    role: Role
    status: Literal["complete", "stopped", "interrupted", "error"] = Field(
        "complete", description="stopped by the person, interrupted by the server's end, or failed with an error."
    )
    content: str = Field(description="The text, as it was written.")
    created_at: Moment
    turn: TurnDocument | None = Field(None, description="Of a reply: how it was made.")


class ConversationDocument(_Part):
    """A conversation with every version of every message."""

    id: Id
    title: Annotated[str, AfterValidator(_one_line)] = Field(max_length=MAX_TITLE_CHARS)
    title_by: Literal["message", "model", "person"] = Field(
        "message", description="Whose title it is: the first message's words, the model's, or the person's."
    )
    pinned: bool = False
    archived: bool = False
    tags: Annotated[list[Tag], AfterValidator(_sorted)] = []
    settings: Settings = ChatSettings()
    imported_from: str | None = Field(
        None, max_length=200, description="The program it was imported from, and its id there."
    )
    created_at: Moment
    updated_at: Moment = Field(description="When the last message was sent.")
    tip: Id | None = Field(None, description="The last message of the branch that is shown.")
    messages: list[MessageDocument] = Field(description="Every message after the one it follows.")


class Document(_Part):
    """A file of conversations."""

    format: Literal["deskmate.conversations"]
    version: Literal[1]
    conversations: list[ConversationDocument]


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}


def document_start() -> str:
    """What a document has before its first conversation."""
    return f'{{"format":"{FORMAT}","version":{VERSION},"conversations":['


def document_end() -> str:
    """What it has after the last one."""
    return "\n]}\n"


def conversation_text(conversation: ConversationDocument, *, first: bool) -> Iterator[str]:
    """A conversation as it stands in a document: a line for what it is, and one for each message."""
    head = conversation.model_dump_json(exclude={"messages"}, exclude_none=True)
    yield f'{"" if first else ","}\n{head[:-1]},"messages":['
    for index, message in enumerate(conversation.messages):
        yield f"{',' if index else ''}\n{message.model_dump_json(exclude_none=True)}"
    yield "\n]}"
