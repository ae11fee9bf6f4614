"""Drafts of replies to customers: written from a customer's message, notes and sources, beside the conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from app.domain.chat_settings import ChatSettings
from app.domain.citations import as_citations, citations_of
from app.domain.knowledge import Citation, Passage
from app.domain.model_size import parameters_text
from app.domain.reply_drafts import DraftChange, DraftUse
from app.domain.templates import TemplateKind
from app.domain.text import clean_text
from app.errors import EngineUnavailable, InvalidInput
from app.settings import AppSettings
from app.store.chat.reply_drafts import DraftRecords
from app.templates.catalog import Templates
from app.turns.engine_requests import EngineRequests
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.written_replies import NOTHING_FOUND
from engine import ChatMessage, ChatOptions, Delta, FinishReason, PreparedPrompt

REPLY_WRITER = "reply-writer"
"""The prompt of a chat that has none of its own."""
PASSAGES_ONLY = "Load a larger one, or write the reply from the passages below, which match the message best."
MODEL_TOO_SMALL = f"This model is too small to write a reply from documents. {PASSAGES_ONLY}"
CUT_OFF = "The draft reached the maximum length of a reply. Ask for a shorter one, or raise it in the settings."

_REQUESTS = {
    DraftChange.SHORTER: "Write this reply again, half as long. Keep what matters and its sources' numbers.",
    DraftChange.FRIENDLIER: "Write this reply again, in a warmer tone. Change no facts, and keep its sources' numbers.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """What a draft is written from."""

    text: str  #: the customer's message
    notes: str = ""  #: of the agent
    draft: str = ""  #: the draft as it is now, to be changed
    change: DraftChange | None = None  #: None writes a new draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft. It is stored, beside the conversation's messages, unless the model had nothing to write it from."""

    id: str | None  #: None if it is not stored
    text: str  #: empty if there is nothing to write it from
    citations: tuple[Citation, ...] = ()  #: without a text: the passages that were found
    notice: str | None = None  #: a sentence for the agent: why there is none, or that it is cut off


@dataclass(frozen=True, slots=True)
class DraftStarted:
    """The draft is stored, and its text follows."""

    id: str
    sources: tuple[Citation, ...]  #: what it may cite


@dataclass(frozen=True, slots=True)
class DraftText:
    """More of a draft's text."""

    text: str


@dataclass(frozen=True, slots=True)
class DraftEnd:
    """The whole draft. The last event."""

    draft: Draft


DraftEvent = DraftStarted | DraftText | DraftEnd


