"""One reply of the bot: what is found, the decision, the words as they come, and the hand-off where it ends in one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.cases.bot_prompt import decision_request, may_ask, reply_request, talk
from app.cases.cases import Cases
from app.cases.decisions import BotAction, Decision, decision_form, possible_actions, read_decision
from app.cases.live_replies import LiveReplies, LiveReply
from app.cases.sentences import Sentence, moment, say
from app.domain.case_views import CaseMessage, CaseView, ContactView, InboxView
from app.domain.cases import CaseStatus, HandOffReason
from app.domain.gaps import gap_of
from app.domain.knowledge import Passage
from app.domain.opening_hours import opens_at
from app.domain.templates import Template
from app.domain.text import clean_text
from app.domain.views import MessageStatus, ReplyStats
from app.errors import AppError, EngineUnavailable, NotFound, StorageUnavailable
from app.settings import AppSettings
from app.store.cases.bot_cases import BotReply
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_records import TurnRecords
from app.store.knowledge.collections import Collections
from app.templates.catalog import Templates
from app.turns.buffer import ReplyBuffer
from app.turns.checkpoints import Checkpoints
from app.turns.engine_requests import EngineRequests
from app.turns.events import TurnEnd
from app.turns.measurements import ReplyMeasure
from app.turns.sources import Sources
from app.turns.written_replies import passages_as_text
from engine import ChatMessage, ChatOptions, Delta, FinishReason, PreparedPrompt, SamplingParams, Truncation

_log = logging.getLogger(__name__)

WIDGET_BOT = "widget-bot"
"""The prompt of the bot."""
VISITOR_PRIORITY = 10
"""Of visitors' requests: agents' drafts and replies, of priority 0, come first. All visitors of an inbox share the
turns of one user, its account."""
DECISION_TOKENS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """A case as the bot has read it."""

    case: CaseView
    inbox: InboxView
    history: tuple[CaseMessage, ...] = ()

    @property
    def language(self) -> str | None:
        return self.case.contact.language


class BotReplies:
    """Writes the bot's replies.

    Args:
        collections: tells which of an inbox's collections are left.
        records: stores the checkpoints of replies.
        requests: admits the bot's requests without a user's limits: how many there are is limited elsewhere.
        count_tokens: counts the tokens of a reply for the inbox's account, as those of a user's replies are counted.
        live: where readers in this process find the reply under way.
    """

    def __init__(
        self,
        settings: AppSettings,
        cases: Cases,
        records: TurnRecords,
        requests: EngineRequests,
        templates: Templates,
        sources: Sources,
        collections: Collections,
        live: LiveReplies,
        count_tokens: Callable[[str, int], None],
    ) -> None:
        self._settings = settings
        self._cases = cases
        self._records = records
        self._requests = requests
        self._engine = requests.engine
        self._templates = templates
        self._sources = sources
        self._collections = collections
        self._live = live
        self._count_tokens = count_tokens

    async def write(self, answering: Answering) -> None:
        """Answers the contact's last message, or hands the case over. Returns early once a person has the case.

        Raises:
            AppError: the engine or the database does not respond, or the prompt is gone. What was written is stored.
        """
        case, inbox = answering.case, answering.inbox
        before, message = talk(answering.history)
        collections, found = await self._find(inbox, before, message)
        answering = replace(answering, inbox=replace(inbox, collections=collections))
        template = await self._templates.prompt(WIDGET_BOT)
        if template is None:
            raise EngineUnavailable(f"The prompt “{WIDGET_BOT}” was removed. Restore it at /desk.")
        if self._is_too_small(template):
            await self._offer_passages(answering, found)
            return
        reply = await self._cases.bot.begin_reply(case.id, case.epoch, model=self._engine.info.name, sources=found)
        if reply is None:
            return
        await _Writing(self, answering, template, reply, found).run(before, message)

    async def hand_off(
        self,
        answering: Answering,
        reason: HandOffReason,
        sentence: Sentence,
        *,
        intro: str = "",
        sources: Sequence[Passage] = (),
    ) -> bool:
        """Gives the case to people and tells the visitor, in one transaction. False if the bot no longer had it.

        Args:
            intro: what the visitor is told first, which cites ``sources``.
        """
        parts = [intro, say(sentence, answering.language), closed_notice(answering.inbox, answering.case.contact)]
        told = "\n\n".join(part for part in parts if part)
        case = answering.case
        given = await self._cases.bot.hand_off(case.id, case.epoch, reason, sentence=told, sources=sources)
        return given is not None

    async def _find(
        self, inbox: InboxView, before: Sequence[ChatMessage], message: str
    ) -> tuple[tuple[str, ...], tuple[Passage, ...]]:
        """The collections that the inbox can search, and what is found in them. Skips those that are gone."""
        pairs = [(asked["content"], said["content"]) for asked, said in zip(before[::2], before[1::2], strict=True)]
        try:
            return inbox.collections, await self._sources.find(inbox.user_id, inbox.collections, message, pairs)
        except NotFound:
            usable = tuple(await self._collections.open_to([inbox.user_id], inbox.collections))
            if len(usable) == len(inbox.collections):
                raise
        gone = [id for id in inbox.collections if id not in usable]
        _log.warning(
            "the inbox %s answers without %d of its collections, which are gone or closed to it (%s); choose its "
            "collections again at /desk#inboxes",
            inbox.id,
            len(gone),
            ", ".join(gone),
        )
        return usable, await self._sources.find(inbox.user_id, usable, message, pairs)

    async def _offer_passages(self, answering: Answering, found: Sequence[Passage]) -> None:
        """Without a model that can answer, people do: the passages are shown as what a search has found."""
        intro = passages_as_text(say(Sentence.PASSAGES, answering.language), found) if found else ""
        await self.hand_off(answering, HandOffReason.POLICY, Sentence.HANDED_OFF, intro=intro, sources=found)

    def _is_too_small(self, template: Template) -> bool:
        return 0 < self._engine.info.num_parameters < (template.min_parameters or 0)


def closed_notice(inbox: InboxView, contact: ContactView, now: datetime | None = None) -> str:
    """When people answer, by the visitor's clock; empty if they do now."""
    opens = opens_at(inbox.opening_hours, inbox.time_zone, now or datetime.now(UTC))
    if opens is None:
        return ""
    when = moment(opens, contact.language, contact.time_zone or inbox.time_zone)
    return say(Sentence.CLOSED, contact.language, when=when)


