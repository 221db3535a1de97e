"""A database whose answers arrive late: the store has answered, and who asked does not know it yet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database


@dataclass(frozen=True)
class LateAnswers:
    """`are_waiting` once there is one; they are held until `may_arrive`."""

    are_waiting: asyncio.Event = field(default_factory=asyncio.Event)
    may_arrive: asyncio.Event = field(default_factory=asyncio.Event)


class SlowDatabase(Database):
    """As any database, but for the transactions that begin within `late_answers`."""

    def __init__(self, connections: Any, **settings: Any) -> None:
        super().__init__(connections, **settings)
        self._late: LateAnswers | None = None

    @asynccontextmanager
    async def late_answers(self) -> AsyncIterator[LateAnswers]:
        """What is asked meanwhile is answered, and heard later."""
        self._late = answers = LateAnswers()
        yield answers
        self._late = None

    @asynccontextmanager
    async def system_transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction; committed before its answer is held."""
        late = self._late
        async with super().system_transaction() as connection:
            yield connection
        if late is not None:
            late.are_waiting.set()
            await late.may_arrive.wait()
