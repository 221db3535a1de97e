"""A few threads for what waits for disks and buckets, so that nothing else of the process does."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

NUM_THREADS: Final = 4

Result = TypeVar("Result")


class FileThreads:
    """Runs what blocks. What has begun comes to its end, also where nobody waits for it any more."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="files")

    async def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns, or raises."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, work))

    def close(self) -> None:
        """Waits for what has begun."""
        self._pool.shutdown()
