"""Hashes and checks operators' passwords with argon2id. Knows no store and no rule about their form.

A hash takes 64 MiB and tens of milliseconds of every core, so it runs in a thread and few run at once.
"""

import asyncio
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

MAX_CONCURRENT_HASHES: Final = 2


class Passwords:
    """argon2id with the library's default cost."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_HASHES)

    async def hash(self, password: str) -> str:
        """The encoded hash, with its own salt and cost."""
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether the password fits. None (no such account) takes as long as a real check and never fits."""
        if password_hash is None:
            await self.hash(password)
            return False
        async with self._slots:
            return await asyncio.to_thread(self._fits, password_hash, password)

    def _fits(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except (VerificationError, InvalidHashError):
            return False
