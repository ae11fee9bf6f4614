"""A reply's rounds of tool calls: what the model asked for, which calls may run, and the prompt with their results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from app.domain.conversation_document import MAX_TOOL_ID_CHARS
from app.domain.prompting import PathMessage
from app.domain.text import clean_text
from app.domain.tool_use import ToolUse, ToolUseStatus
from app.tools.chat_tools import ChatTools
from app.tools.servers import MAX_NAME_CHARS
from app.turns.buffer import ReplyBuffer
from engine import PreparedPrompt, ToolCallDelta, join_tool_calls

MAX_ROUNDS = 12
"""Rounds of calls in one reply; after that the model must answer without tools."""
MAX_CALLS_PER_ROUND = 16
MAX_KEPT_PER_ROUND = 2 * MAX_CALLS_PER_ROUND
"""Calls of a round that are kept, with those that are refused; further ones are dropped."""
MAX_ARGUMENT_CHARS = 100_000

PARAGRAPH = "\n\n"
BROKEN_OFF = "The reply ended before this call was complete."
TOO_MANY = f"At most {MAX_CALLS_PER_ROUND} tools can be called at once."
TOO_MANY_ROUNDS = f"Tools have been called {MAX_ROUNDS} times in this reply, and no more calls are made."
TOO_LONG = f"The arguments are longer than {MAX_ARGUMENT_CHARS:,} characters."

PrepareNext = Callable[[PathMessage, bool], Awaitable[PreparedPrompt]]
"""Makes the prompt in which a reply goes on after its calls, with the tools or without them."""


@dataclass(frozen=True, slots=True)
class ToolRounds:
    """Decides which calls of one reply run, runs them, and makes the prompt with their results.

    Args:
        tools: runs calls.
        user_id: of the chat.
        names: of the tools that are offered.
        servers: whose tools may be called, listed now or not.
        approved: names of the tools that run without asking: by the operator's word, or the user's for this chat.
        prepare: makes the prompt of the next round from the reply so far.
        max_result_chars: length at which a result is cut.
    """

    tools: ChatTools
    user_id: str
    names: frozenset[str]
    servers: frozenset[str]
    approved: frozenset[str]
    prepare: PrepareNext
    max_result_chars: int

    def uses_of(
        self, deltas: Sequence[ToolCallDelta], before: Sequence[ToolUse], *, at: int, reasoning_at: int, ended: bool
    ) -> tuple[ToolUse, ...]:
        """Returns the calls of a round that has ended.

        None of them runs while one waits for the user: what the model asked for together is decided together.

        Args:
            deltas: of this round.
            before: the calls of earlier rounds.
            ended: the model ended its turn, so that the calls are complete.
        """
        number = before[-1].round + 1 if before else 0
        taken = {use.id for use in before}
        uses: list[ToolUse] = []
        for index, call in enumerate(join_tool_calls(deltas)[:MAX_KEPT_PER_ROUND]):
            id = clean_text(call.id)
            # Some models count their calls from the start of each message: ids must tell all calls of a reply apart.
            if not 0 < len(id) <= MAX_TOOL_ID_CHARS or id in taken:
                ids = (f"call-{number}-{place}" for place in itertools.count(index))
                id = next(id for id in ids if id not in taken)
            use = ToolUse(
                id=id,
                name=clean_text(call.name)[:MAX_NAME_CHARS],
                arguments=clean_text(call.arguments),
                round=number,
                at=at,
                reasoning_at=reasoning_at,
            )
            taken.add(id)
            refusal = self._refusal(use, index, ended=ended)
            if refusal is not None:
                cut = use.arguments[:MAX_ARGUMENT_CHARS]
                use = replace(use, arguments=cut, status=ToolUseStatus.FAILED, result=refusal)
            elif use.name in self.approved:
                use = replace(use, status=ToolUseStatus.ALLOWED)
            uses.append(use)
        return tuple(uses)

    async def run(self, uses: Sequence[ToolUse], changed: Callable[[ToolUse], None]) -> None:
        """Runs the calls that are allowed, at the same time. ``changed`` is told each that has ended."""

        async def run(use: ToolUse) -> None:
            changed(await self.tools.run(use, self.servers, self.max_result_chars, user_id=self.user_id))

        async with asyncio.TaskGroup() as group:
            for use in uses:
                if use.status is ToolUseStatus.ALLOWED:
                    group.create_task(run(use))

    async def next_prompt(self, reply: PathMessage) -> PreparedPrompt:
        """Makes the prompt of the next round.

        Raises:
            AppError: it does not fit the model's context, or the engine refuses it.
        """
        return await self.prepare(reply, reply.tool_uses[-1].round + 1 < MAX_ROUNDS)

    def may_go_on(self, uses: Sequence[ToolUse]) -> bool:
        """Whether the model is asked again after these calls. False if it called tools where it had to answer."""
        return uses[-1].round < MAX_ROUNDS

    def _refusal(self, use: ToolUse, index: int, *, ended: bool) -> str | None:
        """Returns the reason why a call is not made; None if it may be."""
        if not ended:
            return BROKEN_OFF
        if use.round >= MAX_ROUNDS:  # a model server may ignore that no tools are to be called
            return TOO_MANY_ROUNDS
        if index >= MAX_CALLS_PER_ROUND:
            return TOO_MANY
        if len(use.arguments) > MAX_ARGUMENT_CHARS:
            return TOO_LONG
        return None if use.name in self.names else f"There is no tool {use.name}."


class Breaks:
    """Puts a paragraph break between the texts of two rounds, and between their thoughts."""

    def __init__(self, *, text: bool, reasoning: bool) -> None:
        self._text, self._reasoning = text, reasoning

    @classmethod
    def before_round(cls) -> Breaks:
        """Of a round that begins."""
        return cls(text=True, reasoning=True)

    @classmethod
    def after(cls, buffer: ReplyBuffer) -> Breaks:
        """Of a reply that goes on where the buffer ends."""
        if not buffer.tool_uses:
            return cls(text=False, reasoning=False)
        last = buffer.tool_uses[-1]
        return cls(text=last.at == len(buffer), reasoning=last.reasoning_at == buffer.reasoning_chars)

    def before_text(self, written: int) -> str:
        """Returns the break before the next text, after ``written`` characters; empty if none is due."""
        is_due, self._text = self._text, False
        return PARAGRAPH if is_due and written else ""

    def before_reasoning(self, written: int) -> str:
        """As :meth:`before_text`, for the thinking."""
        is_due, self._reasoning = self._reasoning, False
        return PARAGRAPH if is_due and written else ""
