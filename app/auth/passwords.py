"""Passwords: argon2id, computed beside the event loop and a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pwdlib import PasswordHash
from pwdlib.exceptions import UnknownHashError
from pwdlib.hashers.argon2 import Argon2Hasher

from app.concurrency.cpu_affinity import lower_thread_priority

Result = TypeVar("Result")

#: Each takes 64 MiB and some tens of milliseconds: whoever tries passwords must not take the machine with it.
_AT_ONCE = 2


class Passwords:
    """Hashes and verifies. Both take as long whoever is meant."""

    def __init__(self, hasher: PasswordHash | None = None) -> None:
        self._hasher = hasher or PasswordHash((Argon2Hasher(),))
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="passwords", initializer=lower_thread_priority)
        self._nobody: str | None = None

    async def hash(self, password: str) -> str:
        """argon2's text for ``password``: its parameters, a new salt and the hash."""
        return await self._run(self._hasher.hash, password)

    async def verify(self, password: str, hashed: str | None) -> tuple[bool, str | None]:
        """Whether it is that password, and a new hash to store where today's parameters are others.

        Args:
            hashed: None where there is no such person or no password: that takes as long, and is never right.
        """
        if hashed is None:
            if self._nobody is None:
                self._nobody = await self.hash("of nobody")
            await self._run(self._hasher.verify, password, self._nobody)
            return False, None
        try:
            return await self._run(self._hasher.verify_and_update, password, hashed)
        except UnknownHashError:  # of another program, or damaged
            return False, None

    def close(self) -> None:
        """Wait for what is being computed."""
        self._threads.shutdown()

    async def _run(self, work: Callable[..., Result], *arguments: str) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
