"""What visitors and agents were told that a desk has done, to be compared with its database after its process died."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from app.domain.cases import AuthorKind, CaseEventKind, CaseStatus
from app.domain.views import MessageStatus
from app.domain.webhooks import MESSAGE_EVENT, DeliveryStatus
from app.store.db.case_models import CaseEvent, Satisfaction, SupportCase, WebhookDelivery
from app.store.db.models import Message
from app.store.maintenance.integrity import broken_rules

AUTHORS = {"write": AuthorKind.CONTACT, "reply": AuthorKind.AGENT, "note": AuthorKind.AGENT}


@dataclass
class CaseLedger:
    """The lines of all lives, and what is left of them to check."""

    file: Path
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)  #: messages, by the client's id
    open: dict[str, dict[str, Any]] = field(default_factory=dict)  #: those that were not acknowledged
    done: list[dict[str, Any]] = field(default_factory=list)  #: acts that were acknowledged
    cases: list[str] = field(default_factory=list)  #: in the order in which they began
    ratings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  #: by contact: as asked and acknowledged
    received: dict[str, bytes] = field(default_factory=dict)  #: what webhooks were told, by its id
    num_lines: int = 0
    _offset: int = 0
    _checked: int = 0

    def read(self) -> None:
        """Reads the lines that have come."""
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):  # its end is still being written
                return
            self._offset += len(line)
            with suppress(json.JSONDecodeError):  # empty, or torn by a kill: nobody was told it
                self._add(json.loads(line))
                self.num_lines += 1

    def _add(self, line: dict[str, Any]) -> None:
        client_id = line.get("client_id")
        if line["act"] == "rate" and line["line"] != "refused":
            self.ratings.setdefault(line["contact"], []).append(line)
        if line["line"] == "asked":
            if client_id is not None:
                self.asked[client_id] = self.open[client_id] = line
            return
        if client_id is not None:
            self.open.pop(client_id)
        if line["line"] == "done":
            self.done.append(line)
            if "case" in line and line["case"] not in self.cases:
                self.cases.append(line["case"])

    def hear(self, requests: Sequence[tuple[dict[str, str], bytes]]) -> None:
        """Notes down what a receiver of webhooks was sent. The same id always tells the same."""
        for headers, body in requests:
            id = headers["webhook-id"]
            assert json.loads(body)["id"] == id
            assert self.received.setdefault(id, body) == body

    def check(self, connection: Connection, *, at_the_end: bool = False) -> None:
        """Compares with a snapshot of the database.

        Args:
            at_the_end: all acts are looked at again, not only the new ones; and nothing may be left to be done.

        Raises:
            AssertionError: something acknowledged is missing or was changed, is there twice, or does not agree.
        """
        assert broken_rules(connection) == []
        session = Session(connection)
        new = self.done if at_the_end else self.done[self._checked :]
        self._checked = len(self.done)
        self._check_messages(session, [line for line in new if "message" in line])
        self._check_cases(session, [line for line in new if "case" in line])
        touched = list({line["case"] for line in new if "case" in line})
        if at_the_end:  # also those whose first message was never acknowledged
            touched = list(session.scalars(select(SupportCase.id)))
        self._check_ratings(session, touched)
        self._check_outbox(session, touched, at_the_end)
        if at_the_end:
            self._check_nothing_is_left(session)
        for case_id, events in groupby(_events(session, touched), lambda event: event.case_id):
            check_events(session.get_one(SupportCase, case_id), list(events))

    def _check_messages(self, session: Session, done: Iterable[dict[str, Any]]) -> None:
        """Each acknowledged message is there as it was sent; none is there twice, and none that was never sent."""
        told = {line["message"]: line for line in done}
        stored = {row.id: row for row in session.scalars(select(Message).where(Message.id.in_(told)))}
        for id, line in told.items():
            assert id in stored, f"{line} is missing"
            row = stored[id]
            assert (row.content, row.client_id, row.status) == (line["text"], line["client_id"], "complete")
            assert row.conversation_id == line["case"]
            author = (AUTHORS[line["act"]], line.get("user") or line["contact"], line["act"] == "note")
            assert (row.author_kind, row.author_id, row.internal) == author
        sent = session.scalars(select(Message.client_id).where(Message.client_id.is_not(None))).all()
        assert len(sent) == len(set(sent)), "a message is there twice"
        assert set(sent) <= set(self.asked), "a message was never sent"

    def _check_cases(self, session: Session, done: Iterable[dict[str, Any]]) -> None:
        """No case has gone back behind what a caller was told of it."""
        rows = {row.id: row for row in session.scalars(select(SupportCase))}
        for line in done:
            assert line["case"] in rows, f"the case of {line} is missing"
            row = rows[line["case"]]
            assert row.revision >= line["revision"], f"{line} is lost"
            assert row.epoch >= line["state"][1], f"{line} is lost"
            if row.revision == line["revision"]:
                assert [row.status, row.epoch, row.assignee_id] == line["state"], f"{line} was changed"
            if line["act"] == "hand_off":
                assert row.handed_off_at is not None, f"{line} is lost"

    def _check_ratings(self, session: Session, cases: Sequence[str]) -> None:
        """A rating is the last one that was acknowledged, or one that was asked for since."""
        query = select(SupportCase.contact_id, Satisfaction.score, Satisfaction.comment).outerjoin(
            Satisfaction, Satisfaction.case_id == SupportCase.id
        )
        for contact_id, score, comment in session.execute(query.where(SupportCase.id.in_(cases))):
            lines = self.ratings.get(contact_id, [])
            last = max((at for at, line in enumerate(lines) if line["line"] == "done"), default=0)
            possible = [(line["score"], line["comment"]) for line in lines[last:]]
            if not lines or lines[last]["line"] != "done":
                possible.append((None, None))
            assert (score, comment) in possible

    def _check_outbox(self, session: Session, cases: Sequence[str], at_the_end: bool) -> None:
        """Each event and whole message is in the outbox once; what counts as delivered has been received."""
        of = Message.conversation_id.in_(cases)
        ended = Message.status.in_((MessageStatus.COMPLETE, MessageStatus.STOPPED))  # by a person, in its middle
        shown = Message.content != "", Message.internal.is_(False), ended
        expected = {event.id: f"case.{event.kind}" for event in _events(session, cases)}
        expected |= dict.fromkeys(session.scalars(select(Message.id).where(of, *shown)), MESSAGE_EVENT)
        rows = session.scalars(select(WebhookDelivery).where(WebhookDelivery.case_id.in_(cases))).all()
        stored = Counter((row.event_id, row.event) for row in rows)
        told = Counter(expected.items())
        assert stored == told, f"missing: {told - stored}; too many: {stored - told}"
        for row in rows:
            assert row.status != DeliveryStatus.FAILED
            if at_the_end:
                assert row.status == DeliveryStatus.DELIVERED
            if row.status == DeliveryStatus.DELIVERED:
                assert json.loads(self.received[row.event_id]) == row.payload
        if at_the_end:
            assert set(self.received) == set(expected)

    def _check_nothing_is_left(self, session: Session) -> None:
        """No case sleeps on or waits for the bot, and no reply is being written."""
        assert not session.scalars(select(SupportCase.id).where(SupportCase.status == CaseStatus.SNOOZED)).all()
        assert not session.scalars(select(Message.id).where(Message.status == MessageStatus.STREAMING)).all()
        bots = select(SupportCase.id).where(SupportCase.status == CaseStatus.BOT)
        last = select(Message).where(Message.conversation_id.in_(bots), Message.internal.is_(False))
        for _, messages in groupby(
            session.scalars(last.order_by(Message.conversation_id, Message.position)), lambda row: row.conversation_id
        ):
            *_, newest = messages
            assert (newest.author_kind, newest.status) == (AuthorKind.BOT, MessageStatus.COMPLETE)


def check_events(case: SupportCase, events: Sequence[CaseEvent]) -> None:
    """Plays the events of a case again: each can follow the ones before it, and the last one leaves the case as it is.

    Raises:
        AssertionError: one cannot, or the case is in another state.
    """
    status, assignee, is_peoples = "", None, False
    for event in events:
        where = f"{case.id}: {event.kind} {event.sequence} while {status!r}"
        match event.kind:
            case CaseEventKind.CREATED:
                assert status == "", where
                is_peoples = not event.details["bot"]
                status = CaseStatus.OPEN if is_peoples else CaseStatus.BOT
            case CaseEventKind.HANDED_OFF:
                assert not is_peoples, where
                is_peoples = True
                status = CaseStatus.OPEN if status == CaseStatus.BOT else status
            case CaseEventKind.ASSIGNED:
                assert event.details["user_id"] != assignee, where
                assignee = event.details["user_id"]
            case CaseEventKind.SNOOZED:
                assert status in (CaseStatus.OPEN, CaseStatus.SNOOZED), where
                assert is_peoples, where
                status = CaseStatus.SNOOZED
            case CaseEventKind.WOKEN:
                assert status == CaseStatus.SNOOZED, where
                status = CaseStatus.OPEN
            case CaseEventKind.RESOLVED:
                assert status != CaseStatus.RESOLVED, where
                status = CaseStatus.RESOLVED
            case CaseEventKind.REOPENED:
                assert status == CaseStatus.RESOLVED, where
                by_contact = event.actor_kind == AuthorKind.CONTACT
                status = CaseStatus.BOT if by_contact and not is_peoples else CaseStatus.OPEN
                is_peoples = is_peoples or not by_contact
    assert (status, assignee) == (case.status, case.assignee_id), f"the events of {case.id} tell of another state"
    assert is_peoples == (case.handed_off_at is not None)


def _events(session: Session, cases: Sequence[str]) -> Sequence[CaseEvent]:
    query = select(CaseEvent).where(CaseEvent.case_id.in_(cases)).order_by(CaseEvent.case_id, CaseEvent.sequence)
    return session.scalars(query).all()