class Drafts:
    """Writes drafts with the model, in the conversations of one database."""

    def __init__(
        self,
        settings: AppSettings,
        requests: EngineRequests,
        templates: Templates,
        sources: Sources,
        records: DraftRecords,
        storage: StorageQuota,
    ) -> None:
        self._settings = settings
        self._engine = requests.engine
        self._requests = requests
        self._templates = templates
        self._sources = sources
        self._records = records
        self._storage = storage

    async def write(
        self, user_id: str, conversation_id: str, settings: ChatSettings, request: DraftRequest
    ) -> AsyncGenerator[DraftEvent]:
        """Writes a draft with the settings of a chat: its prompt, its sampling, its collections.

        The text so far is stored if the generator is closed before its end. What is refused is refused before the
        first event.

        Raises:
            InvalidInput: the customer's message is empty, or there is no draft to change.
            NotFound: the conversation or a collection is missing, or the user may not use it.
            ContextTooLong: the model cannot read that much.
            TooManyRequests: the user has reached a limit on replies.
            LimitReached: the user or the conversation is at its storage limit.
            Overloaded, EngineUnavailable: the engine takes no request, or failed.
        """
        message, notes, before = (clean_text(text).strip() for text in (request.text, request.notes, request.draft))
        if not message:
            raise InvalidInput("There is no customer's message to reply to. Paste it first.")
        if request.change is not None and not before:
            raise InvalidInput("There is no draft to change. Write one first.")
        limit = self._settings.max_message_chars
        if len(message) + len(notes) + len(before) > limit:
            raise InvalidInput(f"The message, the notes and the draft have more than {limit:,} characters.")
        await self._storage.check(user_id, conversation_id)
        sources = await self._sources.find(user_id, settings.collections, message)
        if settings.collections and not sources:
            yield DraftEnd(Draft(id=None, text="", notice=NOTHING_FOUND))
            return
        if (notice := await self._too_small(settings, with_sources=bool(sources))) is not None:
            yield DraftEnd(Draft(id=None, text="", citations=as_citations(sources, listed=True), notice=notice))
            return
        asked = f"The customer's message:\n\n{message}" + (f"\n\nNotes of a colleague:\n\n{notes}" if notes else "")
        messages = [ChatMessage(role="user", content=self._sources.prompt.with_sources(sources, asked))]
        if request.change is not None:
            messages.append(ChatMessage(role="assistant", content=before))
            messages.append(ChatMessage(role="user", content=_REQUESTS[request.change]))
        if system_prompt := await self._system_prompt(settings):
            messages.insert(0, ChatMessage(role="system", content=system_prompt))
        prepared = await self._prepare(user_id, settings, messages, len(sources))
        async with aclosing(self._requests.stream(user_id, prepared)) as deltas:
            # The engine raises refusals instead of the first delta: before that, there is no draft to store.
            first = await anext(deltas, None)
            draft_id = await self._records.add(
                user_id,
                conversation_id,
                message=message,
                change=request.change,
                model=self._engine.info.name,
                sources=sources,
            )
            async with aclosing(self._stored(user_id, draft_id, sources, first, deltas)) as events:
                async for event in events:
                    yield event

    async def use(self, user_id: str, conversation_id: str, draft_id: str, text: str, used_as: DraftUse) -> None:
        """Keeps what a user made of a draft, for a review.

        Raises:
            InvalidInput: the text is empty or too long.
            NotFound: the conversation has no such draft, or is another user's.
        """
        limit = self._settings.max_message_chars
        final = clean_text(text).strip()
        if not final:
            raise InvalidInput("The draft is empty. Write something first.")
        if len(final) > limit:
            raise InvalidInput(f"The draft has {len(final):,} characters; at most {limit:,} fit.")
        await self._storage.check(user_id, conversation_id)
        await self._records.use(user_id, conversation_id, draft_id, final, used_as)

    async def _stored(
        self,
        user_id: str,
        draft_id: str,
        sources: tuple[Passage, ...],
        first: Delta | None,
        deltas: AsyncIterator[Delta],
    ) -> AsyncGenerator[DraftEvent]:
        """Yields a draft's events, and stores its text at the end, also at an early one."""
        parts: list[str] = []
        end: FinishReason | None = None
        try:
            yield DraftStarted(draft_id, as_citations(sources))
            delta = first
            while delta is not None:
                if text := clean_text(delta.text):
                    parts.append(text)
                    yield DraftText(text)
                end = delta.finish_reason or end
                delta = await anext(deltas, None)
        finally:
            text = "".join(parts).strip()
            await self._records.finish(user_id, draft_id, text)
        if end not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineUnavailable("The model was interrupted while it wrote the draft. Try again.")
        notice = CUT_OFF if end is FinishReason.LENGTH else None
        yield DraftEnd(Draft(id=draft_id, text=text, citations=citations_of(text, sources), notice=notice))

    async def _too_small(self, settings: ChatSettings, *, with_sources: bool) -> str | None:
        """Returns what the agent is told if the model is too small for the prompt, or for sources."""
        if with_sources and self._sources.is_model_too_small:
            return MODEL_TOO_SMALL
        info = self._engine.info
        prompt = None if settings.system_prompt.strip() else await self._templates.prompt(_prompt_name(settings))
        needed = prompt.min_parameters if prompt is not None else None
        if prompt is None or needed is None or not 0 < info.num_parameters < needed:
            return None
        return (
            f"The model {info.name} is too small for the prompt “{prompt.title}”: it has "
            f"{parameters_text(info.num_parameters)} parameters, and the prompt needs {parameters_text(needed)}. "
        ) + (PASSAGES_ONLY if with_sources else "Load a larger one, or write the reply yourself.")

    async def _system_prompt(self, settings: ChatSettings) -> str:
        if settings.system_prompt.strip():
            return clean_text(settings.system_prompt)
        given = settings.system_prompt_variables if settings.system_prompt_name is not None else None
        return await self._templates.render(TemplateKind.PROMPT, _prompt_name(settings), given)

    async def _prepare(
        self, user_id: str, settings: ChatSettings, messages: list[ChatMessage], num_sources: int
    ) -> PreparedPrompt:
        params = settings.sampling_params().replace_valid(structured=self._sources.form(num_sources))
        options = ChatOptions(adapter=settings.adapter or None)
        if self._engine.info.can_think:
            options = settings.chat_options()
        subject, advice = "With its sources, this message is", "Shorten it, or use fewer collections"
        return await self._requests.prepare(user_id, messages, params, options, subject=subject, advice=advice)


def _prompt_name(settings: ChatSettings) -> str:
    return settings.system_prompt_name or REPLY_WRITER
