"""Runs what a supervising command starts until Ctrl-C or SIGTERM, which may come while it still starts."""

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from deploy.supervisor import Say, Supervisor

SAME_SIGNAL_SECONDS = 1.0  # one Ctrl-C may arrive twice: from the terminal, and passed on by a wrapper
Start = Callable[[AsyncExitStack], Coroutine[Any, Any, str]]


async def run_until_stopped(start: Start, supervisor: Supervisor, say: Say) -> None:
    """Prints what `start` comes to and waits for the end; what it left at its exit stack is stopped then.

    A second signal ends the supervisor's children without waiting. Raises the one-line error of whatever
    cannot start.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    hurry_from = math.inf

    def on_signal() -> None:
        nonlocal hurry_from
        if loop.time() >= hurry_from:
            supervisor.hurry()
        if not stop.is_set():
            hurry_from = loop.time() + SAME_SIGNAL_SECONDS
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as at_exit:
        starting = asyncio.create_task(start(at_exit))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            print(_result(starting), flush=True)
            await stopping
        say("stopping; running answers may finish, Ctrl-C again ends them")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def _result(starting: asyncio.Task[str]) -> str:
    """What the start came to; of several parts that failed at once, the first tells why."""
    try:
        return starting.result()
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
