"""Real servers that start quickly: a parent that has imported everything forks one for each that is asked for.

A child runs the whole command line, ``deskmate serve``, with a scripted engine in the place of the real one.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

# What takes seconds to import, once for all children.
import anyio._backends._asyncio  # noqa: F401
import uvicorn.protocols.http.auto  # noqa: F401

import app.cli.console
import app.main
import app.server.logs
import app.server.serving
import engine
from app.cli.main import main as deskmate
from engine import Delta, PreparedPrompt, StructureKind
from testing.fake_encoder import FakeEncoder
from testing.fake_engine import FakeEngine, Piece, Script, call_pieces
from tests.faults.case_acts import run_acts
from tests.faults.scripted_replies import asked_of_bot, called_tool, reply_pieces, whole_reply
from tests.fork_server import serve_orders


class ScriptedReplyEngine(FakeEngine):
    """Replies to each question with its own words, slowly; and goes on with a reply where it was left."""

    def __init__(self, delay: float, *, encoder: bool = False) -> None:
        super().__init__(max_model_len=10_000_000)
        self.fake_encoder = FakeEncoder() if encoder else None
        self._delay = delay
        self._info = replace(self._info, can_call_tools=True)

    async def _stream(self, prepared: PreparedPrompt, deadline: float | None) -> AsyncGenerator[Delta]:
        self._admit(prepared.num_prompt_tokens)
        messages = prepared.messages
        question = next(message["content"] for message in reversed(messages) if message["role"] == "user")
        pieces: list[Piece] = [*reply_pieces(question)]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        structure = prepared.params.structured
        if structure is not None and structure.kind is StructureKind.JSON_SCHEMA:  # the decision of the bot
            pieces = ['{"action": "ask", ', '"reason": "detail_missing", ', '"sources": []}']
        elif asked := asked_of_bot("\n".join(message["content"] for message in messages if message["role"] == "user")):
            pieces = [*reply_pieces(asked)]
        elif tool := called_tool(question):
            pieces = [f"The tool said: {results[-1]}"] if results else [*call_pieces(*tool)]
        elif messages[-1]["role"] == "assistant":
            begun = messages[-1]["content"]
            whole = whole_reply(question)
            assert whole.startswith(begun), f"this is not how the reply to {question!r} began: {begun!r}"
            pieces = [whole[offset : offset + 6] for offset in range(len(begun), len(whole), 6)]
        self.scripts.append(Script(pieces, delay=self._delay))
        async for delta in self._reply(prepared.num_prompt_tokens):
            yield delta


def _run(acts: dict[str, Any] | None = None, **order: Any) -> None:
    """A child: the acts of :mod:`tests.faults.case_acts`, or a server."""
    if acts is not None:
        asyncio.run(run_acts(acts, ScriptedReplyEngine(delay=0.001)))
    else:
        _serve(**order)


def _serve(environment: dict[str, str], constants: dict[str, float], delay: float, page: bool, encoder: bool) -> None:
    """The server's process.

    Args:
        page: with Gradio's page, which takes longer to build than all the rest.
        constants: of modules, by their full name; for waits that are too long for a test.
        delay: seconds before each piece of a reply.
        encoder: search by meaning, too.
    """
    os.environ.update(environment)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        assert hasattr(importlib.import_module(module), constant)
        setattr(importlib.import_module(module), constant, value)
    if not page:
        setattr(app.main, "mount_ui", lambda made, _services: made)  # noqa: B010
    engine.Engine = lambda *_, **__: nullcontext(ScriptedReplyEngine(delay, encoder=encoder))  # type: ignore[assignment, misc]
    deskmate(["serve"])


if __name__ == "__main__":
    serve_orders(_run)
