"""Makes a reply that is about to start: its prompt, its tools, its ids, and the rows that begin it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

from app.domain.attached_files import first_file_name, without_files
from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.listings import list_documents
from app.domain.prompting import PathMessage, past_turns
from app.domain.templates import TemplateKind
from app.domain.text import clean_text, title_from
from app.domain.tool_use import ToolUse
from app.domain.views import Reasoning, Role
from app.errors import Conflict, ContextTooLong
from app.settings import AppSettings
from app.store.chat.new_turns import NewTurn
from app.store.chat.turn_contexts import BUSY, StoredReply, TurnContext
from app.store.chat.turn_records import TurnRecords
from app.store.db.notifications import Notifications
from app.templates.catalog import Templates
from app.tools.chat_tools import OfferedTools
from app.tools.results import MAX_RESULT_CHARS
from app.turns.admission import caller_of
from app.turns.live import LiveTurn, ReplyStreams, TurnRef
from app.turns.prompter import Prompter
from app.turns.recent_contexts import RecentContexts
from app.turns.sources import Sources
from app.turns.tool_offers import ToolOffers
from app.turns.tool_rounds import ToolRounds
from app.turns.turn_requests import TurnRequest
from app.turns.written_replies import NOTHING_FOUND, WrittenReply
from engine import ChatEngine, ChatOptions, PreparedPrompt, ReplyInspector, SamplingParams, ToolChoiceMode

SEED_BITS = 31  # of a drawn seed: few enough to be read, and a number in every database and browser
RESULTS_TOO_LONG = (
    "With what the tools returned, this conversation is longer than the model reads. Ask for less at a time, or start "
    "a new chat."
)


class LiveTurnFactory:
    """Makes live turns.

    Args:
        recent: the prompts of recent replies, which the next prompts of their conversations continue.
        tool_offers: the tools that chats are offered; None offers none.
        sources: finds the sources of replies.
    """

    def __init__(
        self,
        settings: AppSettings,
        engine: ChatEngine,
        records: TurnRecords,
        templates: Templates,
        notifications: Notifications,
        recent: RecentContexts,
        tool_offers: ToolOffers | None,
        sources: Sources,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._records = records
        self._templates = templates
        self._notifications = notifications
        self._recent = recent
        self._tool_offers = tool_offers
        self._sources = sources
        self._prompter = Prompter(engine, settings.context_policy, sources.prompt.with_sources)

    async def make(
        self,
        user_id: str,
        turn_id: str,
        settings: ChatSettings | None,
        turn_request: TurnRequest,
        *,
        sources: tuple[Passage, ...] | None = None,
    ) -> tuple[LiveTurn, NewTurn]:
        """Returns the reply, and what is written to the database before it is launched.

        Args:
            turn_id: of a new turn; a reply that is resumed keeps its own.
            settings: None uses the conversation's own.
            sources: what a search for this message has found in the collections of the settings; None searches.

        Raises:
            AppError: a reply is running in this conversation, or the prompt cannot be made; see :meth:`Turns.start`.
        """
        context = turn_request.context
        if context.streaming:
            raise Conflict(BUSY)
        partial_reply = turn_request.partial_reply
        own = partial_reply.sources if partial_reply else ()
        path, own = await self._sources.usable(user_id, context.path, own)
        context = replace(context, path=path)
        used = settings if settings is not None else context.settings
        params = self._seeded(used.sampling_params())
        resumed = None if turn_request.is_branch else partial_reply
        conversation_id = turn_request.conversation_id
        if partial_reply:
            sources = own
        elif sources is None:
            before = [(turn.question, turn.reply.content) for turn in past_turns(context.path)]
            sources = await self._sources.find(user_id, used.collections, turn_request.text, before)
        streams = self._streams(used, sources, is_new=partial_reply is None)
        is_by_model = streams is self._engine
        offers = self._tool_offers if is_by_model else None
        offered = await offers.of(used) if offers is not None else OfferedTools()
        options = replace(used.chat_options(), tools=offered.tools)
        prepare = partial(
            self._prompter.prepare,
            await self.system_prompt(used),
            context,
            self._sources.prompt.with_sources(sources, turn_request.text) if is_by_model else turn_request.text,
            self._citing(params, sources, offered) if is_by_model else params,
            caller=caller_of(user_id, accounts=self._settings.accounts),
            shares_system_prompt=used.has_shared_system_prompt,
        )
        began = perf_counter()
        prepared = await prepare(
            reply_message(partial_reply.text, partial_reply.token_ids, partial_reply.reasoning, turn_request.tool_uses)
            if partial_reply
            else None,
            previous=self._recent.previous_prompt(user_id, conversation_id) if conversation_id is not None else None,
            options=options,
        )
        tokenize_seconds = perf_counter() - began if is_by_model else None
        if not is_by_model:
            prepared = replace(prepared, num_prompt_tokens=0)  # none is computed, and none counts towards a limit
        ref = TurnRef(
            turn_id=resumed.turn_id if resumed else turn_id,
            conversation_id=conversation_id or new_id(),
            user_message_id=turn_request.message_id or new_id(),
            message_id=resumed.message_id if resumed else new_id(),
            omitted_messages=prepared.num_omitted_messages,
            context_length=prepared.max_model_len,
            model=options.adapter or self._engine.info.name,
            has_system_prompt=used.has_system_prompt,
        )
        live = LiveTurn(
            ref,
            user_id,
            engine=streams,
            prepared=prepared,
            records=self._records,
            notifications=self._notifications,
            checkpoint_seconds=self._settings.checkpoint_seconds,
            lease_seconds=self._settings.lease_seconds,
            partial_reply=partial_reply,
            tool_uses=turn_request.tool_uses,
            tools=self._tool_rounds(user_id, offered, turn_request, prepare, options),
            sources=await self._sources.shown(user_id, partial_reply.sources) if partial_reply else sources,
            tokenize_seconds=tokenize_seconds,
            collections=used.collections if sources or partial_reply is None else (),  # else it never searched
        )
        new = NewTurn(
            turn_id=ref.turn_id,
            conversation_id=ref.conversation_id,
            user_message_id=ref.user_message_id,
            message_id=ref.message_id,
            title=_title_of(turn_request.text) if conversation_id is None else None,
            parent_id=context.parent_id,
            parent_is_tip=turn_request.follows_tip,
            text=turn_request.text if turn_request.message_id is None else None,
            partial_reply=resumed,
            beginning=partial_reply.text if partial_reply and turn_request.is_branch else "",
            edited=turn_request.edited,
            tool_uses=turn_request.tool_uses,
            decides=turn_request.decision is not None,
            newly_allowed=turn_request.newly_allowed,
            sources=partial_reply.sources if partial_reply else sources,
            settings=used,
            save_settings=settings is not None,
            seed=params.seed,
            model=ref.model or "",
            omitted_messages=prepared.num_omitted_messages,
            context_length=prepared.max_model_len,
        )
        return live, new

    async def prepare_next(
        self,
        user_id: str,
        used: ChatSettings,
        context: TurnContext,
        text: str,
        system_prompt: str,
        conversation_id: str | None = None,
    ) -> PreparedPrompt:
        """Returns the prompt of a message that may be sent, without sources, which are searched then.

        Args:
            system_prompt: as :meth:`system_prompt` returns it for these settings.

        Raises:
            AppError: the prompt cannot be made; see :meth:`Turns.start`.
        """
        offered = await self._tool_offers.of(used) if self._tool_offers is not None else OfferedTools()
        path, _ = await self._sources.usable(user_id, context.path)
        return await self._prompter.prepare(
            system_prompt,
            replace(context, path=path),
            text,
            used.sampling_params(),
            caller=caller_of(user_id, accounts=self._settings.accounts),
            shares_system_prompt=used.has_shared_system_prompt,
            previous=self._recent.previous_prompt(user_id, conversation_id) if conversation_id is not None else None,
            options=replace(used.chat_options(), tools=offered.tools),
        )

    @property
    def max_source_tokens(self) -> int:
        """Most tokens that the sources of a reply may take."""
        return self._sources.max_tokens

    async def prepare_inspection(self, user_id: str, reply: StoredReply, *, with_reply: bool = True) -> PreparedPrompt:
        """Returns the prompt of a stored reply again, with the reply at its end, and as much of the sources in it as
        the user may still use.

        Args:
            with_reply: false leaves the reply out.

        Raises:
            AppError: the prompt cannot be made; see :meth:`Turns.start`.
        """
        used, context = reply.settings, reply.user_message.context
        offered = await self._tool_offers.of(used) if self._tool_offers is not None else OfferedTools()
        params = self._citing(used.sampling_params(), reply.sources, offered)
        path, sources = await self._sources.usable(user_id, context.path, reply.sources)
        return await self._prompter.prepare(
            await self.system_prompt(used),
            replace(context, path=path),
            self._sources.prompt.with_sources(sources, reply.user_message.text),
            replace(params, max_tokens=max(1, params.min_tokens)),  # reserves no room, so that nothing more is left out
            reply_message(reply.text, reply.token_ids, reply.reasoning, reply.tool_uses) if with_reply else None,
            caller=caller_of(user_id, accounts=self._settings.accounts),
            shares_system_prompt=used.has_shared_system_prompt,
            options=replace(used.chat_options(), tools=offered.tools),
            may_restore=False,
        )

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        """Draws a seed where none is given, so that it is known what each reply was written with.

        Another server draws its own, and does not say which.
        """
        if params.seed is not None or not isinstance(self._engine, ReplyInspector):
            return params
        return params.replace_valid(seed=secrets.randbits(SEED_BITS))

    def _streams(self, settings: ChatSettings, sources: tuple[Passage, ...], *, is_new: bool) -> ReplyStreams:
        """Returns what writes the reply: the model, unless it could only guess."""
        if not settings.collections or not is_new:
            return self._engine
        if not sources:
            return WrittenReply(NOTHING_FOUND)
        return WrittenReply(list_documents(sources)) if self._sources.is_model_too_small else self._engine

    def _citing(self, params: SamplingParams, sources: tuple[Passage, ...], offered: OfferedTools) -> SamplingParams:
        """Returns the parameters with the form that admits no citations but those of the sources.

        A reply that is held to another form, or that may call tools, is not held to this one: calls are no text, and
        hold numbers in brackets.
        """
        if params.structured is not None or offered.tools:
            return params
        form = self._sources.form(len(sources))
        return params if form is None else params.replace_valid(structured=form)

    def _tool_rounds(
        self,
        user_id: str,
        offered: OfferedTools,
        turn_request: TurnRequest,
        prepare: Callable[..., Awaitable[PreparedPrompt]],
        options: ChatOptions,
    ) -> ToolRounds | None:
        """Returns the tools of a reply; None if it is offered none and has no calls to finish."""
        if self._tool_offers is None or not (offered.tools or turn_request.tool_uses):
            return None
        without_tools = replace(options, tool_choice=ToolChoiceMode.NONE)

        async def prepare_next(reply: PathMessage, with_tools: bool) -> PreparedPrompt:
            try:
                return await prepare(reply, options=options if with_tools else without_tools)
            except ContextTooLong as error:
                raise ContextTooLong(RESULTS_TOO_LONG) from error

        approved = {*turn_request.context.allowed_tools, *turn_request.newly_allowed}
        return ToolRounds(
            self._tool_offers.tools,
            user_id=user_id,
            names=frozenset(tool.name for tool in options.tools),
            servers=offered.servers,
            approved=frozenset(approved | offered.approved),
            prepare=prepare_next,
            max_result_chars=min(MAX_RESULT_CHARS, self._engine.info.max_model_len),
        )

    async def system_prompt(self, settings: ChatSettings) -> str:
        """Returns the text of a chat's system prompt, empty if it has none."""
        if settings.system_prompt.strip() or settings.system_prompt_name is None:
            return clean_text(settings.system_prompt)
        name, given = settings.system_prompt_name, settings.system_prompt_variables
        return await self._templates.render(TemplateKind.PROMPT, name, given)


def _title_of(message: str) -> str:
    """The title of a chat that begins with this message: of its words, else of its first file's name."""
    return title_from(without_files(message) or first_file_name(message))


def reply_message(
    text: str,
    token_ids: tuple[int, ...],
    reasoning: Reasoning | None,
    tool_uses: tuple[ToolUse, ...] = (),
    sources: tuple[Passage, ...] = (),
) -> PathMessage:
    """Returns a reply as part of a conversation."""
    return PathMessage(Role.ASSISTANT, text, token_ids, reasoning.text if reasoning else "", tool_uses, sources)
