"""Long work in threads of its own, outside pytest's process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

AFTER_FORK = """
import asyncio, os, signal
from engine import run_in_daemon_thread
assert asyncio.run(run_in_daemon_thread(lambda: 1)) == 1
child = os.fork()
signal.alarm(20)
if child == 0:
    os._exit(asyncio.run(run_in_daemon_thread(lambda: 7)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", AFTER_FORK], check=True, capture_output=True, text=True)
    assert run.stdout == "7\n"
