"""Makes a scheduled backup in a process of its own, which the server can end at any moment: ``python -m`` this module.

Reads one line of JSON, ``{"url", "folder", "keep"}``, and writes one line, the :class:`BackupReport`. It ends with the
server: when its standard input ends, it kills itself with the programs that it has started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from app.domain.backups import BackupRetention
from app.errors import AppError

_NICENESS = 10


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What the process has done."""

    error: str | None = None  #: a sentence; None: the backup is good
    file: str = ""
    bytes: int = 0
    check: str = ""
    warning: str | None = None  #: a sentence about a good backup: old ones could not be deleted


async def run_backup(url: str, folder: Path, keep: str) -> BackupReport:
    """Makes a checked backup and then deletes expired ones, in a child process that a cancellation kills.

    Args:
        url: from ``AppSettings.resolved_database_url``; not in the process list, because it may hold a password.
        keep: for :meth:`BackupRetention.parse`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        request = {"url": url, "folder": str(folder), "keep": keep}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        line = await process.stdout.readline()
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        await process.wait()
    try:
        return BackupReport(**json.loads(line))
    except ValueError:
        return BackupReport(f"The backup's process ended with status {process.returncode}. See the server's log.")


def _main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_server, daemon=True).start()
    os.nice(_NICENESS)
    print(json.dumps(asdict(_make(request["url"], Path(request["folder"]), request["keep"]))), flush=True)  # noqa: T201


def _make(url: str, folder: Path, keep: str) -> BackupReport:
    from app.store.maintenance.checked_backup import make_checked_backup, remove_expired

    try:
        made = make_checked_backup(url, folder)
    except AppError as error:
        return BackupReport(error.message)
    report = BackupReport(None, str(made.file), made.bytes, made.check)
    try:
        remove_expired(folder, BackupRetention.parse(keep))
    except AppError as error:
        return BackupReport(None, report.file, report.bytes, report.check, error.message)
    return report


def _end_with_server() -> None:
    sys.stdin.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    _main()
