"""Load from a process of its own, on cores of its own: open (by the clock) or closed (a number of clients).

    with load_process(cores) as generator:
        seen = generator.carry_out(OpenLoad(...))          or  .begin(...) -> a future

Latencies count from when a request was due, however late it was sent: a server that stalls is charged for all
that it kept waiting.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Final

import uvloop

from deploy.bench.arrivals import Arrivals, arrival_times, steady
from tests.benchmarks.gateway.connection import Pool
from tests.benchmarks.gateway.cores import Cores
from tests.benchmarks.gateway.exchange import Exchange, Seen, Shot
from tests.benchmarks.gateway.http_request import Address

PATIENCE_SECONDS: Final = 60.0  # for the last answers
PREPARED_CONNECTIONS: Final = 32


@dataclass(frozen=True, kw_only=True)
class OpenLoad:
    """Requests at a rate, as they come (Poisson), for some seconds; `shots` in turn."""

    address: Address
    shots: Sequence[Shot]
    rate: float
    seconds: float
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class ClosedLoad:
    """Clients that each ask again when they are answered.

    They end after some seconds, or with so many requests in all, or so many whole answers. A refused client
    waits `pause_seconds` first. Clients begin spread over `ramp_seconds`.
    """

    address: Address
    shots: Sequence[Shot]
    num_clients: int
    seconds: float | None = None
    num_requests: int | None = None
    num_answers: int | None = None
    pause_seconds: float = 0.0
    ramp_seconds: float = 0.0


Load = OpenLoad | ClosedLoad


class Generator:
    """A process that carries out loads."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def begin(self, load: Load) -> "Future[list[Seen]]":
        """Starts a load, while this process does something else."""
        return self._pool.submit(_carry_out, load)

    def carry_out(self, load: Load) -> list[Seen]:
        """What became of each request, in the order of their ends."""
        return self.begin(load).result()


@contextmanager
def load_process(cores: Cores, count: int = 1) -> Iterator[Generator]:
    """A generator that may carry out `count` loads at once, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=os.sched_setaffinity, initargs=(0, cores)
    ) as pool:
        yield Generator(pool)


def _carry_out(load: Load) -> list[Seen]:
    return uvloop.run(_run_open(load) if isinstance(load, OpenLoad) else _run_closed(load))


async def _run_open(load: OpenLoad) -> list[Seen]:
    loop = asyncio.get_running_loop()
    times = arrival_times(Arrivals.POISSON, steady(load.rate, load.seconds), Random(load.seed))
    pool, over = Pool(load.address), loop.create_future()
    await pool.open(PREPARED_CONNECTIONS)

    def note(_: Seen) -> None:
        if len(book.seen) == len(times) and not over.done():
            over.set_result(None)

    book, began_at, shots = _Book(note), time.monotonic(), cycle(load.shots)
    for due_after in times:
        due_at = began_at + due_after
        loop.call_at(loop.time() + due_at - time.monotonic(), _fire, pool, book, next(shots), due_at)
    if times:
        await asyncio.wait([over], timeout=load.seconds + PATIENCE_SECONDS)
    book.give_up()
    pool.close()
    return book.seen


def _fire(pool: Pool, book: "_Book", shot: Shot, due_at: float) -> None:
    pool.send(book.begin(shot, due_at))


class _Book:
    """Exchanges under way, and what came of the others. `on_end` is told of each that ends."""

    def __init__(self, on_end: Callable[[Seen], None]) -> None:
        self.seen: list[Seen] = []
        self._on_end = on_end
        self._under_way: set[Exchange] = set()

    def begin(self, shot: Shot, due_at: float) -> Exchange:
        """One more."""
        exchange = Exchange(shot, due_at, lambda one: self._end(exchange, one))
        self._under_way.add(exchange)
        return exchange

    def give_up(self) -> None:
        """What has no end yet fails: it must not be missing from the figures."""
        for exchange in list(self._under_way):
            exchange.give_up(time.monotonic())

    def _end(self, exchange: Exchange, one: Seen) -> None:
        self._under_way.discard(exchange)
        self.seen.append(one)
        self._on_end(one)


async def _run_closed(load: ClosedLoad) -> list[Seen]:
    clients = _Clients(load)
    return await clients.run()


class _Clients:
    """The clients of a closed load."""

    def __init__(self, load: ClosedLoad) -> None:
        self._load = load
        self._book = _Book(self._note)
        self._pool = Pool(load.address)
        self._shots = cycle(load.shots)
        self._num_sent = 0
        self._num_answers = 0
        self._num_working = load.num_clients
        self._ends_at = time.monotonic() + load.ramp_seconds + (load.seconds or float("inf"))
        self._over = asyncio.get_running_loop().create_future()

    async def run(self) -> list[Seen]:
        """What became of all, once every client has had its last answer."""
        loop, load = asyncio.get_running_loop(), self._load
        for number in range(load.num_clients):
            loop.call_later(load.ramp_seconds * number / load.num_clients, self._next)
        patience = None if load.seconds is None else load.ramp_seconds + load.seconds + PATIENCE_SECONDS
        await asyncio.wait([self._over], timeout=patience)
        self._book.give_up()
        self._pool.close()
        return self._book.seen

    @property
    def _has_enough(self) -> bool:
        load = self._load
        return self._num_sent == load.num_requests or (
            load.num_answers is not None and self._num_answers >= load.num_answers
        )

    def _next(self) -> None:
        now = time.monotonic()
        if now >= self._ends_at or self._has_enough:
            self._retire()
            return
        self._num_sent += 1
        self._pool.send(self._book.begin(next(self._shots), now))

    def _note(self, one: Seen) -> None:
        self._num_answers += one.is_complete
        loop = asyncio.get_running_loop()
        if one.error is not None and self._load.pause_seconds > 0:
            loop.call_later(self._load.pause_seconds, self._next)
        else:
            loop.call_soon(self._next)

    def _retire(self) -> None:
        self._num_working -= 1
        if self._num_working == 0 and not self._over.done():
            self._over.set_result(None)
