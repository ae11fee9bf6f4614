"""Runs only the engine, in a process of its own, as the baseline for the whole product.

A line of JSON requests a turn of chats, and a line of JSON answers it. Prompts, seeds and parameters are the product's;
the replies are read from ``Engine.chat`` and discarded.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from types import TracebackType

from app.domain.chat_settings import ChatSettings
from benchmarks.live.scripted_chats import MAX_REPLY_TOKENS, AskFunction, ScriptedQuestion, TokenWindow, chat
from benchmarks.peers.protocol import die_with_parent
from engine import ChatMessage, Engine, EngineSettings, PreparedPrompt

ROOT = Path(__file__).resolve().parents[2]


class EngineProcess:
    """Starts and controls the process; its ``with`` block ends it.

    Args:
        folder: folder for the log.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "engine.log"

    def __enter__(self) -> EngineProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("APP_", "ENGINE_"))}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.live.engine_process"],
                cwd=self._log.parent,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """Process id, also the id of the session that the process leads."""
        return self._process.pid

    def chat(self, people: int, turn: int, settle: float, seconds: float) -> TokenWindow:
        assert self._process.stdin is not None
        asked = {"people": people, "turn": turn, "settle": settle, "seconds": seconds}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return TokenWindow(**json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process ended: {self._log.read_text(errors='replace')[-2000:]}")
        return line


async def serve() -> None:
    """Runs inside the process: reads requests from stdin and writes answers to stdout."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries' output must not mix with the answers
    async with Engine(EngineSettings(_env_file=None)) as engine:
        print("ready", file=answers, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            window = await chat(
                [make_ask(engine) for _ in range(asked["people"])],
                asked["turn"],
                settle=asked["settle"],
                seconds=asked["seconds"],
                count=lambda: _count(engine),
            )
            print(json.dumps({"tokens": window.tokens, "seconds": window.seconds}), file=answers, flush=True)


def make_ask(engine: Engine) -> AskFunction:
    """Makes the function by which one user asks the engine, with the conversation so far."""
    messages: list[ChatMessage] = []
    previous: PreparedPrompt | None = None

    async def answer(question: ScriptedQuestion) -> None:
        nonlocal previous
        if question.starts_conversation:
            messages.clear()
            previous = None
        messages.append({"role": "user", "content": question.text})
        params = ChatSettings(seed=question.seed, max_tokens=MAX_REPLY_TOKENS).sampling_params()
        text, token_ids = "", list[int]()
        previous = await engine.prepare(messages, params, previous=previous)
        async with aclosing(engine.stream(previous)) as deltas:
            async for delta in deltas:
                text += delta.text
                token_ids += delta.token_ids
        kept = await engine.reply_tokens(text, token_ids)
        messages.append({"role": "assistant", "content": text, "token_ids": kept})

    return answer


async def _count(engine: Engine) -> tuple[float, float]:
    return engine.stats().generation_tokens, perf_counter()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(serve())
