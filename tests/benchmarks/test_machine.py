"""What a benchmark reads of the machine: the CPU time of the processes that it measures."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.machine import CpuMark, program_seconds, session_seconds


def test_the_time_of_a_program_is_that_of_all_its_processes_whatever_their_sessions(tmp_path: Path) -> None:
    program = tmp_path / "a) (busy"  # the system tells it in parentheses
    program.write_text("#!/bin/sh\nwhile :; do :; done\n")
    program.chmod(0o700)
    assert program_seconds(program.name) == program_seconds(None) == 0
    processes = [subprocess.Popen([program], start_new_session=True) for _ in range(2)]
    try:
        for process in processes:
            while session_seconds(process.pid) < 0.05:
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        used = program_seconds(program.name)
        assert used == pytest.approx(sum(session_seconds(process.pid) for process in processes))
        assert used >= 0.1
        without = CpuMark.now().own
        assert CpuMark.now(program=program.name).own - without >= used - 1e-6
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert program_seconds(program.name) == 0
