"""One reply in flight: a server task takes it from the engine, independent of the browsers that read it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.domain.gaps import gap_of
from app.domain.knowledge import Passage
from app.domain.prompting import PathMessage
from app.domain.text import clean_text
from app.domain.tool_use import ToolUse, ToolUseStatus, fail_running
from app.domain.views import MessageStatus, Role
from app.errors import NotFound, StorageUnavailable
from app.store.chat.leases import SWEPT
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_contexts import PartialReply
from app.store.chat.turn_records import TurnRecords
from app.store.db.notifications import Channel, Notifications
from app.turns.buffer import ReplyBuffer
from app.turns.checkpoints import Checkpoints
from app.turns.engine_errors import as_failed_reply
from app.turns.events import TurnEnd, TurnProgress, TurnSnapshot
from app.turns.measurements import TOOL_CALLS, ReplyMeasure, ending_of
from app.turns.stored_replies import end_of
from app.turns.tool_rounds import Breaks, ToolRounds
from engine import Delta, Deltas, EngineError, FinishReason, PreparedPrompt, ToolCallDelta

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 10.0

#: Finish reasons of a reply that was not cut off.
_ENDS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE)

NOT_SAVED = "The end of this reply could not be saved."
SHUT_DOWN = "The server was shut down while this reply was being written."
ENGINE_GAVE_UP = "The engine ended this reply before it was complete."


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRef:
    """The ids of a started turn."""

    turn_id: str
    conversation_id: str
    user_message_id: str
    message_id: str  #: the assistant's reply
    omitted_messages: int = 0  #: oldest messages that did not fit the model's context
    context_length: int | None = None  #: tokens, prompt and reply together
    model: str | None = None  #: name of the model that writes the reply
    has_system_prompt: bool = False  #: a system prompt is never left out


class ReplyStreams(Protocol):
    """What writes a reply: an engine, or a text in its place."""

    def stream(self, prepared: PreparedPrompt) -> Deltas: ...

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]: ...


class LiveTurn:
    """Streams a reply from the engine into a buffer, checkpoints it to the database on a clock, and saves its end."""

    def __init__(
        self,
        ref: TurnRef,
        user_id: str,
        *,
        engine: ReplyStreams,
        prepared: PreparedPrompt,
        records: TurnRecords,
        notifications: Notifications,
        checkpoint_seconds: float,
        lease_seconds: float,
        partial_reply: PartialReply | None = None,
        tool_uses: tuple[ToolUse, ...] = (),
        tools: ToolRounds | None = None,
        sources: tuple[Passage, ...] = (),
        collections: tuple[str, ...] = (),
        tokenize_seconds: float | None = None,
    ) -> None:
        """``partial_reply`` is the text so far of a reply that is resumed.

        Args:
            tool_uses: its calls of tools so far. Those that are allowed run first.
            tools: what the reply needs to call tools; None if it is offered none.
            sources: the passages that the reply was given, which it may cite.
            collections: ids of the collections that were searched for them.
            tokenize_seconds: how long it took to render and tokenize the prompt.
            checkpoint_seconds: see :class:`Checkpoints`.
            lease_seconds: likewise.
        """
        self.ref = ref
        self.user_id = user_id
        self.prepared = prepared
        self.sources = sources
        self._collections = collections
        self.buffer = ReplyBuffer(sources)
        self.saved: TurnOutcome | None = None  #: how it ended, once that is saved
        if partial_reply is not None:
            self.buffer.restore(partial_reply.text, partial_reply.reasoning, tool_uses)
        self._tools = tools
        self._breaks = Breaks.after(self.buffer)
        self._call_deltas: list[ToolCallDelta] = []  # of the current round
        self._engine = engine
        self._records = records
        self._notifications = notifications
        self._checkpoints = Checkpoints(
            records,
            user_id,
            ref.turn_id,
            self.buffer,
            checkpoint_seconds=checkpoint_seconds,
            lease_seconds=lease_seconds,
        )
        self._measure = ReplyMeasure(prepared.num_prompt_tokens, tokenize_seconds=tokenize_seconds)
        self._partial_reply_tokens = partial_reply.num_tokens if partial_reply is not None else 0
        self._token_ids: list[int] = list(partial_reply.token_ids) if partial_reply is not None else []
        self._final_delta: Delta | None = None  # the delta that ended the reply
        self._stop_status: MessageStatus | None = None  # why it was ended early
        self._deleted = False  # in this process
        self._lost = False  # the database says so: the turn was deleted, or another process ended or resumed it
        self._starts_after: LiveTurn | None = None
        self._is_in_database = asyncio.Event()  # its beginning
        self._has_read = asyncio.Event()  # the prompt is computed, or never will be
        self._saved_or_failed = asyncio.Event()
        self._generation: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> int:
        """Tokens of this run, prompt and completion."""
        return self._measure.tokens

    def snapshot(self) -> TurnSnapshot:
        """Returns its current state."""
        text = self.buffer.text
        return TurnSnapshot(
            turn_id=self.ref.turn_id,
            conversation_id=self.ref.conversation_id,
            message_id=self.ref.message_id,
            text=text,
            offset=len(text),
            status=MessageStatus.STREAMING,
            stats=None,
            error=None,
            progress=self.buffer.progress,
        )

    def start_generation(self) -> None:
        """Starts to generate while the beginning of the turn is still being written to the database.

        No reader knows a new turn yet, and no tool runs before :meth:`launch`.
        """
        self._generation = asyncio.create_task(self._generate(), name=f"generate {self.ref.turn_id}")
        if self._stop_status is not None:
            self._generation.cancel()

    def launch(self) -> asyncio.Task[None]:
        """Saves what is generated from now on, to its end. The turn is in the database already."""
        assert self._generation is not None
        self._is_in_database.set()
        self._task = asyncio.create_task(self._run(self._generation), name=f"turn {self.ref.turn_id}")
        return self._task

    def abandon(self) -> None:
        """Ends a generation whose turn could not be written to the database, and drops its text.

        Its tokens do not count towards the user's quota: the user gets nothing for them, and pays when the message is
        sent again. It counts as a message, so the limit of messages bounds what is computed in vain.
        """
        assert self._generation is not None
        self._generation.cancel()
        self._generation.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # of no use
        self.buffer.close(self._cut_off(NOT_SAVED))  # a reply that was to go on may have readers
        self._has_read.set()

    def start_after(self, other: LiveTurn) -> None:
        """Waits until the other's prompt is computed, so that this one, which begins alike, finds it cached."""
        self._starts_after = other

    def stop(self, status: MessageStatus) -> None:
        """Ends the reply with the text so far. A second call, or one after the end, does nothing."""
        self._stop_status = self._stop_status or status
        if self._generation is not None:
            self._generation.cancel()

    def discard(self) -> None:
        """Ends the reply without saving it: its conversation was deleted in this process."""
        self._deleted = True
        self.saved = None
        self.stop(MessageStatus.STOPPED)

    async def wait_until_saved(self) -> None:
        """Waits until the reply is saved, or has ended and cannot be saved for now."""
        if self._task is not None:
            await self._saved_or_failed.wait()

    async def _generate(self) -> None:
        if any(use.status is ToolUseStatus.ALLOWED for use in self.buffer.tool_uses):  # the user has just decided
            await self._is_in_database.wait()
            await self._run_tools()
        if self._starts_after is not None:
            await self._starts_after._has_read.wait()
        self._measure.start()
        while True:
            await self._engine.stream(self.prepared).forward_to(self._take)
            if not self._take_calls():
                return
            await self._is_in_database.wait()
            await self._run_tools()

    def _take_calls(self) -> bool:
        """Adds the calls of the round that has ended to the reply. False if the reply ends here."""
        last = self._final_delta
        if self._tools is None or not self._call_deltas or last is None:
            return False
        ended = last.finish_reason is FinishReason.STOP
        uses = self._tools.uses_of(
            self._call_deltas,
            self.buffer.tool_uses,
            at=len(self.buffer),
            reasoning_at=self.buffer.reasoning_chars,
            ended=ended,
        )
        self._call_deltas.clear()
        self.buffer.set_tool_uses((*self.buffer.tool_uses, *uses))
        return ended and not self._is_waiting and self._tools.may_go_on(self.buffer.tool_uses)

    @property
    def _is_waiting(self) -> bool:
        """Whether a call waits for the user's decision."""
        return any(use.status is ToolUseStatus.WAITING for use in self.buffer.tool_uses)

    async def _run_tools(self) -> None:
        """Runs the calls that are allowed, and prepares the round that follows."""
        assert self._tools is not None
        self._final_delta = None
        if any(use.is_open for use in self.buffer.tool_uses):
            # A tool may have effects: before it runs, it is on disk that it was called.
            await self._checkpoint(force=True)
            while self._checkpoints.is_failing:
                await asyncio.sleep(FIRST_RETRY_SECONDS)
                await self._checkpoint(force=True)
            await asyncio.sleep(0)  # a stop that the checkpoint found takes effect here, before a tool is called
            await self._tools.run(self.buffer.tool_uses, self._replace_tool_use)
        self.prepared = await self._tools.next_prompt(self._so_far())
        self._measure.begin_round(self.prepared.num_prompt_tokens)
        self._breaks = Breaks.before_round()

    def _so_far(self) -> PathMessage:
        """The reply as the model is to be shown it."""
        reasoning = self.buffer.reasoning
        return PathMessage(
            Role.ASSISTANT, self.buffer.text, (), reasoning.text if reasoning else "", self.buffer.tool_uses
        )

    def _replace_tool_use(self, changed: ToolUse) -> None:
        self.buffer.set_tool_uses(tuple(changed if use.id == changed.id else use for use in self.buffer.tool_uses))

    def _take(self, delta: Delta) -> None:
        self._measure.observe(delta)
        if delta.token_ids or delta.text:
            self._has_read.set()
        if delta.progress is not None:
            self.buffer.set_progress(TurnProgress(delta.progress.processed, delta.progress.total))
        self._token_ids += delta.token_ids
        if delta.reasoning:
            thought = self._breaks.before_reasoning(self.buffer.reasoning_chars) + clean_text(delta.reasoning)
            self.buffer.append_reasoning(thought, delta.sampled_at)
        if delta.text:
            text = self._breaks.before_text(len(self.buffer)) + clean_text(delta.text)
            # Of a delta that holds both, the tokens' times are those of the thinking.
            self.buffer.append(text, None if delta.reasoning else delta.sampled_at)
        self._call_deltas += delta.tool_calls
        # An error delta precedes an exception, which ends the stream.
        if delta.finish_reason not in (None, FinishReason.ERROR):
            self._final_delta = delta

    async def _run(self, generation: asyncio.Task[None]) -> None:
        end: TurnEnd | NotFound | None = None
        tokens: asyncio.Task[tuple[int, ...]] | None = None
        try:
            with self._notifications.watch(Channel.STOP_REQUESTED, self.ref.turn_id) as stop_requested:
                await self._checkpoint_until_done(generation, stop_requested)
                self._has_read.set()
                outcome = self._outcome(generation)
                if outcome.stats is not None and self._partial_reply_tokens:
                    total = outcome.stats.completion_tokens + self._partial_reply_tokens
                    outcome = replace(outcome, stats=replace(outcome.stats, completion_tokens=total))
                tokens = asyncio.create_task(self._reply_tokens(outcome.text))
                await asyncio.sleep(0)  # usually enough for the task to finish
                await self._checkpoint_until_done(tokens, stop_requested)
                end = await self._finish(replace(outcome, token_ids=tokens.result()))
        finally:
            generation.cancel()
            if tokens is not None:
                tokens.cancel()
            self.buffer.close(end or self._cut_off(NOT_SAVED))
            self._has_read.set()
            self._saved_or_failed.set()

    async def _checkpoint_until_done(self, work: asyncio.Task[Any], stop_requested: asyncio.Event) -> None:
        """Until ``work`` is done: checkpoints the reply and renews the lease, on the clock and on a stop request."""
        while not work.done():
            hint = asyncio.create_task(stop_requested.wait())
            tick = self._checkpoints.seconds_to_tick()
            await asyncio.wait({work, hint}, timeout=tick, return_when=asyncio.FIRST_COMPLETED)
            hint.cancel()
            force = stop_requested.is_set()
            stop_requested.clear()
            if not (work.done() or self._lost or self._deleted):
                await self._checkpoint(force=force)

    async def _checkpoint(self, *, force: bool) -> None:
        status = await self._checkpoints.write(force=force)
        if status is LeaseStatus.LOST:
            # The turn was deleted, or another process marked it as interrupted or resumed it: later text is dropped.
            self._lost = True
            self.stop(MessageStatus.INTERRUPTED)
        elif status is LeaseStatus.STOP_REQUESTED:
            self.stop(MessageStatus.STOPPED)

    async def _finish(self, outcome: TurnOutcome) -> TurnEnd | NotFound:
        """Saves the end of the reply, retrying until it succeeds: a full disk must not cost a reply."""
        delay = FIRST_RETRY_SECONDS
        while True:
            if self._deleted:
                return self._end_event(outcome)
            try:
                if not self._lost and await self._records.finish(self.user_id, self.ref.turn_id, outcome):
                    # A deletion that came meanwhile found the reply saved, and deleted it.
                    self.saved = None if self._deleted else outcome
                    return self._end_event(outcome)
                self._lost = True
                return await self._end_elsewhere(outcome)
            except StorageUnavailable:
                if not self._lost:
                    self._checkpoints.report_failure()
                self._saved_or_failed.set()
            await asyncio.sleep(delay)
            # At most one renewal interval, so that the lease is renewed before another process takes it as expired.
            delay = min(2 * delay, MAX_RETRY_SECONDS, self._checkpoints.renewal_seconds)

    async def _end_elsewhere(self, outcome: TurnOutcome) -> TurnEnd | NotFound:
        """The final event of a reply that this process no longer owns: what is saved of it."""
        try:
            record = await self._records.get(self.user_id, self.ref.turn_id)
        except NotFound as gone:
            return self._end_event(outcome) if self._deleted else gone
        _log.warning(
            "turn %s was interrupted by another process: this one did not renew its lease in time", record.turn_id
        )
        if record.status is MessageStatus.STREAMING:  # the user resumed it in another process
            return self._cut_off(SWEPT)
        return end_of(record)

    def _cut_off(self, error: str) -> TurnEnd:
        """The end of a reply of which only the last checkpoint is saved."""
        saved = self._checkpoints
        return TurnEnd(
            MessageStatus.INTERRUPTED,
            None,
            error,
            self.ref.message_id,
            offset=saved.saved_chars,
            reasoning_offset=saved.saved_reasoning_chars,
            reasoning_seconds=self.buffer.reasoning_seconds if saved.saved_reasoning_chars else None,
        )

    async def _reply_tokens(self, text: str) -> tuple[int, ...]:
        """The reply's token ids, for the next turn's prompt; empty if the engine cannot tell them."""
        if self._deleted or self._lost or not text or self.buffer.tool_uses:  # calls are not part of the text
            return ()
        try:
            return await self._engine.reply_tokens(text, self._token_ids)
        except EngineError:  # it has stopped, or is loading another model
            return ()
        except Exception:  # no failure here may cost the reply
            _log.exception("the token ids of turn %s could not be computed", self.ref.turn_id)
            return ()

    def _outcome(self, generation: asyncio.Task[None]) -> TurnOutcome:
        self.buffer.end_thinking()
        outcome = self._outcome_of(generation, self.buffer.text)
        # While one call waits, none has run: they go on with the user's decision.
        uses = self.buffer.tool_uses if self._is_waiting else fail_running(self.buffer.tool_uses)
        if uses != self.buffer.tool_uses:
            self.buffer.set_tool_uses(uses)
        ended = outcome.status is MessageStatus.COMPLETE and not self._is_waiting
        return replace(
            outcome,
            reasoning=self.buffer.reasoning,
            tool_uses=uses,
            collections=self._collections if ended else (),
            gap=gap_of(outcome.text, self.sources) if ended and self._collections else None,
        )

    def _outcome_of(self, generation: asyncio.Task[None], text: str) -> TurnOutcome:
        last = self._final_delta
        if last is not None and last.finish_reason in _ENDS:
            # Nothing after the end changes the outcome, such as a stop request that came too late.
            reason = TOOL_CALLS if self._is_waiting else ending_of(last, self.prepared.params.stop)
            # The engine's own timings are those of one round.
            own = last.timings if self._measure.is_first_round else None
            stats = self._measure.stats(own, reason) if own else self._measure.partial_stats(reason)
            return TurnOutcome(text=text, status=MessageStatus.COMPLETE, stats=stats)
        failure = None if generation.cancelled() else generation.exception()
        if failure is not None:
            failed = as_failed_reply(failure)
            if failed.is_defect:
                _log.error("turn %s failed", self.ref.turn_id, exc_info=failure)
            stats = self._measure.partial_stats(failed.finish_reason)
            return TurnOutcome(text=text, status=failed.status, stats=stats, error=failed.message)
        status = self._stop_status or MessageStatus.INTERRUPTED
        error = None
        if status is MessageStatus.INTERRUPTED:
            error = SHUT_DOWN if self._stop_status else ENGINE_GAVE_UP
        return TurnOutcome(text=text, status=status, stats=self._measure.partial_stats(FinishReason.ABORT), error=error)

    def _end_event(self, outcome: TurnOutcome) -> TurnEnd:
        if self._deleted and outcome.status is MessageStatus.INTERRUPTED:
            # A checkpoint saw the deleted rows before ``discard`` was called.
            outcome = replace(outcome, status=MessageStatus.STOPPED, error=None)
        return TurnEnd(
            status=outcome.status,
            stats=outcome.stats,
            error=outcome.error,
            message_id=self.ref.message_id,
            offset=len(outcome.text),
            reasoning_offset=len(outcome.reasoning.text) if outcome.reasoning else 0,
            reasoning_seconds=outcome.reasoning.seconds if outcome.reasoning else None,
        )
