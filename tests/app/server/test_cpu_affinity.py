"""Which processors threads may use, and with what priority, in a process of its own that has two."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, os, sys, threading
allowed = sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]
os.sched_setaffinity(0, allowed)
from app.concurrency.cpu_affinity import become_background_thread, follow_pinning, give_way_to_engine
from engine.runtime.background import run_in_daemon_thread

def mine():
    return sorted(allowed.index(one) for one in os.sched_getaffinity(0))

def from_thread(work):
    told = []
    thread = threading.Thread(target=lambda: told.append(work()))
    thread.start()
    thread.join()
    return told[0]

def nice():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

def nice_in_background():
    become_background_thread()
    return nice()

async def of_engine(work):
    return await run_in_daemon_thread(work), await run_in_daemon_thread(lambda: from_thread(work))

class Earlier(threading.Thread):
    # Says, once it is asked, where it may run.

    def __init__(self, begin):
        super().__init__()
        self.begin, self.has_begun, self.asked = begin, threading.Event(), threading.Event()
        self.start()
        self.has_begun.wait()

    def run(self):
        self.begin()
        self.has_begun.set()
        self.asked.wait()
        self.cpus = mine()

    def ask(self):
        self.asked.set()
        self.join()
        return self.cpus

begins = {"background": become_background_thread, "a follower": follow_pinning, "other": int}
earlier = {name: Earlier(begin) for name, begin in begins.items()}
asyncio.run(of_engine(mine))  # the model is loaded
give_way_to_engine()
print(json.dumps({
    "main": mine(),
    "threads of it": from_thread(mine),
    "the engine's": asyncio.run(of_engine(mine)),
    "nice": [nice(), from_thread(nice), from_thread(nice_in_background)],
    "nice of the engine's": asyncio.run(of_engine(nice)),
    "earlier": {name: thread.ask() for name, thread in earlier.items()},
}))
"""


def run_program(processors: int) -> dict[str, object]:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < processors:
        pytest.skip(f"{processors} processors are needed")
    command = [sys.executable, "-c", PROGRAM, str(processors)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, object] = json.loads(said)
    return found


NICE = os.getpriority(os.PRIO_PROCESS, 0)


def test_of_two_processors_one_is_left_to_the_engine() -> None:
    assert run_program(2) == {
        "main": [0],
        "threads of it": [0],
        "the engine's": [[0, 1], [0, 1]],
        "nice": [max(NICE, 4), max(NICE, 4), max(NICE, 10)],
        "nice of the engine's": [NICE, NICE],
        "earlier": {"background": [0], "a follower": [0], "other": [0, 1]},
    }


@pytest.mark.parametrize("processors", [1, 3])
def test_with_one_or_many_nothing_changes(processors: int) -> None:
    found = run_program(processors)
    assert found["main"] == found["threads of it"] == list(range(processors))
    assert found["the engine's"] == [list(range(processors))] * 2
    assert found["earlier"] == {name: list(range(processors)) for name in ("background", "a follower", "other")}
    assert found["nice"] == [NICE] * 3
