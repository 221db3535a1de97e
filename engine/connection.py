"""One gateway (or observer) on the other end of a WebSocket, and how many of its requests are live."""

import asyncio

from engine import protocol
from engine.outbox import Outbox


class Connection:
    """One gateway (or observer) that said hello."""

    def __init__(self, hello: protocol.Hello) -> None:
        self.hello = hello
        self.outbox = Outbox()
        self.num_live = 0  # requests that are not over
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def add_request(self) -> None:
        """One more request of this connection is live."""
        self.num_live += 1
        self.is_idle.clear()

    def end_request(self) -> None:
        """One of them is over."""
        self.num_live -= 1
        if self.num_live == 0:
            self.is_idle.set()
