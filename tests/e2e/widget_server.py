"""A server of the widget whose desk is the test: it says what people and the bot write, and when the line is cut."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from app.auth.headers import SecurityHeaders
from app.ui.static_files import FILES_URL, STATIC_DIR, PageFiles
from app.ui.widget.pages import install_widget
from tests.e2e.server import free_port

INBOX = "inbox-of-the-shop"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class _Inbox:
    def __init__(self, allowed_origins: list[str]) -> None:
        self.allowed_origins = allowed_origins


class WidgetServer:
    """Serves the widget's files as Deskmate does, and a scripted ``/api/widget``."""

    def __init__(self, site: str) -> None:
        """``site`` is the origin of the website that may embed the widget."""
        self.url = f"http://127.0.0.1:{free_port()}"
        self.requests: list[tuple[str, Any]] = []  #: name and body of each request for the API, in order
        self.messages: list[dict[str, Any]] = []
        self.case: dict[str, Any] | None = None
        self.is_up = True  #: False: every request for the API is refused with 503
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._visitors = 0
        app = FastAPI()
        app.add_middleware(SecurityHeaders)
        inbox = _Inbox([site])

        async def find_inbox(token: str) -> _Inbox | None:
            return inbox if token == INBOX else None

        install_widget(app, find_inbox)
        app.mount(FILES_URL, PageFiles(directory=STATIC_DIR))
        app.add_api_route("/api/widget/{path:path}", self._answer, methods=["GET", "POST", "PUT"])
        config = uvicorn.Config(
            app, port=int(self.url.rpartition(":")[2]), log_level="critical", loop="asyncio", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    def sent(self, name: str) -> list[Any]:
        """The bodies of the requests of a name, such as ``messages``."""
        return [body for each, body in self.requests if each == name]

    def say(self, kind: str, text: str, *, name: str | None = None, status: str = "complete", **more: Any) -> str:
        """A message of the bot, a person or the desk itself. Returns its id."""
        message = self._message(kind, text, name=name, status=status, **more)
        self.messages.append(message)
        self.event("message", message)
        return str(message["id"])

    def write(self, message_id: str, words: str) -> None:
        """The next words of a reply that is being written."""
        message = next(each for each in self.messages if each["id"] == message_id)
        self.event("delta", {"message_id": message_id, "offset": len(message["text"]), "text": words})
        message["text"] += words

    def end(self, message_id: str, **values: Any) -> None:
        """The reply is whole."""
        message = next(each for each in self.messages if each["id"] == message_id)
        message.update(values, status="complete")
        self.event("message", message)

    def turn_to(self, **values: Any) -> None:
        """The case changes."""
        usual = {"status": "bot", "agent": None, "open": True, "opens_at": None, "rating": False}
        self.case = {**(self.case or usual), **values}
        self.event("case", self.case)

    def event(self, name: str, data: dict[str, Any]) -> None:
        self._events.append((name, json.loads(json.dumps(data))))

    def _message(self, kind: str, text: str, *, name: str | None = None, **more: Any) -> dict[str, Any]:
        usual = {"author": {"kind": kind, "name": name}, "created_at": datetime.now(UTC).isoformat(), "client_id": None}
        return {"id": f"m{len(self.messages)}", "text": text, **usual, **more}

    async def _answer(self, path: str, request: Request) -> Response:
        name = path.rpartition("/")[2] if path.endswith("/sessions") else path
        is_json = request.headers.get("content-type", "").startswith("application/json")
        body: Any = await request.json() if is_json else None
        self.requests.append((name, body))
        if not self.is_up:
            return JSONResponse({"error": {"code": "unavailable", "message": "The server is busy."}}, 503)
        if name == "sessions":
            return JSONResponse(self._session(body))
        if not request.headers.get("authorization", "").startswith("Bearer visitor-"):
            return JSONResponse({"error": {"code": "unknown_visitor", "message": "Open the chat again."}}, 401)
        if name == "events":
            position = int(request.headers.get("last-event-id") or 0)
            return StreamingResponse(self._stream(position), media_type="text/event-stream")
        if name == "messages":
            return JSONResponse(self._store(body))
        if name == "hand-off":
            self.turn_to(status="open")
            return JSONResponse({"case": self.case})
        if name == "contact":
            return JSONResponse({**body, "verified": False})
        if name == "attachments":
            form = await request.form()
            file = form["file"]
            assert not isinstance(file, str)
            return JSONResponse({"id": "file", "name": file.filename, "type": file.content_type, "size": file.size})
        if name == "transcript":
            return PlainTextResponse("You: hello\n")
        if name.startswith("attachments/"):
            return Response(PNG, media_type="image/png")
        return Response(status_code=204)

    def _session(self, body: dict[str, Any]) -> dict[str, Any]:
        token = body["token"]
        if token is None:
            self._visitors += 1
            token = f"visitor-{self._visitors}"
        hours = {"open": (self.case or {}).get("open", True), "opens_at": (self.case or {}).get("opens_at")}
        return {
            "token": token,
            "expires_at": "2027-01-01T00:00:00Z",
            "inbox": {"name": "The Shop", "greeting": "Hello! How can we help you?", "bot": True, **hours},
            "case": self.case,
            "messages": self.messages,
            "contact": {"name": None, "email": None, "verified": False},
            "attachments": True,
            "last_event_id": str(len(self._events)),
        }

    def _store(self, body: dict[str, Any]) -> dict[str, Any]:
        stored = next((each for each in self.messages if each["client_id"] == body["client_id"]), None)
        if stored is None:
            stored = {**self._message("contact", body["text"], status="complete"), "client_id": body["client_id"]}
            if body["attachments"]:
                stored["attachments"] = [{"id": "file", "name": "photo.png", "type": "image/png", "size": len(PNG)}]
            self.messages.append(stored)
            if self.case is None:
                self.turn_to()
            self.event("message", stored)
        return {"message": stored, "case": self.case}

    async def _stream(self, position: int) -> AsyncIterator[str]:
        yield ": open\n\n"
        while self.is_up and not self._server.should_exit:
            for name, data in self._events[position:]:
                position += 1
                yield f"id: {position}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
            await asyncio.sleep(0.02)
