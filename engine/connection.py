"""One gateway (or observer) on the other end of a WebSocket, and how many of its requests are live."""

import asyncio

from engine import protocol
from engine.outbox import Outbox


class Connection:
    """One gateway (or observer) that said hello."""

    def __init__(self, hello: protocol.Hello) -> None:
        self.hello = hello
        self.outbox = Outbox()
        self._accounts: dict[str, bytes] = {}  # of requests that are not over, by id
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    @property
    def num_live(self) -> int:
        """Requests of this connection that are not over."""
        return len(self._accounts)

    def add_request(self, request_id: str, account: bytes) -> None:
        """One more request of this connection is live."""
        self._accounts[request_id] = account
        self.is_idle.clear()

    def end_request(self, request_id: str) -> bytes:
        """One of them is over; its account."""
        account = self._accounts.pop(request_id, b"")
        if not self._accounts:
            self.is_idle.set()
        return account
