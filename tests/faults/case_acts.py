"""A process of a support desk that visitors and agents act in, until it is killed: each act is acknowledged by a line.

The lines are JSON, in a file that outlives the process: ``asked`` before an act, and ``done`` or ``refused`` after it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

import app.cases.sweeper
import app.cases.webhook_sender
import app.domain.webhooks
import app.services.container
import app.services.widget
from app.auth.visitors import VisitorIdentity
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import CaseStatus
from app.domain.ids import new_id
from app.domain.webhooks import DeliveryStatus
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.case_models import SupportCase, WebhookDelivery
from app.store.db.models import Turn
from engine import ChatEngine
from tests.faults.scripted_replies import make_question

VISITORS = 3  # new ones in each life, who act at once
MAX_REPLY_WORDS = 12
ADDRESS = "192.0.2.1"
SNOOZE = timedelta(milliseconds=200)
#: No waits between looks, and no limits of visitors: what takes minutes elsewhere happens in a moment.
CONSTANTS = (
    (app.cases.sweeper, "WAKE_SECONDS", 0.03),
    (app.cases.webhook_sender, "LOOK_SECONDS", 0.02),
    (app.services.container, "LEASE_SECONDS", 1.0),
    (app.domain.webhooks, "RETRY_SECONDS", (0.1,) * 10),
    *((app.services.widget, f"{limits}_BY_VISITOR", ()) for limits in ("MESSAGES", "COMMANDS")),
    (app.services.widget, "MESSAGES_BY_ADDRESS", ()),
)

Act = dict[str, Any]
Line = dict[str, Any]


async def run_acts(order: Mapping[str, Any], engine: ChatEngine) -> None:
    """The process.

    Args:
        order: ``settings`` of the application; ``lines``, the file to write to; ``seed``; ``inboxes``; ``agents``, ids
            of users; ``cases`` of earlier lives to act in, and ``again``, messages that were not acknowledged. With
            ``finish``, the process only sends those, waits until nothing is left to do, and ends.
    """
    for module, name, value in CONSTANTS:
        assert hasattr(module, name)
        setattr(module, name, value)
    services = await Services.open(AppSettings(_env_file=None, **order["settings"]), engine)
    acts = _Acts(services, order)
    await asyncio.gather(*(acts.perform(act) for act in order["again"]))
    if order["finish"]:
        await acts.finish()
        await services.close()
        return
    async with asyncio.TaskGroup() as group:
        for number in range(VISITORS):
            group.create_task(acts.visit(random.Random(f"{order['seed']} visitor {number}")))
        for agent in order["agents"]:
            group.create_task(acts.work(agent, random.Random(f"{order['seed']} {agent}")))


class _Acts:
    def __init__(self, services: Services, order: Mapping[str, Any]) -> None:
        assert services.widget is not None
        self._services = services
        self._widget = services.widget
        self._cases = services.cases
        self._inboxes: list[str] = order["inboxes"]
        self._agents: list[str] = order["agents"]
        self._known: list[str] = order["cases"]
        self._lines = os.open(order["lines"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._lines, b"\n")  # ends a line in which the process before was killed

    async def visit(self, dice: random.Random) -> None:
        """A visitor, who writes, asks for a person and rates."""
        inbox = dice.choice(self._inboxes)
        visitor = await self._cases.visitors.create(inbox, new_id().replace("-", ""))
        who = {"contact": visitor.contact.id, "inbox": inbox}
        while True:
            if (chance := dice.random()) < 0.7:
                text = make_question(dice.randrange(10**12), dice.randint(1, MAX_REPLY_WORDS))
                await self.perform({**who, "act": "write", "text": text, "client_id": new_id()})
            elif chance < 0.8:
                await self.perform({**who, "act": "hand_off"})
            else:
                comment = f"{dice.randrange(10**6)}"
                await self.perform({**who, "act": "rate", "score": dice.randint(1, 5), "comment": comment})
            await asyncio.sleep(dice.uniform(0, 0.02))

    async def work(self, agent: str, dice: random.Random) -> None:
        """An agent, who does anything with any case."""
        while True:
            await asyncio.sleep(dice.uniform(0, 0.01))
            if not self._known:
                continue
            act: Act = {"user": agent, "case": dice.choice(self._known[-2 * VISITORS :])}
            act["act"] = dice.choice(["reply", "reply", "note", "assign", "assign", "snooze", "resolve", "reopen"])
            if act["act"] in ("reply", "note"):
                act |= {"text": f"{act['act']} {dice.randrange(10**12)}", "client_id": new_id()}
            if act["act"] == "assign":
                act["to"] = dice.choice([*self._agents, None])
            await self.perform(act)

    async def perform(self, act: Act) -> None:
        """Performs an act, and acknowledges it."""
        self._tell({"line": "asked", **act})
        call: Callable[[Act], Awaitable[Line]] = getattr(self, act["act"])
        try:
            done = await call(act)
        except (Conflict, NotFound, InvalidInput) as error:  # another actor or the clock was faster; no case yet
            self._tell({"line": "refused", **act, "error": error.message})
            return
        self._tell({"line": "done", **act, **done})

    async def finish(self) -> None:
        """Waits until the bot, the snoozes and the webhooks have nothing left to do."""
        bot, database = self._services._bot, self._services.database
        said_at = 0.0
        while True:
            left = await database.read(_what_is_left)
            left |= {"bot": len(bot._tasks) + len(bot._owed), "unanswered": len(await self._cases.bot.unanswered())}
            if not any(left.values()):
                return
            if monotonic() > said_at + 10:  # for the log of one that never ends
                print("left:", left, flush=True)
                said_at = monotonic()
            await asyncio.sleep(0.02)

    def _tell(self, line: Line) -> None:
        os.write(self._lines, json.dumps(line).encode() + b"\n")  # a kill tears it at most between two pages

    async def write(self, act: Act) -> Line:
        visitor = _visitor(act)
        message, case = await self._widget.write(visitor, ADDRESS, act["text"], act["client_id"], [])
        if case.id not in self._known:
            self._known.append(case.id)
        return _message_line(message, case)

    async def hand_off(self, act: Act) -> Line:
        return _case_line(await self._widget.ask_for_person(_visitor(act), ADDRESS))

    async def rate(self, act: Act) -> Line:
        await self._widget.rate(_visitor(act), act["score"], act["comment"])
        return {}

    async def reply(self, act: Act) -> Line:
        agents = self._cases.agents
        return _message_line(*await agents.reply(act["user"], act["case"], act["text"], client_id=act["client_id"]))

    async def note(self, act: Act) -> Line:
        agents = self._cases.agents
        return _message_line(*await agents.note(act["user"], act["case"], act["text"], client_id=act["client_id"]))

    async def assign(self, act: Act) -> Line:
        return _case_line(await self._cases.agents.assign(act["user"], act["case"], act["to"]))

    async def snooze(self, act: Act) -> Line:
        return _case_line(await self._cases.agents.snooze(act["user"], act["case"], datetime.now(UTC) + SNOOZE))

    async def resolve(self, act: Act) -> Line:
        return _case_line(await self._cases.agents.resolve(act["user"], act["case"]))

    async def reopen(self, act: Act) -> Line:
        return _case_line(await self._cases.agents.reopen(act["user"], act["case"]))


def _visitor(act: Act) -> VisitorIdentity:
    return VisitorIdentity(act["contact"], act["inbox"], "")


def _message_line(message: CaseMessage, case: CaseView) -> Line:
    return {"message": message.id, **_case_line(case)}


def _case_line(case: CaseView) -> Line:
    """What the caller was told of the case."""
    assignee = case.assignee.id if case.assignee is not None else None
    return {"case": case.id, "revision": case.revision, "state": [case.status, case.epoch, assignee]}


def _what_is_left(session: Session) -> dict[str, int]:
    """How many deliveries wait, replies are being written, and cases are to be woken."""
    waiting = {
        "deliveries": select(func.count()).where(WebhookDelivery.status == DeliveryStatus.PENDING),
        "replies": select(func.count()).where(Turn.status == "running"),
        "snoozed": select(func.count()).where(SupportCase.status == CaseStatus.SNOOZED),
    }
    return {name: session.scalar(count) or 0 for name, count in waiting.items()}
