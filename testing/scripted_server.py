"""Scripted OpenAI-compatible server for tests; it can also send invalid answers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

SSE = {"Content-Type": "text/event-stream"}
DISCONNECT = "break"  #: closes the connection in the middle of an answer
DONE = b"data: [DONE]\n\n"

Piece = bytes | asyncio.Event | str


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False).encode()) + b"\n\n"


def chunk(text: str | None = None, finish: str | None = None, *, index: int = 0, **choice: Any) -> bytes:
    """Makes a chunk of a chat reply; without a text it holds only the role."""
    delta = {"role": "assistant"} if text is None and finish is None else {"content": text} if text is not None else {}
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish, **choice}], "usage": None})


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return event({"choices": [], "usage": counts})


@dataclass
class ScriptedResponse:
    """Pieces are sent one by one; an event pauses until it is set; :data:`DISCONNECT` closes the connection."""

    pieces: Iterable[Piece] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE))


def reply(*pieces: Piece) -> ScriptedResponse:
    return ScriptedResponse(pieces)


def words(*texts: str) -> ScriptedResponse:
    """Makes a reply as vLLM sends it."""
    return ScriptedResponse([chunk(), *map(chunk, texts), chunk(None, "stop"), usage(7, len(texts)), DONE])


def refusal(status: int, body: object, **headers: str) -> ScriptedResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ScriptedResponse([data], status, {"Content-Type": "application/json", **named})


@dataclass
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedServer:
    """Model server, used as ``async with ScriptedServer() as server``.

    ``say()`` scripts the next answers to chat and completion requests; ``on`` has the answers for other paths.
    """

    def __init__(self, model: str = "m", owned_by: str = "vllm", max_model_len: int | None = 100) -> None:
        card = {"id": model, "object": "model", "owned_by": owned_by, "max_model_len": max_model_len}
        self.on: dict[str, ScriptedResponse] = {"/v1/models": refusal(200, {"object": "list", "data": [card]})}
        if owned_by == "me":
            self.on["/openapi.json"] = refusal(200, {"info": {"title": "🦙 llama.cpp Python API"}})
        self.default = words("Hello", " world")
        self.generation_requests: list[ReceivedRequest] = []  #: chat and completion requests
        self.other_requests: list[ReceivedRequest] = []  #: all other requests
        self.num_disconnects = 0  #: replies whose client disconnected before their end
        self.running = 0
        self._answers: deque[ScriptedResponse] = deque()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def label(self) -> str:
        return f"127.0.0.1:{self._port}"

    def say(self, *answers: ScriptedResponse) -> None:
        self._answers.extend(answers)

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the server, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops the server as if its process were killed: every connection breaks."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        _method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = ReceivedRequest(path, headers, json.loads(body) if body else None)
        if path in ("/v1/chat/completions", "/v1/completions"):
            self.generation_requests.append(request)
            answer = self._answers.popleft() if self._answers else self.default
            self.running += 1
            try:
                return await self._answer(answer, reader, writer)
            finally:
                self.running -= 1
        self.other_requests.append(request)
        return await self._answer(self.on.get(path, refusal(404, {"detail": "Not Found"})), reader, writer)

    async def _answer(
        self, answer: ScriptedResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Sends an answer; returns whether the connection can be used again."""
        head = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in answer.headers.items())]
        sent_head = False
        for piece in answer.pieces:
            if isinstance(piece, asyncio.Event):
                await writer.drain()
                if not await self._still_there(piece, reader):
                    self.num_disconnects += 1
                    return False
                continue
            if not sent_head and piece != DISCONNECT:
                writer.write("\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode())
                sent_head = True
            if isinstance(piece, str):
                await writer.drain()
                return False
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        if not sent_head:
            writer.write("\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode())
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _still_there(self, gate: asyncio.Event, reader: asyncio.StreamReader) -> bool:
        """Waits for the gate; returns False if the client disconnects first."""
        opened, gone = asyncio.create_task(gate.wait()), asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            for task in (opened, gone):
                task.cancel()
            await asyncio.gather(opened, gone, return_exceptions=True)
