"""People at a server that may die under them: they send, read, edit, ask again, stop and continue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from testing.json_events import JsonEvent, read_json_events
from tests.faults.ledger import Kind, Ledger, PendingRequest, RecordedReply
from tests.faults.scripted_replies import make_question

MAX_REPLY_WORDS = 120  # words


class ShuttingDown(Exception):
    """A server takes no more messages."""


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, verify=False, trust_env=False) as http:
        yield http


async def follow(
    http: httpx.AsyncClient, turn_id: str, offset: int = 0, last_event_id: str | None = None
) -> AsyncIterator[JsonEvent]:
    """A reply's events until the stream ends."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else {}
    path = f"/api/turns/{turn_id}/events?offset={offset}"
    async with http.stream("GET", path, headers=headers) as response:
        if response.status_code == 503:
            raise ShuttingDown
        assert response.status_code == 200, await response.aread()
        async for event in read_json_events(response.aiter_bytes()):
            yield event


async def send(http: httpx.AsyncClient, text: str, **body: object) -> dict[str, Any]:
    """Send a message; returns the turn."""
    response = await http.post("/api/turns", json={"text": text, **body})
    assert response.status_code == 201, response.text
    turn: dict[str, Any] = response.json()
    return turn


async def read_stored(http: httpx.AsyncClient, conversation_id: str) -> dict[str, Any]:
    response = await http.get(f"/api/conversations/{conversation_id}")
    assert response.status_code == 200, response.text
    conversation: dict[str, Any] = response.json()
    return conversation


def assert_shutting_down(response: httpx.Response) -> None:
    """Check that a refusal has this reason, and no other."""
    said = response.json()["error"]["message"]
    assert "shutting down" in said or "engine has stopped" in said, said


@dataclass
class SimulatedUser:
    """Does one thing after the other, each time on whichever of their conversations they like."""

    ledger: Ledger
    dice: random.Random
    conversations: list[str] = field(default_factory=list)
    pending: PendingRequest | None = None  #: whether it arrived is not known

    async def live(self, http: httpx.AsyncClient) -> None:
        """Go on until the server dies, or says that it is shutting down."""
        try:
            if self.pending is not None and self.pending.kind != "resume":
                await self._perform(http, self.pending)  # with the same id: it must not be there twice
            elif self.pending is not None:
                self._forget_pending()  # Continue is pressed again where it is offered again
            while True:
                await self._perform(http, self._choose_request())
        except (httpx.TransportError, ShuttingDown):
            return

    async def finish(self, http: httpx.AsyncClient) -> int:
        """Continue what was cut short, to its end; returns how many replies that were."""
        if self.pending is not None and self.pending.kind == "resume":
            self._forget_pending()
        elif self.pending is not None:
            await self._perform(http, self.pending)
        cut_short = [reply for reply in self._mine() if self.ledger.can_continue(reply)]
        for reply in cut_short:
            await self._perform(http, self._resume(reply), to_the_end=True)
            assert reply.status == "complete"
        return len(cut_short)

    def _mine(self) -> list[RecordedReply]:
        return [reply for reply in self.ledger.replies.values() if reply.conversation_id in self.conversations]

    def _forget_pending(self) -> None:
        assert self.pending is not None
        self.ledger.unanswered.remove(self.pending)
        self.pending = None

    def _choose_request(self) -> PendingRequest:
        mine = self._mine()
        cut_short = [reply for reply in mine if self.ledger.can_continue(reply)]
        kinds: list[Kind] = ["new"]
        if mine:
            kinds += ["next", "next", "next", "edit", "again"]
        if cut_short:
            kinds += ["resume"] * 4
        kind = self.dice.choice(kinds)
        text = make_question(self.dice.randrange(10**9), self.dice.randint(1, MAX_REPLY_WORDS))
        request_id = f"{self.dice.randrange(10**18)}"
        if kind == "new":
            return PendingRequest("new", "/api/turns", {"text": text, "request_id": request_id}, text)
        reply = self.dice.choice(cut_short if kind == "resume" else mine)
        if kind == "resume":
            return self._resume(reply)
        if kind == "next":
            body = {"text": text, "request_id": request_id, "conversation_id": reply.conversation_id}
            tip = self.ledger.tips[reply.conversation_id]
            return PendingRequest("next", "/api/turns", body, text, reply.conversation_id, parent_id=tip)
        question_id = reply.question_id
        if kind == "again":
            path = f"/api/messages/{self.dice.choice([reply.id, question_id])}/regenerate"
            return PendingRequest("again", path, {"request_id": request_id}, reply.question, reply.conversation_id)
        return PendingRequest(
            "edit",
            f"/api/messages/{question_id}/edit",
            {"text": text, "request_id": request_id},
            text,
            reply.conversation_id,
            parent_id=self.ledger.sent[question_id].parent_id,
        )

    def _resume(self, reply: RecordedReply) -> PendingRequest:
        path = f"/api/messages/{reply.id}/continue"
        return PendingRequest("resume", path, {}, reply.question, reply.conversation_id, reply_id=reply.id)

    async def _perform(self, http: httpx.AsyncClient, request: PendingRequest, *, to_the_end: bool = False) -> None:
        if self.pending is None:
            self.pending = request
            self.ledger.unanswered.append(request)
        response = await http.post(request.path, json=request.body)
        if response.status_code == 503:
            assert_shutting_down(response)
            self._forget_pending()  # it is not there, then
            raise ShuttingDown
        assert response.status_code == 201, f"{request}: {response.text}"
        reply = self.ledger.acknowledged(request, response.json())
        self.pending = None
        if reply.conversation_id not in self.conversations:
            self.conversations.append(reply.conversation_id)
        stops = not to_the_end and self.dice.random() < 0.15
        await self.read(http, reply, stop_at=len(reply.seen) + self.dice.randint(1, 300) if stops else None)

    async def read(self, http: httpx.AsyncClient, reply: RecordedReply, stop_at: int | None = None) -> None:
        """Read a reply to its end, or stop it."""
        try:
            async for event in follow(http, reply.turn_id, len(reply.seen)):
                reply.reading = True
                if event.name == "text":
                    reply.seen += event.data["text"]
                    assert event.data["offset"] == len(reply.seen)
                    self.ledger.add_streamed(len(event.data["text"]))
                    if stop_at is not None and len(reply.seen) >= stop_at and not reply.stopping:
                        reply.stopping = True
                        await self._stop(http, reply)
                elif event.name == "end":
                    assert event.data["offset"] == len(reply.seen), "the end is saved as it was shown"
                    reply.status, reply.ended_at = event.data["status"], event.data["offset"]
                    reply.stored = reply.seen
        finally:
            reply.reading = False

    async def _stop(self, http: httpx.AsyncClient, reply: RecordedReply) -> None:
        try:
            stopped = await http.post(f"/api/turns/{reply.turn_id}/stop")
        except httpx.TransportError:
            return  # a server that takes no more connections still ends the streams it has: they are read on
        if stopped.status_code == 503:
            assert_shutting_down(stopped)
            return  # the same: the reply has its end already, and it is on its way
        assert stopped.status_code == 204, stopped.text


async def watch(http: httpx.AsyncClient, ledger: Ledger) -> None:
    """Look up again and again how much of the replies in flight is saved, until the server dies."""
    try:
        while (await http.get("/health")).status_code == 200:
            for reply in ledger.in_flight():
                for message in (await read_stored(http, reply.conversation_id))["messages"]:
                    if message["id"] == reply.id and len(message["content"]) > len(reply.stored):
                        reply.stored = message["content"]
            await asyncio.sleep(0.01)
    except httpx.TransportError:
        return
