"""Looks at a batch until it has ended. A server that goes away meanwhile is waited for: the batch goes on."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from deploy.batch.server import Server, Unreachable
from deploy.batch.wire import Sighting

LOOK_EVERY_SECONDS: Final = 1.0
TRY_AGAIN_SECONDS: Final = 2.0


class View(Protocol):
    """What somebody sees of it."""

    def show(self, seen: Sighting) -> None:
        """The batch as it stands now."""

    def say(self, text: str) -> None:
        """Something else that whoever waits should know."""


async def watch(server: Server, batch_id: str, view: View) -> Sighting:
    """The batch as it ended. Raises Failure for what cannot be watched; the first look must succeed."""
    seen = await server.batch(batch_id)
    view.show(seen)
    while not seen.batch.is_over:
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        seen = await _next_look(server, batch_id, view.say)
        view.show(seen)
    return seen


async def _next_look(server: Server, batch_id: str, say: Callable[[str], None]) -> Sighting:
    """As soon as the server answers; says once that it does not, and that it does again."""
    is_away = False
    while True:
        try:
            seen = await server.batch(batch_id)
        except Unreachable as error:
            if not is_away:
                say(f"The server is away; the batch is kept. Trying again. ({error})")
            is_away = True
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        else:
            if is_away:
                say("The server is back.")
            return seen
