"""Which engines there are: configured addresses, each host name expanded to every address behind it.

It holds one EngineClient per address and picks the one with most room. It knows no queue and no request.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from engine.protocol import Report, RequestClass, RequestRecord
from gateway.engines.client import EngineAddress, EngineClient, EngineUnreachableError

logger = logging.getLogger(__name__)

LOOK_UP_EVERY_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class LastRecords:
    """What engines did for a life that is over. `is_complete`: every engine that there is has answered."""

    records: tuple[RequestRecord, ...]
    is_complete: bool


class EngineDirectory:
    """The engines of this gateway. `make_client` builds a client for an address; it is started here."""

    def __init__(self, urls: Iterable[str], make_client: Callable[[EngineAddress], EngineClient]) -> None:
        self._urls = tuple(urls)
        self._make_client = make_client
        self._clients: dict[EngineAddress, EngineClient] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def clients(self) -> tuple[EngineClient, ...]:
        """Every engine known, connected or not."""
        return tuple(self._clients.values())

    async def start(self) -> None:
        """Begins to connect to every address, and to follow the addresses behind host names."""
        await self._look_up()
        self._task = asyncio.create_task(self._follow(), name="engine directory")

    async def stop(self) -> None:
        """Closes every connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(client.stop() for client in self._clients.values()))

    def serving(self, model: str) -> list[EngineClient]:
        """The connected engines that serve a model."""
        return [
            client
            for client in self._clients.values()
            if client.connected and client.description is not None and client.description.model == model
        ]

    def with_room(self, model: str, request_class: RequestClass) -> EngineClient | None:
        """The engine that takes most more requests of this class, or None when all are full."""
        best = max(self.serving(model), key=lambda client: client.room(request_class), default=None)
        return best if best is not None and best.room(request_class) > 0 else None

    def window(self, model: str, request_class: RequestClass) -> int:
        """How many requests of a class the engines that serve a model take from us at once."""
        return sum(client.granted(request_class) for client in self.serving(model))

    async def end_life(self, *, replica: str, epoch: int) -> LastRecords:
        """Ends one life of a gateway at every engine; what they did for it, as far as they say so in time."""
        asked = [asyncio.create_task(_reported(client, replica, epoch)) for client in self.clients]
        if not asked:
            return LastRecords(records=(), is_complete=False)
        try:
            answered, _ = await asyncio.wait(asked, timeout=REPORT_SECONDS)
            reports = [report for task in answered if (report := task.result()) is not None]
        finally:
            for task in asked:
                task.cancel()
        records = tuple(record for report in reports for record in report.records)
        return LastRecords(records=records, is_complete=len(reports) == len(asked))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_UP_EVERY_SECONDS)
            await self._look_up()

    async def _look_up(self) -> None:
        found = [await self._expand(url) for url in self._urls]
        wanted = {address for addresses in found for address in addresses}
        for address in wanted - self._clients.keys():
            client = self._clients[address] = self._make_client(address)
            client.start()
        for address in self._clients.keys() - wanted:
            if not _is_busy(self._clients[address]):
                await self._clients.pop(address).stop()

    async def _expand(self, url: str) -> list[EngineAddress]:
        """An address per IP behind the URL's host; what is known already while the name service is away."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for a name that no name can be
            logger.warning("cannot look up %s: %s", parts.hostname, error)
            return [address for address in self._clients if address.url == url]
        return [
            EngineAddress(url=url, host=host) for host in sorted({str(answer[4][0]) for answer in answers})
        ]


async def _reported(client: EngineClient, replica: str, epoch: int) -> Report | None:
    try:
        return await client.report_ended(replica=replica, epoch=epoch)
    except EngineUnreachableError:
        return None


def _is_busy(client: EngineClient) -> bool:
    """An engine that a name no longer stands for finishes first what it has of ours."""
    return client.connected and client.num_open > 0
