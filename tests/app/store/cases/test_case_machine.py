"""Any order of what a visitor, two agents and the bot do, several at once: the promises of a case hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import select

from app.domain.case_views import CaseMessage
from app.domain.cases import AuthorKind, CaseStatus, HandOffReason
from app.domain.ids import new_id
from app.domain.views import MessageStatus
from app.errors import Conflict, NotFound
from app.settings import AppSettings
from app.store.cases.bot_cases import BotReply
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.db.database import open_snapshot
from app.store.db.models import Message
from app.store.maintenance.integrity import broken_rules
from tests.app.store.cases.support import SupportDesk, open_small_desk

ACTORS = ("visitor", "ann", "bob", "bot", "bot", "bot reads")


@dataclass
class BotWork:
    """What the bot knows: it acts on the case as it read it, however long ago."""

    epoch: int = 0
    reply: BotReply | None = None
    written: str = ""


@dataclass
class Acknowledged:
    """Texts that a caller was told are stored, by the client's id."""

    texts: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)


class CaseMachine:
    """Runs acts at once, as many processes would, and looks at the database after each step."""

    def __init__(self, url: str, has_bot: bool) -> None:
        self.url = url
        self.case_id: str | None = None
        self.runner = asyncio.Runner()
        self.desk: SupportDesk = self.run(open_small_desk(url, bot=has_bot))
        self.told = Acknowledged()
        self.bot = BotWork()
        self.number = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def close(self) -> None:
        self.run(self.desk.database.close())
        self.runner.close()

    def act(self, acts: list[tuple[str, int, bool]]) -> None:
        """Several actors act at once; ``again``: as a client whose connection broke, and which sends it again."""

        async def all_at_once() -> None:
            await asyncio.gather(*(self.one(actor, choice, again) for actor, choice, again in acts))

        self.run(all_at_once())

    async def bot_reads(self) -> None:
        """The bot reads the case; all that it does until it reads again rests on this."""
        if self.case_id is not None:
            case = await self.desk.cases.bot.get(self.case_id)
            assert case is not None
            self.bot.epoch = case.epoch

    async def one(self, actor: str, choice: int, again: bool) -> None:
        if actor == "bot reads":
            return await self.bot_reads()
        act = {"visitor": self.visitor, "bot": self.bot_acts}.get(actor, lambda c: self.agent(actor, c))(choice)
        try:
            done = await act()
            if again and isinstance(done, CaseMessage) and done.client_id is not None:  # the bot's have none
                assert (await act()).id == done.id
        except (Conflict, NotFound):
            return
        if isinstance(done, CaseMessage) and done.client_id is not None:
            self.told.texts[done.client_id] = done.text
            self.told.ids[done.client_id] = done.id

    def visitor(self, choice: int) -> Callable[[], Awaitable[Any]]:
        contacts, contact, text = self.desk.cases.contacts, self.desk.contact, self.next_text()

        async def write() -> CaseMessage:
            message, case = await contacts.write(contact, text, client_id=text)
            self.case_id = case.id
            return message

        if choice < 5:
            return write
        if choice == 5:
            return lambda: contacts.rate(contact, 1 + len(text) % 5)
        return lambda: contacts.ask_for_person(contact)

    def agent(self, name: str, choice: int) -> Callable[[], Awaitable[Any]]:
        agents, user, text, case_id = self.desk.cases.agents, getattr(self.desk, name), self.next_text(), self.case_id

        async def nothing() -> None:
            return None

        async def reply() -> CaseMessage:
            return (await agents.reply(user, case_id or "", text, client_id=text))[0]

        async def note() -> CaseMessage:
            return (await agents.note(user, case_id or "", text, client_id=text))[0]

        if case_id is None:
            return nothing
        until = datetime.now(UTC) + timedelta(hours=1)
        return (
            reply,
            reply,
            note,
            lambda: agents.resolve(user, case_id),
            lambda: agents.reopen(user, case_id),
            lambda: agents.snooze(user, case_id, until),
            lambda: agents.assign(user, case_id, self.desk.bob),
            lambda: agents.edit(user, case_id, tags=[text]),
        )[choice]

    def bot_acts(self, choice: int) -> Callable[[], Awaitable[Any]]:
        bot, turns, case_id, epoch = self.desk.cases.bot, self.desk.turns, self.case_id or new_id(), self.bot.epoch

        async def begin() -> None:
            self.bot.reply, self.bot.written = await bot.begin_reply(case_id, epoch, model="guide"), ""

        async def checkpoint() -> None:
            if (reply := self.bot.reply) is not None:
                self.bot.written += self.next_text()
                status = await turns.checkpoint(reply.user_id, reply.turn_id, self.bot.written)
                assert status in (LeaseStatus.RUNNING, LeaseStatus.STOP_REQUESTED, LeaseStatus.LOST)

        async def finish() -> None:
            if (reply := self.bot.reply) is not None:
                self.bot.reply = None
                outcome = TurnOutcome(text=self.bot.written + ".", status=MessageStatus.COMPLETE)
                await bot.finish(reply, outcome)

        return (
            begin,
            begin,
            checkpoint,
            checkpoint,
            finish,
            lambda: bot.hand_off(case_id, epoch, HandOffReason.MISSING_KNOWLEDGE, sentence="A person will answer."),
            lambda: bot.write(case_id, epoch, self.next_text()),
            lambda: bot.resolve(case_id, epoch),
        )[choice]

    def next_text(self) -> str:
        self.number += 1
        return f"text {self.number}"

    def check(self) -> None:
        if self.case_id is None:
            return
        with open_snapshot(self.url) as connection:
            assert broken_rules(connection) == []
            messages = select(Message.id, Message.client_id, Message.content)
            rows = connection.execute(messages.where(Message.conversation_id == self.case_id)).all()
        stored = [(row.client_id, row.id, row.content) for row in rows if row.client_id is not None]
        assert len({client_id for client_id, _, _ in stored}) == len(stored)  # nothing twice
        for client_id, text in self.told.texts.items():  # nothing that was acknowledged is lost or changed
            assert (client_id, self.told.ids[client_id], text) in stored
        self.run(self.looks_right(self.case_id))

    async def looks_right(self, case_id: str) -> None:
        opened = await self.desk.cases.details.get(self.desk.ann, case_id)
        case = opened.case
        assert case.status in CaseStatus
        replies = [message for message in opened.messages if not message.internal]
        by_agent = [at for at, message in enumerate(replies) if message.author is AuthorKind.AGENT]
        if by_agent:
            assert not any(message.author is AuthorKind.BOT for message in replies[by_agent[0] :])
            assert case.status is not CaseStatus.BOT
        running = [message for message in replies if message.status == MessageStatus.STREAMING]
        assert len(running) <= (case.status is CaseStatus.BOT)
        shown = await self.desk.cases.contacts.messages(self.desk.contact, case_id)
        assert [message.id for message in shown] == [message.id for message in replies]


#: Acts at once. The whole plan is drawn before it runs, so that a race does not change what is drawn.
STEP = st.lists(st.tuples(st.sampled_from(ACTORS), st.integers(0, 7), st.booleans()), min_size=1, max_size=4)


@pytest.mark.timeout(600)  # about a minute alone; three times that beside the other long tests
@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.full)])
def test_the_promises_of_a_case_hold_in_any_order(settings: AppSettings, examples: int) -> None:
    @hypothesis_settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # each step is some transactions: a shorter example is not worth the wait
        suppress_health_check=list(HealthCheck),
    )
    @given(has_bot=st.booleans(), steps=st.lists(STEP, min_size=4, max_size=12))
    def holds(has_bot: bool, steps: list[list[tuple[str, int, bool]]]) -> None:
        machine = CaseMachine(settings.resolved_database_url, has_bot)
        try:
            for step in steps:
                machine.act(step)
                machine.check()
        finally:
            machine.close()

    holds()
