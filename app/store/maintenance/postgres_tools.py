"""Runs PostgreSQL's backup programs without exposing the password in the process list."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from psycopg import pq
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine, make_url

from app.errors import MaintenanceError


def dump(url: str, file: Path, snapshot: str | None = None) -> None:
    """Writes the committed state of the database at ``url`` into ``file``, and reads it back as a check.

    Args:
        snapshot: an exported one to write instead of the present state.

    Raises:
        MaintenanceError: pg_dump is missing, older than the server, or fails; includes its error text.
    """
    # pgvector's tables follow from the chunks, and could be restored only where that extension is
    derived = "--exclude-table=kb_vectors_*"
    shared = () if snapshot is None else (f"--snapshot={snapshot}",)
    _run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", derived, *shared, f"--file={file}", url=url)
    _run("pg_restore", f"--file={os.devnull}", str(file))  # unpacks everything, restores nothing


def load(url: str, file: Path) -> None:
    """Loads ``file`` into the database at ``url``, all or nothing.

    Raises:
        MaintenanceError: pg_restore is missing or fails; includes its error text.
    """
    _run("pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", str(file), url=url)


def tables(file: Path) -> set[str]:
    """The names of the tables in a backup.

    Raises:
        MaintenanceError: pg_restore is missing, or cannot read the file; includes its error text.
    """
    return set(re.findall(r"^\d+; \d+ \d+ TABLE \S+ (\S+) ", _run("pg_restore", "--list", str(file)), re.MULTILINE))


def contents(file: Path, table: str) -> list[str]:
    """The rows of one table in a backup, as text.

    Raises:
        MaintenanceError: pg_restore is missing, or cannot read the file; includes its error text.
    """
    script = _run("pg_restore", "--data-only", f"--table={table}", "--file=-", str(file)).splitlines()
    begin = next((number for number, line in enumerate(script) if line.startswith("COPY ")), len(script))
    rows = script[begin + 1 :]
    return rows[: rows.index("\\.")] if "\\." in rows else rows


def _run(program: str, *arguments: str, url: str | None = None) -> str:
    path = shutil.which(program)
    if path is None:
        raise MaintenanceError(
            f"{program} is not installed. It comes with PostgreSQL's client programs, in a version not older than the "
            "server's (Debian and Ubuntu: apt install postgresql-client). Install them and try again."
        )
    environment = dict(os.environ)
    connection: tuple[str, ...] = ()
    if url is not None:
        named, rest = _connection(url)
        environment |= named
        connection = ("--no-password", f"--dbname={rest}")
    done = subprocess.run(
        [path, *connection, *arguments],
        env={**environment, "LC_ALL": "C.UTF-8", "PGAPPNAME": "deskmate backup"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = _error_text(program, done.stderr) or f"exit code {done.returncode}"
        advice = " Install the client programs of the server's version, or a later one." if "version" in reason else ""
        raise MaintenanceError(f"{program} failed: {reason}.{advice}")
    return done.stdout


def _connection(url: str) -> tuple[dict[str, str], str]:
    """Connection parameters as environment variables, password included, and a DSN of those without a variable."""
    _, parameters = create_engine(url).dialect.create_connect_args(make_url(url))
    environment, rest = {}, {}
    for option in pq.Conninfo.get_defaults():
        name = option.keyword.decode()
        if name not in parameters:
            continue
        if option.envvar and name != "dbname":
            environment[option.envvar.decode()] = str(parameters[name])
        elif not option.dispchar:  # "*" marks a secret: left out, so that the connection fails with an error
            rest[name] = parameters[name]
    return environment, make_conninfo(**rest)


def _error_text(program: str, errors: str) -> str:
    """A program's error output, on one line."""
    lines = (line.strip() for line in errors.splitlines())
    messages = [line.removeprefix(f"{program}: ") for line in lines if line]
    return "; ".join(line.removeprefix("error: ").rstrip(".") for line in messages if not line.startswith("warning:"))[
        :600
    ]
