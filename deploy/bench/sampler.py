"""Looks at a server's Prometheus pages once a second while a run is under way. Effects only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from deploy.bench.exposition import Sample, sample_of
from deploy.bench.server import Server
from deploy.failure import Failure

LOOK_EVERY_SECONDS: Final = 1.0


@asynccontextmanager
async def sampling(
    server: Server, urls: Sequence[str], seconds: Callable[[], float]
) -> AsyncIterator[list[Sample]]:
    """The samples, growing until the block ends; none without URLs. `seconds` is the run's clock.

    Raises Failure when a page cannot be had at first; one that is missed later is left out.
    """
    samples: list[Sample] = []
    if not urls:
        yield samples
        return
    await _look(server, urls, 0.0)
    looking = asyncio.create_task(_keep_looking(server, urls, seconds, samples))
    try:
        yield samples
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _keep_looking(
    server: Server, urls: Sequence[str], seconds: Callable[[], float], samples: list[Sample]
) -> None:
    while True:
        with suppress(Failure):  # a busy server may miss one; the plot has a hole then
            samples.append(await _look(server, urls, seconds()))
        await asyncio.sleep(LOOK_EVERY_SECONDS)


async def _look(server: Server, urls: Sequence[str], at_seconds: float) -> Sample:
    pages = [await server.page(url) for url in urls]
    try:
        return sample_of(pages, at_seconds)
    except ValueError as error:
        raise Failure(f"{', '.join(urls)} is no Prometheus page: {error}") from error
