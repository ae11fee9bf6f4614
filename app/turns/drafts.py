"""Drafts of replies to customers: written from a customer's message, notes and sources, and part of no conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from app.domain.chat_settings import ChatSettings
from app.domain.citations import citations_of
from app.domain.knowledge import Citation
from app.domain.templates import TemplateKind
from app.domain.text import clean_text
from app.errors import EngineUnavailable, InvalidInput
from app.settings import AppSettings
from app.templates.catalog import Templates
from app.turns.admission import Admission, caller_of
from app.turns.engine_errors import as_app_error, context_too_long
from app.turns.sources import Sources
from app.turns.written_replies import NOTHING_FOUND
from engine import ChatEngine, ChatMessage, ChatOptions, ContextLengthError, Delta, EngineError, FinishReason

REPLY_WRITER = "reply-writer"
"""The prompt of a chat that has none of its own."""
MODEL_TOO_SMALL = (
    "This model is too small to write a reply from documents. Load a larger one, or write the reply from the passages "
    "that the search finds."
)
CUT_OFF = "The draft reached the maximum length of a reply. Ask for a shorter one, or raise it in the settings."


class DraftChange(StrEnum):
    """How a draft is written again."""

    SHORTER = "shorter"
    FRIENDLIER = "friendlier"


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
    """A draft. Nothing of it is saved."""

    text: str  #: empty if there is nothing to write it from
    citations: tuple[Citation, ...] = ()
    notice: str | None = None  #: a sentence for the agent: why there is none, or that it is cut off


class Drafts:
    """Writes drafts with the model."""

    def __init__(
        self, settings: AppSettings, engine: ChatEngine, templates: Templates, sources: Sources, admission: Admission
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._templates = templates
        self._sources = sources
        self._admission = admission

    async def write(self, user_id: str, settings: ChatSettings, request: DraftRequest) -> Draft:
        """Writes a draft with the settings of a chat: its prompt, its sampling, its collections.

        Raises:
            InvalidInput: the customer's message is empty, or there is no draft to change.
            NotFound: a collection is missing, or the user may not use it.
            ContextTooLong: the model cannot read that much.
            TooManyRequests: the user has reached a limit on replies.
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
        sources = await self._sources.find(user_id, settings.collections, message)
        if settings.collections and not sources:
            return Draft(text="", notice=NOTHING_FOUND)
        if sources and self._sources.is_model_too_small:
            return Draft(text="", notice=MODEL_TOO_SMALL)
        asked = f"The customer's message:\n\n{message}" + (f"\n\nNotes of a colleague:\n\n{notes}" if notes else "")
        messages = [ChatMessage(role="user", content=self._sources.prompt.with_sources(sources, asked))]
        if request.change is not None:
            messages.append(ChatMessage(role="assistant", content=before))
            messages.append(ChatMessage(role="user", content=_REQUESTS[request.change]))
        if system_prompt := await self._system_prompt(settings):
            messages.insert(0, ChatMessage(role="system", content=system_prompt))
        text, is_cut_off = await self._generate(user_id, settings, messages, len(sources))
        return Draft(text=text, citations=citations_of(text, sources), notice=CUT_OFF if is_cut_off else None)

    async def _system_prompt(self, settings: ChatSettings) -> str:
        if settings.system_prompt.strip():
            return clean_text(settings.system_prompt)
        if settings.system_prompt_name is not None:
            given = settings.system_prompt_variables
            return await self._templates.render(TemplateKind.PROMPT, settings.system_prompt_name, given)
        return await self._templates.render(TemplateKind.PROMPT, REPLY_WRITER)

    async def _generate(
        self, user_id: str, settings: ChatSettings, messages: list[ChatMessage], num_sources: int
    ) -> tuple[str, bool]:
        """Returns the text, and whether it was cut off at the maximum length."""
        params = replace(settings.sampling_params(), structured=self._sources.form(num_sources))
        options = ChatOptions(adapter=settings.adapter or None)
        if self._engine.info.can_think:
            options = settings.chat_options()
        caller = caller_of(user_id, accounts=self._settings.accounts)
        parts: list[str] = []
        end: FinishReason | None = None
        try:
            prepared = await self._engine.prepare(messages, params, caller=caller, options=options)
            deltas = cast(AsyncGenerator[Delta], self._admission.meter(user_id, self._engine.stream(prepared)))
            async with aclosing(deltas):
                async for delta in deltas:
                    parts.append(clean_text(delta.text))
                    end = delta.finish_reason or end
        except ContextLengthError as error:
            subject, advice = "With its sources, this message is", "Shorten it, or use fewer collections"
            raise context_too_long(error.prompt_tokens, error.max_model_len, subject=subject, advice=advice) from error
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error
        if end not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineUnavailable("The model was interrupted while it wrote the draft. Try again.")
        return "".join(parts).strip(), end is FinishReason.LENGTH
