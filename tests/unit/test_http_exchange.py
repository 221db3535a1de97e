"""What is under way for a client ends when the client leaves, and only its own cancelling is swallowed."""

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any

import pytest

from gateway.api.context import keep_context, make_context
from gateway.api.exchange import Exchange


class Client:
    """One end of an exchange that says nothing until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def carry(self, work: Awaitable[None]) -> None:
        """What a server does for this client."""
        scope: dict[str, Any] = {"headers": [], "state": {}}
        keep_context(scope, make_context(scope, now=0.0))
        self.exchange = Exchange(scope, self._receive, self._send, write_timeout_seconds=0.01)
        self.exchange.watch()
        await self.exchange.carry(work)

    async def _receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, _: MutableMapping[str, Any]) -> None:
        """It reads nothing."""
        await asyncio.Event().wait()


def num_cancellings() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def endless(ended: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


async def test_work_for_a_client_that_leaves_is_cancelled_and_the_request_goes_on_to_its_end() -> None:
    client, ended = Client(), asyncio.Event()
    asyncio.get_running_loop().call_soon(client.left.set)
    async with asyncio.timeout(5):
        await client.carry(endless(ended))
        await asyncio.sleep(0)  # nothing of the cancelling is left over
    assert ended.is_set()


async def test_a_client_that_does_not_read_and_then_leaves_has_left_once() -> None:
    client = Client()

    async def write() -> None:
        try:
            await client.exchange.stream(b"text")
        finally:
            client.left.set()
            await asyncio.sleep(0.01)  # so long it takes to let go what was held

    await client.carry(write())
    assert num_cancellings() == 0


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_server_that_cancels_the_request_is_obeyed(leaves: bool) -> None:
    client, ended = Client(), asyncio.Event()
    serving = asyncio.create_task(client.carry(endless(ended)))
    await asyncio.sleep(0)
    serving.cancel()
    if leaves:
        client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert ended.is_set()


async def test_nobody_watches_a_client_whose_answer_is_whole() -> None:
    client = Client()
    await client.carry(asyncio.sleep(0))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
