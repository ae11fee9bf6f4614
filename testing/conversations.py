"""Hypothesis strategies for exported conversations, covering every shape that the database may hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime

from hypothesis import strategies as st

from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import ConversationDocument, MessageDocument, SourceDocument, TurnDocument
from app.domain.document_tree import latest_tip
from app.domain.text import one_line
from app.domain.views import Role
from app.transfer.writing import as_document

#: Any text that users may write, except characters that a database refuses.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30) | st.sampled_from(
    [
        "```\nopen",
        "# heading",
        "<!-- never closed",
        "a\r\nb\rc\u2028d",
        '"\\u0000 \\ud800"',
        "x" * 2000,
        "مرحبا 👩‍👩‍👧 ｆｕｌｌ",
    ]
)
_moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
_lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30).map(
    lambda text: one_line(text) or "untitled"
)
_counts = st.none() | st.integers(0, 2**63 - 1)
_measures = st.none() | st.floats(0, 1e300)
_ids = st.uuids().map(str)
_settings = st.builds(
    ChatSettings,
    temperature=st.none() | st.floats(0, 2),
    top_k=st.none() | st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.lists(st.sampled_from(["END", "ß", "\n\n"]), unique=True).map(tuple),
    system_prompt=texts,
)
_sources = st.builds(
    SourceDocument,
    document_id=_ids | st.sampled_from(["", "of another server"]),
    version=st.integers(0, 2**31),
    title=texts,
    heading=texts,
    text=texts,
    start=st.integers(0, 2**31),
    end=st.integers(0, 2**31),
    score=st.floats(allow_nan=False, allow_infinity=False),
)
_endings = st.sampled_from(["complete", "stopped", "interrupted", "error"])


@st.composite
def _turns(draw: st.DrawFn) -> TurnDocument:
    params = draw(_settings)
    return TurnDocument(
        id=draw(_ids),
        status=draw(_endings),
        model=draw(_lines),
        params=params,
        seed=draw(_counts) if params.seed is None else params.seed,
        edited=draw(st.booleans()),
        created_at=draw(_moments),
        ended_at=draw(st.none() | _moments),
        omitted_messages=draw(_counts),
        context_length=draw(_counts),
        finish_reason=draw(st.sampled_from([None, "stop", "length", "abort", "error"])),
        error=draw(st.none() | texts),
        prompt_tokens=draw(_counts),
        cached_prompt_tokens=draw(_counts),
        completion_tokens=draw(_counts),
        ttft_ms=draw(_measures),
        itl_ms=draw(_measures),
        tokens_per_second=draw(_measures),
        tokenize_ms=draw(_measures),
        queue_ms=draw(_measures),
        decode_ms=draw(_measures),
        delivery_ms=draw(_measures),
        draft_tokens=draw(_counts),
        accepted_draft_tokens=draw(_counts),
    )


@st.composite
def _messages(draw: st.DrawFn) -> list[MessageDocument]:
    depths: dict[str, int] = {}
    messages: list[MessageDocument] = []
    for id in draw(st.lists(_ids, max_size=9, unique=True)):
        parent = draw(st.sampled_from([None, *messages]))
        # A reply is followed by a user message, and a user message nearly always by a reply.
        is_reply = parent is not None and parent.role is Role.USER and draw(st.integers(0, 9)) > 0
        depths[id] = 0 if parent is None else depths[parent.id] + 1
        messages.append(
            MessageDocument(
                id=id,
                parent_id=parent.id if parent else None,
                role=Role.ASSISTANT if is_reply else Role.USER,
                status=draw(_endings) if is_reply else "complete",
                content=draw(texts),
                reasoning=draw(st.none() | texts) or None if is_reply else None,
                sources=draw(st.lists(_sources, max_size=2)) if is_reply else [],
                created_at=draw(_moments),
                turn=draw(st.none() | _turns()) if is_reply else None,
            )
        )
    return sorted(messages, key=lambda message: (depths[message.id], message.id))


@st.composite
def _conversations(draw: st.DrawFn) -> ConversationDocument:
    messages = draw(_messages())
    return ConversationDocument(
        id=draw(_ids),
        title=draw(_lines),
        title_by=draw(st.sampled_from(["message", "model", "person"])),
        pinned=draw(st.booleans()),
        archived=draw(st.booleans()),
        tags=draw(st.lists(_lines, max_size=3)),
        settings=draw(_settings),
        imported_from=draw(st.none() | st.uuids().map(lambda id: f"chatgpt:{id}")),
        created_at=draw(_moments),
        updated_at=draw(_moments),
        tip=draw(st.sampled_from([message.id for message in messages])) if messages else latest_tip(messages),
        messages=messages,
    )


#: Lists of conversations in export order.
documents = st.lists(_conversations(), max_size=3, unique_by=lambda conversation: conversation.id).map(
    lambda conversations: sorted(conversations, key=lambda conversation: conversation.id)
)


async def document_bytes(conversations: Iterable[ConversationDocument]) -> bytes:
    """Returns the exported file of these conversations."""

    async def each() -> AsyncIterator[ConversationDocument]:
        for conversation in conversations:
            yield conversation

    return b"".join([piece async for piece in as_document(each())])
