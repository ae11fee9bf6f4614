"""The value of the chat component: a list of messages."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.ui.components.values import validate_items


class MessageStats(TypedDict):
    """Statistics shown under a reply."""

    prompt_tokens: int
    cached_prompt_tokens: NotRequired[int | None]  #: None: unknown
    completion_tokens: int
    ttft_ms: NotRequired[float]  #: time to the first token, in ms
    tokens_per_second: NotRequired[float]
    tokenize_ms: NotRequired[float | None]  #: how long the phases took; None: unknown
    queue_ms: NotRequired[float | None]
    decode_ms: NotRequired[float | None]
    delivery_ms: NotRequired[float | None]
    draft_tokens: NotRequired[int | None]  #: guessed by speculative decoding
    accepted_draft_tokens: NotRequired[int | None]
    itl_ms: NotRequired[float]  #: between two tokens, in ms
    finish_reason: NotRequired[str]  #: stop, stop_string, length, abort, error, deadline or tool_calls


class MessageToolUse(TypedDict):
    """A call of a tool in a reply, shown as a card where the text stood."""

    id: str
    name: str
    arguments: str  #: JSON
    status: Literal["waiting", "allowed", "done", "failed", "denied"]
    result: NotRequired[str]  #: plain text
    round: NotRequired[int]  #: calls that the model made together have the same number
    at: NotRequired[int]  #: characters of the content before the call, in code points
    seconds: NotRequired[float | None]  #: how long it ran


class MessageFeedback(TypedDict):
    """A user's feedback on a reply."""

    rating: Literal["up", "down"]
    reasons: NotRequired[list[str]]
    comment: NotRequired[str]


@with_config({"extra": "allow"})  # the server's have more
class MessageCitation(TypedDict):
    """A passage that a reply cites."""

    number: int  #: as in the text, from 1
    title: str  #: of the document
    heading: str  #: the headings above it, joined by " > "; may be empty
    text: str
    withheld: NotRequired[str | None]  #: why the text is empty
    listed: NotRequired[bool]  #: the reply only lists it as found, so that it is shown open


class MessageDifference(TypedDict):
    """A setting in which a version of a reply differs from another."""

    name: str
    value: str | float | bool | None  #: None: the model's default
    other: str | float | bool | None


def _as_text(content: object) -> object:
    """Joins the text parts of the content that ``gr.Chatbot`` passes to listeners."""
    if not isinstance(content, list):
        return content
    if any(
        not isinstance(part, str) and (not isinstance(part, dict) or part.get("type") != "text") for part in content
    ):
        raise ValueError("The chat shows text only, no files or components")
    return "\n\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


@with_config({"extra": "allow"})  # an application may keep keys of its own with a message
class Message(TypedDict):
    """A message of the chat: as in ``gr.Chatbot``, with optional keys for what else the chat can show."""

    role: Literal["user", "assistant", "system"]  #: a system message is not shown
    content: Annotated[str, BeforeValidator(_as_text)]  #: plain text of a user, Markdown of an assistant
    #: Identifies the message in events; unique. Elements of messages with an id move with them in the list.
    id: NotRequired[str]
    #: Of a reply. "streaming": more text follows, so no actions are offered yet. Default: "complete"; of a last reply
    #: without text, "streaming".
    status: NotRequired[Literal["streaming", "complete", "stopped", "interrupted", "error"]]
    error: NotRequired[str | None]  #: why the reply failed or was interrupted
    reasoning: NotRequired[str]  #: Markdown: what the model thought before it answered; shown folded
    reasoning_seconds: NotRequired[float | None]  #: how long it thought
    tool_uses: NotRequired[list[MessageToolUse]]
    citations: NotRequired[list[MessageCitation]]  #: the passages that a reply cites, shown below it
    stats: NotRequired[MessageStats | None]
    siblings: NotRequired[list[str]]  #: ids of all versions of this message, its own included, oldest first
    feedback: NotRequired[MessageFeedback | None]
    omitted_messages: NotRequired[int]  #: how many earlier messages the model did not get, because they did not fit
    context_length: NotRequired[int | None]  #: of the model, in tokens
    model: NotRequired[str | None]  #: name of the model that wrote the reply
    has_system_prompt: NotRequired[bool]
    seed: NotRequired[int | None]  #: that the reply was written with
    edited: NotRequired[bool]  #: the user has written the beginning of the reply
    differences: NotRequired[list[MessageDifference]]  #: settings in which it differs from the version beside it


def _as_dict(message: object) -> object:
    """Takes a ``gr.ChatMessage`` as well."""
    return asdict(message) if is_dataclass(message) and not isinstance(message, type) else message


_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Annotated[Message, BeforeValidator(_as_dict)]])

#: JSON schema of the value.
MESSAGES_SCHEMA: dict[str, Any] = _MESSAGES.json_schema()


def validate_messages(value: object) -> list[Message]:
    """Returns ``value`` as messages; None is an empty chat.

    Raises:
        ValueError: ``value`` is no list of messages; says which message and key is wrong.
    """
    if value is None or value == "":  # Gradio's front end sends "" for a component without a value
        return []
    return validate_items(_MESSAGES, value, whole="The value of a chat", item="Message {} of the chat", key="id")
