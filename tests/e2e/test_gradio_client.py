"""A program with Gradio's client at a server with the real engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.e2e.server import Server

PROGRAM = """
import sys
from gradio_client import Client
client = Client(sys.argv[1], verbose=False, analytics_enabled=False)
for output in client.submit("hello", None, False, {"max_tokens": int(sys.argv[2])}, True, api_name="/chat"):
    print(len(output["text"]), output["conversation_id"], flush=True)
"""


def run(server: Server, tokens: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"}
    command = [sys.executable, "-c", PROGRAM, server.url, str(tokens)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reply_of(server: Server, conversation_id: str) -> dict[str, Any]:
    reply: dict[str, Any] = httpx.get(f"{server.url}/api/conversations/{conversation_id}").json()["messages"][1]
    return reply


def test_a_reply_comes_in_pieces(server: Server) -> None:
    with run(server, 500) as program:
        assert program.stdout is not None
        lines = [line.split() for line in program.stdout]
    assert program.returncode == 0
    lengths = [int(length) for length, _ in lines]
    assert len(lengths) > 2
    assert lengths == sorted(lengths)
    reply = reply_of(server, lines[0][1])
    assert (reply["status"], len(reply["content"])) == ("complete", lengths[-1])


def test_a_program_that_is_killed_leaves_its_reply_running(server: Server) -> None:
    with run(server, 15_000) as program:
        assert program.stdout is not None
        _, conversation_id = program.stdout.readline().split()
        program.kill()
    conversation = httpx.get(f"{server.url}/api/conversations/{conversation_id}").json()
    before = reply_of(server, conversation_id)
    assert before["status"] == "streaming"
    eventually(lambda: len(reply_of(server, conversation_id)["content"]) > len(before["content"]))
    assert httpx.post(f"{server.url}/api/turns/{conversation['active_turn_id']}/stop").status_code == 204
    assert reply_of(server, conversation_id)["status"] == "stopped"
