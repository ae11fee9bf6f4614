"""What fills the model's context: counted for a message that is being typed, and shown as the model reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.chat_settings import ChatSettings
from app.domain.text import clean_text
from app.errors import ContextTooLong, NotSupported
from app.store.chat.turn_contexts import TurnContext, TurnContexts
from app.turns.engine_errors import as_app_error
from app.turns.engine_requests import count_tokens
from app.turns.live_turn_factory import LiveTurnFactory
from app.turns.turn_requests import check_length
from engine import ChatEngine, EngineError, PreparedPrompt, PromptPiece, PromptReader

MAX_PROMPT_TOKENS = 2000  # of a prompt, shown at a time


@dataclass(frozen=True, slots=True)
class ContextView:
    """What the next prompt would hold, in tokens."""

    model: str
    context_length: int  #: prompt and reply together
    system_prompt: int
    history: int  #: earlier messages, with the template's marks around them
    history_messages: int  #: earlier messages in the prompt
    omitted_messages: int  #: earlier messages that would be left out
    message: int  #: the text that is being typed
    template: int  #: the template's marks around the system prompt and the message, and descriptions of tools
    max_sources: int  #: most that sources may add, which are found when the message is sent; 0: the chat has none
    reply: int  #: room for the reply, as far as its maximum length uses it
    problem: str | None  #: why the message cannot be sent like this


@dataclass(frozen=True, slots=True)
class PromptView:
    """A part of a prompt as the model reads it."""

    model: str  #: that reads it
    is_exact: bool  #: false: another model wrote the reply, so its prompt was another one
    num_tokens: int  #: of the whole prompt
    offset: int  #: tokens before this part
    next_offset: int | None  #: where the next part begins; null at the end
    omitted_messages: int
    pieces: tuple[PromptPiece, ...]


class ContextUse:
    """Looks at the prompts of users' chats. Starts no reply."""

    def __init__(
        self, contexts: TurnContexts, factory: LiveTurnFactory, engine: ChatEngine, max_message_chars: int
    ) -> None:
        self._contexts = contexts
        self._factory = factory
        self._engine = engine
        self._max_chars = max_message_chars

    async def count(
        self, user_id: str, text: str, conversation_id: str | None, settings: ChatSettings | None
    ) -> ContextView:
        """Counts the prompt of a message after the last one of a conversation.

        Raises:
            NotFound: the conversation is missing or another user's.
            InvalidInput: the text is longer than a message may be.
            EngineUnavailable, Overloaded: the engine counts nothing now.
        """
        context, used, text = await self._next(user_id, text, conversation_id, settings)
        prompt_text = await self._factory.system_prompt(used)
        system_prompt = await self._tokens(prompt_text)
        message = await self._tokens(text)
        length, problem = self._engine.info.max_model_len, None
        base = total = system_prompt + message
        in_prompt = omitted = 0
        try:
            alone = await self._factory.prepare_next(user_id, used, replace(context, path=()), text, prompt_text)
            prepared = alone
            if context.path:
                prepared = await self._factory.prepare_next(user_id, used, context, text, prompt_text, conversation_id)
            base, total = alone.num_prompt_tokens, prepared.num_prompt_tokens
            omitted = prepared.num_omitted_messages
            in_prompt = len(prepared.messages) - len(alone.messages)
            # Alone, a text may have more tokens than within the prompt. The parts add up to what is sent.
            system_prompt = min(system_prompt, base)
            message = min(message, base - system_prompt)
        except ContextTooLong as error:
            problem = error.message
        room = max(0, length - total)
        wanted = used.max_tokens or self._engine.default_sampling_params.max_tokens or room
        return ContextView(
            model=used.chat_options().adapter or self._engine.info.name,
            context_length=length,
            system_prompt=system_prompt,
            history=max(0, total - base),
            history_messages=in_prompt,
            omitted_messages=omitted,
            message=message,
            template=max(0, base - system_prompt - message),
            max_sources=self._factory.max_source_tokens if used.collections else 0,
            reply=min(room, wanted),
            problem=problem,
        )

    async def next_prompt(
        self, user_id: str, text: str, conversation_id: str | None, settings: ChatSettings | None, offset: int
    ) -> PromptView:
        """Shows the prompt of a message after the last one of a conversation, without sources that it may find.

        Raises:
            ContextTooLong: there is no such prompt: it is longer than the model reads.
            NotSupported: the model runs on a server that does not report its prompts.
            AppError: as :meth:`count`.
        """
        context, used, text = await self._next(user_id, text, conversation_id, settings)
        system_prompt = await self._factory.system_prompt(used)
        prepared = await self._factory.prepare_next(user_id, used, context, text, system_prompt, conversation_id)
        return await self._show(prepared, offset, is_exact=True)

    async def prompt_of(self, user_id: str, message_id: str, offset: int) -> PromptView:
        """Shows the prompt that a stored reply answers, made again from what is stored.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: it is no reply to a message.
            Conflict: it is still being written.
            ContextTooLong: the model does not read that much.
            NotSupported: as :meth:`next_prompt`.
        """
        reply = await self._contexts.get_reply(user_id, message_id)
        prepared = await self._factory.prepare_inspection(user_id, reply, with_reply=False)
        model = reply.settings.chat_options().adapter or self._engine.info.name
        return await self._show(prepared, offset, is_exact=reply.model == model)

    async def _next(
        self, user_id: str, text: str, conversation_id: str | None, settings: ChatSettings | None
    ) -> tuple[TurnContext, ChatSettings, str]:
        check_length(text, self._max_chars)
        if conversation_id is None:
            context = TurnContext(parent_id=None, path=(), settings=ChatSettings(), streaming=False)
        else:
            context = await self._contexts.get_context(user_id, conversation_id, None)
        return context, settings if settings is not None else context.settings, clean_text(text)

    async def _tokens(self, text: str) -> int:
        return await count_tokens(self._engine, text) if text else 0

    async def _show(self, prepared: PreparedPrompt, offset: int, *, is_exact: bool) -> PromptView:
        engine = self._engine
        if not isinstance(engine, PromptReader):
            raise NotSupported(
                "The model runs on another server, which does not report its prompts. Load a model on this machine to "
                "see what it reads."
            )
        try:
            num_tokens, pieces = await engine.read_prompt(prepared, offset=offset, limit=MAX_PROMPT_TOKENS)
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error
        end = offset + MAX_PROMPT_TOKENS
        return PromptView(
            prepared.options.adapter or engine.info.name,
            is_exact,
            num_tokens,
            offset,
            end if end < num_tokens else None,
            prepared.num_omitted_messages,
            pieces,
        )
