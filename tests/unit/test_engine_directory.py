"""Engines behind a host name come and go; requests under way at one of them do not end with that."""

import asyncio

import pytest

from engine.protocol import Report, RequestRecord, Usage
from gateway.engines.client import EngineAddress, EngineUnreachableError
from gateway.engines.directory import EngineDirectory, LastRecords

URL = "ws://engines:8090"


class Client:
    """A connection in miniature."""

    def __init__(self, address: EngineAddress) -> None:
        self.address = address
        self.connected = True
        self.num_open = 0
        self.is_stopped = False
        self.reported: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

    async def report_ended(self, *, replica: str, epoch: int) -> Report:
        return await self.reported

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.is_stopped = True


class Names:
    """A name service, and a directory that asks it."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.clients: dict[str, Client] = {}
        self.directory = EngineDirectory([URL], self._make_client)  # type: ignore[arg-type]

    async def getaddrinfo(self, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (host, 8090)) for host in self.hosts]

    def _make_client(self, address: EngineAddress) -> Client:
        assert address.host is not None
        return self.clients.setdefault(address.host, Client(address))

    async def become(self, *hosts: str) -> None:
        self.hosts = list(hosts)
        await self.directory._look_up()


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", made.getaddrinfo)
    return made


async def test_a_second_engine_leaves_the_first_one_alone(names: Names) -> None:
    await names.become("10.0.0.1")
    await names.become("10.0.0.1", "10.0.0.2")
    assert len(names.directory.clients) == 2
    assert not names.clients["10.0.0.1"].is_stopped


async def test_an_engine_whose_address_is_gone_is_let_go(names: Names) -> None:
    await names.become("10.0.0.1", "10.0.0.2")
    await names.become("10.0.0.2")
    assert names.clients["10.0.0.1"].is_stopped
    assert not names.clients["10.0.0.2"].is_stopped


async def test_an_engine_whose_address_is_gone_finishes_what_it_has(names: Names) -> None:
    await names.become("10.0.0.1", "10.0.0.2")
    names.clients["10.0.0.1"].num_open = 1
    await names.become("10.0.0.2")
    assert not names.clients["10.0.0.1"].is_stopped
    names.clients["10.0.0.1"].num_open = 0
    await names.become("10.0.0.2")
    assert names.clients["10.0.0.1"].is_stopped


async def test_an_engine_that_hangs_keeps_nobody_from_hearing_the_others(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.engines.directory.REPORT_SECONDS", 0.05)
    await names.become("10.0.0.1", "10.0.0.2", "10.0.0.3")
    used = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=2)
    names.clients["10.0.0.2"].reported.set_result(Report("dead", 1, (RequestRecord("r", used),)))
    names.clients["10.0.0.3"].reported.set_exception(EngineUnreachableError())
    last = await names.directory.end_life(replica="dead", epoch=1)
    assert last == LastRecords(records=(RequestRecord("r", used),), is_complete=False)


def test_an_address_shows_what_its_name_stands_for_and_nothing_twice() -> None:
    assert EngineAddress(url=URL, host="10.0.0.1").name == f"{URL} (10.0.0.1)"
    assert EngineAddress(url="ws://10.0.0.1:1", host="10.0.0.1").name == "ws://10.0.0.1:1"
