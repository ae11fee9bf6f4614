"""The bot: answers the contacts of an inbox from its collections, until a person has the case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app.cases.bot_replies import Answering, BotReplies
from app.cases.cases import Cases
from app.cases.sentences import Sentence
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import AuthorKind, CaseStatus, HandOffReason
from app.errors import AppError, StorageUnavailable

_log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 30.0
"""A visitor waits no longer for the bot to begin: then people have the case."""
MAX_REPLY_SECONDS = 180.0
"""A decision and its reply take no longer."""
_TRIES = 3  # to give a case to people, whose epoch may change meanwhile


class CaseBot:
    """Answers cases in the background, one reply at a time in each, and only so many at once.

    Nothing is lost with the process: a case that the bot has, and that no process answers, goes to people
    (:meth:`hand_over_silent`).
    """

    def __init__(self, cases: Cases, replies: BotReplies, *, max_replies: int) -> None:
        self._cases = cases
        self._replies = replies
        self._slots = asyncio.Semaphore(max_replies)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # cases whose contact has written while they were answered
        self._owed: dict[str, tuple[HandOffReason, Sentence]] = {}  # to people, once the database responds
        self._closing = False

    def answer(self, case_id: str) -> None:
        """Answers the contact's last message, in the background. Does nothing if people have the case."""
        if self._closing:  # the next start gives it to people
            return
        if case_id in self._tasks:
            self._again.add(case_id)
            return
        task = asyncio.create_task(self._run(case_id), name=f"bot in case {case_id}")
        self._tasks[case_id] = task

    async def hand_over_silent(self, minimum_age_s: float = 0.0) -> int:
        """Gives the cases to people in which a contact waits for the bot, and no process is answering.

        Args:
            minimum_age_s: seconds without a change, after which a case counts as silent.

        Returns:
            How many.
        """
        silent = await self._cases.bot.unanswered(minimum_age_s=minimum_age_s)
        given = 0
        for case in silent:
            # It may have been answered since it was read.
            if case.id not in self._tasks and _unanswered(await self._cases.bot.history(case.id)):
                given += await self._give_to_people(case.id, HandOffReason.FAILURE, Sentence.FAILURE)
        return given

    async def sweep(self, lease_seconds: float) -> None:
        """Hands silent cases over, from time to time, until cancelled."""
        while True:
            await asyncio.sleep(lease_seconds)
            try:
                for case_id, why in list(self._owed.items()):
                    await self._give_to_people(case_id, *why)
                    del self._owed[case_id]
                if given := await self.hand_over_silent(2 * lease_seconds):
                    _log.warning("%d cases went to people: their bot had stopped", given)
            except StorageUnavailable:
                continue  # it is looked at again

    async def close(self, timeout_s: float) -> None:
        """Waits for the replies under way; what is not finished in time goes to people."""
        self._closing = True
        self._again.clear()
        unfinished = dict(self._tasks)
        if not unfinished:
            return
        await asyncio.wait(unfinished.values(), timeout=timeout_s)
        unfinished = {id: task for id, task in unfinished.items() if not task.done()}
        for task in unfinished.values():
            task.cancel()
        await asyncio.gather(*unfinished.values(), return_exceptions=True)
        for case_id in unfinished:
            try:
                await self._give_to_people(case_id, HandOffReason.FAILURE, Sentence.FAILURE)
            except StorageUnavailable:
                return  # the next start does

    async def _run(self, case_id: str) -> None:
        try:
            while True:
                self._again.discard(case_id)
                await self._answer_in_time(case_id)
                if case_id not in self._again:
                    return
        finally:
            self._again.discard(case_id)
            del self._tasks[case_id]

    async def _answer_in_time(self, case_id: str) -> None:
        """Answers, or gives the case to people: one of the two, whatever happens."""
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            await self._give_up(case_id, HandOffReason.TIMEOUT, Sentence.TIMEOUT)
            return
        try:
            async with asyncio.timeout(MAX_REPLY_SECONDS):
                await self._answer(case_id)
        except TimeoutError:
            await self._give_up(case_id, HandOffReason.TIMEOUT, Sentence.TIMEOUT)
        except AppError as error:
            _log.warning("the bot could not answer in case %s: %s", case_id, error.message)
            await self._give_up(case_id, HandOffReason.FAILURE, Sentence.FAILURE)
        except Exception:
            _log.exception("the bot failed in case %s", case_id)
            await self._give_up(case_id, HandOffReason.FAILURE, Sentence.FAILURE)
        finally:
            self._slots.release()

    async def _answer(self, case_id: str) -> None:
        opened = await self._cases.bot.open(case_id)
        if opened is None:
            return
        waiting = _unanswered(opened.history)
        if not waiting:
            return
        answering = Answering(case=opened.case, inbox=opened.inbox, history=opened.history)
        if any(message.attachments for message in waiting):
            await self._replies.hand_off(answering, HandOffReason.POLICY, Sentence.HANDED_OFF)  # it reads no files
            return
        await self._replies.write(answering)

    async def _give_up(self, case_id: str, reason: HandOffReason, sentence: Sentence) -> None:
        try:
            await self._give_to_people(case_id, reason, sentence)
        except StorageUnavailable as error:
            _log.warning("case %s waits for people until the database responds: %s", case_id, error.message)
            self._owed[case_id] = reason, sentence

    async def _give_to_people(self, case_id: str, reason: HandOffReason, sentence: Sentence) -> bool:
        """Gives a case to people, if the bot still has it. Returns whether this has."""
        for _ in range(_TRIES):
            case: CaseView | None = await self._cases.bot.get(case_id)
            if case is None or case.status is not CaseStatus.BOT:
                return False
            inbox = await self._cases.inboxes.view(case.inbox_id)
            if inbox is None:
                return False
            if await self._replies.hand_off(Answering(case=case, inbox=inbox), reason, sentence):
                return True
        return False


def _unanswered(history: Sequence[CaseMessage]) -> list[CaseMessage]:
    """The contact's messages since the last whole reply."""
    waiting: list[CaseMessage] = []
    for message in reversed(history):
        if message.author is AuthorKind.CONTACT:
            waiting.append(message)
        elif message.text.strip() and (message.author is not AuthorKind.BOT or message.status == "complete"):
            break
    return waiting
