"""PostgreSQL's own programs for backups, called so that no password is seen in the list of processes."""

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


def dump(url: str, file: Path) -> None:
    """Write the database at ``url`` into ``file`` as it is committed now, and read it back as a check.

    Raises:
        MaintenanceError: pg_dump is missing, older than the server, or fails; says what it said.
    """
    _run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={file}", url=url)
    _run("pg_restore", f"--file={os.devnull}", str(file))  # everything is unpacked, nothing is restored


def load(url: str, file: Path) -> None:
    """Put everything from ``file`` into the database at ``url``, or nothing.

    Raises:
        MaintenanceError: pg_restore is missing or fails; says what it said.
    """
    _run("pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", str(file), url=url)


def tables(file: Path) -> set[str]:
    """The names of the tables in a backup.

    Raises:
        MaintenanceError: pg_restore is missing, or cannot read the file; says what it said.
    """
    return set(re.findall(r"^\d+; \d+ \d+ TABLE \S+ (\S+) ", _run("pg_restore", "--list", str(file)), re.MULTILINE))


def contents(file: Path, table: str) -> list[str]:
    """The rows of one table in a backup, as text.

    Raises:
        MaintenanceError: pg_restore is missing, or cannot read the file; says what it said.
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
        said = _said(program, done.stderr) or f"exit code {done.returncode}"
        advice = " Install the client programs of the server's version, or a later one." if "version" in said else ""
        raise MaintenanceError(f"{program} failed: {said}.{advice}")
    return done.stdout


def _connection(url: str) -> tuple[dict[str, str], str]:
    """How to reach the database: environment variables, the password's among them, and what has no variable."""
    _, parameters = create_engine(url).dialect.create_connect_args(make_url(url))
    environment, rest = {}, {}
    for option in pq.Conninfo.get_defaults():
        name = option.keyword.decode()
        if name not in parameters:
            continue
        if option.envvar and name != "dbname":
            environment[option.envvar.decode()] = str(parameters[name])
        elif not option.dispchar:  # "*" marks what is secret: such a connection fails, and says so
            rest[name] = parameters[name]
    return environment, make_conninfo(**rest)


def _said(program: str, errors: str) -> str:
    """What a program wrote about its failure, on one line."""
    lines = (line.strip() for line in errors.splitlines())
    told = [line.removeprefix(f"{program}: ") for line in lines if line]
    return "; ".join(line.removeprefix("error: ").rstrip(".") for line in told if not line.startswith("warning:"))[:600]
