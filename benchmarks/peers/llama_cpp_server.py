"""Runs llama.cpp's own server, with one slot per concurrent chat, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import monotonic, sleep

from benchmarks.http_stream import post_events
from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, die_with_parent, serve
from benchmarks.peers.readers import read_all

START_SECONDS = 300
UNKNOWN_TOKEN = -1


class LlamaServer:
    """Restarts the server when the number of chats changes, because slots share the context in equal parts."""

    def __init__(self, load: PeerConfig) -> None:
        self._load = load
        self._program = os.environ["BENCH_LLAMA_SERVER"]
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        words = (said.stderr + said.stdout).split("version:")[-1].split()
        self.versions = {"llama-server": words[0]}
        # Without mmap: mapped pages may be evicted while the process is frozen. The option changed its name.
        helped = subprocess.run([self._program, "--help"], capture_output=True, text=True, check=True).stdout
        self._not_mapped = ["--load-mode", "none"] if "--load-mode" in helped else ["--no-mmap"]
        self._server: subprocess.Popen[bytes] | None = None
        self._shape = (0, 0)
        self._url = ""

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        longest = max(len(chat.prompt) + chat.new_tokens for chat in chats) + 8
        shape = (len(chats), -(-longest // 256) * 256)
        if shape[0] != self._shape[0] or shape[1] > self._shape[1]:
            self._start(*shape)
        return asyncio.run(read_all(chats, self._stream)), {}

    def _start(self, slots: int, context: int) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        threads = str(self._load.threads)
        command = [self._program, "-m", self._load.model, "-c", str(slots * context), "-np", str(slots)]
        command += ["-t", threads, "-tb", threads, *self._not_mapped, "--cache-ram", "0"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        self._server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, preexec_fn=die_with_parent
        )
        self._shape, self._url = (slots, context), f"http://127.0.0.1:{port}"
        deadline = monotonic() + START_SECONDS
        while not self._answers():
            if self._server.poll() is not None or monotonic() > deadline:
                raise RuntimeError("llama-server did not start; see its log")
            sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    async def _stream(self, chat: Chat) -> AsyncGenerator[Sequence[int]]:
        body = {
            "prompt": list(chat.prompt),
            "n_predict": chat.new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": True,
            "stream": True,
        }
        async with aclosing(post_events(f"{self._url}/completion", body)) as events:
            written = 0
            async for event in events:
                part = json.loads(event)
                tokens = part.get("tokens", [])
                written += len(tokens)
                yield tokens
                # Tokens that end within a character are counted at the end only.
                if part.get("stop"):
                    yield [UNKNOWN_TOKEN] * (part.get("tokens_predicted", 0) - written)


if __name__ == "__main__":
    serve(LlamaServer)
