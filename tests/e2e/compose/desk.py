"""A support desk as docs/deploy.md sets one up: a folder, three secrets, docker compose."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tests.e2e.server import free_port
from tests.fork_server import ROOT

#: All that a server needs of this project.
FOLDER = (
    *("docker-compose.yml", "Dockerfile", ".dockerignore", ".env.example", "LICENSE"),
    *("requirements.txt", "requirements-torch.txt", "requirements-torch-cpu.txt"),
    *("app", "engine", "migrations", "prompts", "models/guide", "deploy"),
)
COMMAND_SECONDS = 300
BUILD_SECONDS = 3000  #: the first time on a slow line: torch is a large download
IMAGE = "deskmate-test:cpu"

#: What the tests add: an image and networks of their own, beside a desk that may run here; a model that never stops.
_OVERRIDE = """
services:
  app:
    image: {image}
    volumes: ["{model}:/endless:ro"]
  model-check:
    image: {image}
    volumes: ["{model}:/endless:ro"]
"""


class ComposeProject:
    """The folder, and ``docker compose`` in it."""

    def __init__(self, folder: Path, endless_model: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            name: value for name, value in os.environ.items() if not re.match(r"(APP|ENGINE|COMPOSE|DESKMATE)_", name)
        } | {"COMPOSE_PROJECT_NAME": f"deskmate-test-{secrets.token_hex(4)}"}
        for name in FOLDER:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, folder / name)
        (folder / "docker-compose.override.yml").write_text(_OVERRIDE.format(image=IMAGE, model=endless_model))

    def set_up(self) -> None:
        """Fill in the three secrets, and what keeps this desk out of another one's way."""
        text = (self.folder / ".env.example").read_text(encoding="utf-8")
        text = re.sub(r"^(\w+)=$", lambda line: f"{line[1]}={secrets.token_hex(32)}", text, flags=re.MULTILINE)
        (self.folder / ".env").write_text(text)
        self.configure(DESKMATE_PORT=self.port, FRONT_SUBNET="10.173.86.0/24", FRONT_RANGE="10.173.86.128/25")
        self.configure(PROXY_ADDRESS="10.173.86.10", APP_SHUTDOWN_SECONDS=3)

    def configure(self, **lines: object) -> None:
        with (self.folder / ".env").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in lines.items())

    @contextmanager
    def changed(self, **lines: object) -> Iterator[None]:
        """Lines of ``.env`` for a while; the desk is then up as it was before."""
        file = self.folder / ".env"
        before = file.read_text(encoding="utf-8")
        self.configure(**lines)
        try:
            yield
        finally:
            file.write_text(before, encoding="utf-8")
            self.up()

    @staticmethod
    def two_ports() -> str:
        """A range of two ports that nobody uses."""
        while True:
            first = free_port()
            with suppress(OSError), socket.create_server(("127.0.0.1", first + 1)):
                return f"{first}-{first + 1}"

    def secret(self, name: str) -> str:
        return str(re.findall(rf"^{name}=(.*)$", (self.folder / ".env").read_text(), re.MULTILINE)[-1])

    def try_compose(
        self, *arguments: str, given: bytes | None = None, to: BinaryIO | None = None, seconds: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", "compose", *arguments],
            cwd=self.folder,
            env=self._environment,
            input=given if given is not None else b"",
            stdout=to or subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
        )

    def compose(self, *arguments: str, **options: Any) -> str:
        """The output of a command that must succeed."""
        done = self.try_compose(*arguments, **options)
        if done.returncode:
            raise AssertionError(
                f"docker compose {' '.join(arguments)} ended with {done.returncode}:\n"
                f"{(done.stdout or b'').decode(errors='replace')}\n{done.stderr.decode(errors='replace')}\n"
                f"{self.log_tail()}"
            )
        return (done.stdout or b"").decode()

    def build(self) -> None:
        self.compose("build", "app", seconds=BUILD_SECONDS)

    def up(self) -> None:
        """Return once everything is healthy."""
        self.compose("up", "--detach", "--wait")

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "--all", "--quiet", service).strip()
        return dict(json.loads(docker("inspect", container))[0])

    def saved_characters(self) -> int:
        """Of the replies in flight, what the database has."""
        query = "SELECT coalesce(sum(length(content)), 0) FROM message WHERE status = 'streaming'"
        psql = ("psql", "--username=deskmate", "--tuples-only", "--no-align", f"--command={query}")
        return int(self.compose("exec", "-T", "db", *psql))

    def log_tail(self) -> str:
        done = self.try_compose("logs", "--no-color", "--tail", "40")
        return done.stdout.decode(errors="replace")

    def destroy(self) -> None:
        """Stop everything and throw every volume away."""
        self.compose("down", "--volumes", "--remove-orphans")


def docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], check=True, capture_output=True, timeout=COMMAND_SECONDS
    ).stdout.decode()
