"""Password hashing with argon2id, in a small thread pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pwdlib import PasswordHash
from pwdlib.exceptions import UnknownHashError
from pwdlib.hashers.argon2 import Argon2Hasher

from app.concurrency.cpu_affinity import become_background_thread

Result = TypeVar("Result")

#: Threads. A hash takes 64 MiB and some tens of milliseconds: password guessing must not exhaust the machine.
_MAX_THREADS = 2


class Passwords:
    """Hashes and verifies passwords. Verifying takes as long for an unknown user as for a known one."""

    def __init__(self, hasher: PasswordHash | None = None) -> None:
        self._hasher = hasher or PasswordHash((Argon2Hasher(),))
        self._threads = ThreadPoolExecutor(
            _MAX_THREADS, thread_name_prefix="passwords", initializer=become_background_thread
        )
        self._dummy_hash: str | None = None

    async def hash(self, password: str) -> str:
        """Returns argon2's encoded hash of ``password``: parameters, a new salt and the hash."""
        return await self._run(self._hasher.hash, password)

    async def verify(self, password: str, hashed: str | None) -> tuple[bool, str | None]:
        """Returns whether the password matches, and a new hash to store if argon2's parameters have changed, else None.

        Args:
            hashed: the stored hash, or None for an unknown user or one without a password: never matches, and takes
                as long.
        """
        if hashed is None:
            if self._dummy_hash is None:
                self._dummy_hash = await self.hash("dummy")
            await self._run(self._hasher.verify, password, self._dummy_hash)
            return False, None
        try:
            return await self._run(self._hasher.verify_and_update, password, hashed)
        except UnknownHashError:  # written by another program, or damaged
            return False, None

    def close(self) -> None:
        """Waits for the hashes being computed."""
        self._threads.shutdown()

    async def _run(self, work: Callable[..., Result], *arguments: str) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
