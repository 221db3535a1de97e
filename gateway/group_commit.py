"""Work that arrives while a commit is under way goes together in the next one.

It knows neither what is committed nor where; a group of one costs no waiting.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from gateway.errors import GatewayError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_GROUP = 256  # items in one transaction


class GroupCommit(Generic[Item, Result]):
    """One commit at a time. `commit` answers a group's items in their order, or fails for all of them."""

    def __init__(self, commit: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]) -> None:
        self._commit = commit
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def submit(self, item: Item) -> "asyncio.Future[Result]":
        """Queues at once, without awaiting; the future resolves when the item's group is committed."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return future

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted has been answered."""
        return self._runner is None

    async def drain(self) -> None:
        """Returns when everything submitted so far has been answered."""
        while self._runner is not None:
            await asyncio.wait({self._runner})

    def cancel(self) -> None:
        """Gives up what is not yet committed."""
        if self._runner is not None:
            self._runner.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                num_items = min(len(self._waiting), MAX_GROUP)
                await self._commit_group([self._waiting.popleft() for _ in range(num_items)])
        finally:
            self._runner = None
            while self._waiting:  # only when cancelled
                self._waiting.popleft()[1].cancel()

    async def _commit_group(self, group: Sequence[tuple[Item, "asyncio.Future[Result]"]]) -> None:
        try:
            results = await self._commit([item for item, _ in group])
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except GatewayError as error:  # foreseeable, and the same for each of them
            _fail(group, error)
        except Exception as error:
            await self._without_the_culprit(group, error)
        else:
            for (_, future), result in zip(group, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _without_the_culprit(
        self, group: Sequence[tuple[Item, "asyncio.Future[Result]"]], error: Exception
    ) -> None:
        """One bad item must not fail the others: each goes again, alone."""
        if len(group) == 1:
            _fail(group, error)
            return
        for member in group:
            await self._commit_group([member])


def _fail(group: Sequence[tuple[Item, "asyncio.Future[Result]"]], error: Exception) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)