class _Writing:
    """A reply that has begun: its model requests on one side, its checkpoints and the case's changes on the other."""

    def __init__(
        self,
        replies: BotReplies,
        answering: Answering,
        template: Template,
        reply: BotReply,
        sources: tuple[Passage, ...],
    ) -> None:
        self._replies = replies
        self._answering = answering
        self._template = template
        self._reply = reply
        self._sources = sources
        self._buffer = ReplyBuffer(sources)
        self._measure = ReplyMeasure(0)  # of the decision and the words, two rounds of one reply
        self._began = time.monotonic()
        self._seconds_to_first_word = 0.0
        self._is_ending = False  #: its end is being stored: a person who comes now comes after it
        settings = replies._settings
        self._checkpoints = Checkpoints(
            replies._records,
            reply.user_id,
            reply.turn_id,
            self._buffer,
            checkpoint_seconds=settings.checkpoint_seconds,
            lease_seconds=settings.lease_seconds,
        )

    async def run(self, before: Sequence[ChatMessage], message: str) -> None:
        """Writes the reply until its end, or until a person has the case."""
        live = LiveReply(self._reply.turn_id, self._reply.message.id, self._buffer)
        case = self._answering.case
        with self._replies._live.writing(case.id, live):
            self._replies._cases.signals.changed(case.id, case.inbox_id)
            writing = asyncio.create_task(self._write(before, message))
            losing = asyncio.create_task(self._until_lost())
            try:
                await asyncio.wait({writing, losing}, return_when=asyncio.FIRST_COMPLETED)
                if self._is_ending:
                    await asyncio.wait({writing})
                if not writing.done():
                    _log.info("the bot stopped writing in case %s: a person has it", case.id)
                    losing.result()
                    return
                writing.result()
            except BaseException:
                with suppress(AppError):
                    await self._checkpoints.write()  # what comes next is the hand-off, which ends the reply
                raise
            finally:
                for task in (writing, losing):
                    task.cancel()
                await asyncio.gather(writing, losing, return_exceptions=True)
                await self._count()
                self._close(MessageStatus.STOPPED)

    async def _write(self, before: Sequence[ChatMessage], message: str) -> None:
        actions = possible_actions(len(self._sources), may_ask=may_ask(self._answering.history))
        system_prompt = await asyncio.to_thread(self._template.render)
        asked = decision_request(system_prompt, before, message, self._sources, actions)
        decision = (
            Decision.missing_knowledge() if actions == (BotAction.HAND_OFF,) else await self._decide(asked, actions)
        )
        if decision.action is BotAction.HAND_OFF:
            reason = decision.hand_off_reason
            asked_for = reason is HandOffReason.ASKED_FOR_PERSON
            sentence = Sentence.ASKED_FOR_PERSON if asked_for else Sentence.HANDED_OFF
            self._is_ending = True
            await self._replies.hand_off(self._answering, reason, sentence)
            return
        form = self._replies._sources.form(len(self._sources)) if decision.action is BotAction.ANSWER else None
        params = replace(self._template.recommended.sampling_params(), structured=form)
        end = await self._stream(await self._prepare(reply_request(asked, decision), params))
        if not self._buffer.text.strip() or end not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineUnavailable("The model was interrupted while it wrote a reply.")
        await self._finish(decision)

    async def _decide(self, asked: Sequence[ChatMessage], actions: Sequence[BotAction]) -> Decision:
        count = len(self._sources)
        params = SamplingParams(temperature=0.0, max_tokens=DECISION_TOKENS, structured=decision_form(count, actions))
        prepared = await self._prepare(asked, params)
        text = ""
        async with aclosing(self._requests(prepared)) as deltas:
            async for delta in deltas:
                text += delta.text
        decision = read_decision(text, count, actions)
        if decision is None:
            raise EngineUnavailable(
                "The model made no decision about a message. Choose one that fills in a JSON schema."
            )
        return decision

    async def _stream(self, prepared: PreparedPrompt) -> FinishReason | None:
        end = None
        async with aclosing(self._requests(prepared)) as deltas:
            async for delta in deltas:
                if delta.text and not self._seconds_to_first_word:
                    self._seconds_to_first_word = time.monotonic() - self._began
                self._buffer.append(clean_text(delta.text))
                end = delta.finish_reason or end
        return end

    async def _requests(self, prepared: PreparedPrompt) -> AsyncGenerator[Delta]:
        self._measure.begin_round(prepared.num_prompt_tokens)
        user_id = self._answering.inbox.user_id
        async with aclosing(self._replies._requests.stream(user_id, prepared, priority=VISITOR_PRIORITY)) as deltas:
            async for delta in deltas:
                self._measure.observe(delta)
                yield delta

    def _stats(self, reason: FinishReason) -> ReplyStats:
        return replace(self._measure.partial_stats(reason), ttft_ms=1000 * self._seconds_to_first_word)

    async def _count(self) -> None:
        """Counts the tokens of the reply, whatever became of it."""
        if not self._measure.tokens:
            return
        self._replies._count_tokens(self._reply.user_id, self._measure.tokens)
        with suppress(AppError):
            await self._replies._cases.bot.count_tokens(self._reply.turn_id, self._stats(FinishReason.ABORT))

    async def _prepare(self, messages: Sequence[ChatMessage], params: SamplingParams) -> PreparedPrompt:
        can_think = self._replies._engine.info.can_think
        return await self._replies._requests.prepare(
            self._answering.inbox.user_id,
            messages,
            params,
            ChatOptions(thinking=False) if can_think else None,
            subject="A visitor's message is",
            advice="People answer it",
            truncation=Truncation(),
            cache_salt=self._answering.case.contact.id,
        )

    async def _until_lost(self) -> None:
        """Checkpoints the reply until it is no longer the bot's to write."""
        case = self._answering.case
        with self._replies._cases.signals.watch([case.id]) as changed:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._checkpoints.seconds_to_tick()):
                        await changed.wait()
                if changed.is_set():
                    changed.clear()
                    if not await self._is_the_bots():
                        return
                elif await self._checkpoints.write() in (LeaseStatus.LOST, LeaseStatus.STOP_REQUESTED):
                    return

    async def _is_the_bots(self) -> bool:
        read = self._answering.case
        with suppress(StorageUnavailable):  # then a checkpoint tells
            case = await self._replies._cases.bot.get(read.id)
            return case is not None and case.status is CaseStatus.BOT and case.epoch == read.epoch
        return True

    async def _finish(self, decision: Decision) -> None:
        """Stores the whole reply, unless a person's act has ended it; then tells the readers."""
        self._is_ending = True
        text = self._buffer.text.strip()
        is_answer = decision.action is BotAction.ANSWER
        outcome = TurnOutcome(
            text=text,
            status=MessageStatus.COMPLETE,
            stats=self._stats(FinishReason.STOP),
            collections=self._answering.inbox.collections if is_answer else (),
            gap=gap_of(text, self._sources) if is_answer else None,
        )
        if await self._replies._cases.bot.finish(self._reply, outcome):
            self._close(MessageStatus.COMPLETE)

    def _close(self, status: MessageStatus) -> None:
        """Ends the live reply for its readers; once."""
        if self._buffer.end is None:
            end = TurnEnd(status, None, None, self._reply.message.id, len(self._buffer))
            self._buffer.close(end)
