"""The interactive and the offline queue of one model. Knows order, not engines."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from engine.core.fair_share import FairQueue
from engine.protocol import RequestClass
from gateway.queues.policy import next_class

Item = TypeVar("Item")


class ClassQueues(Generic[Item]):
    """Two queues, each fair by tokens and weight between tenants."""

    def __init__(self) -> None:
        self._queues: dict[RequestClass, FairQueue[Item]] = {
            RequestClass.INTERACTIVE: FairQueue(),
            RequestClass.OFFLINE: FairQueue(),
        }

    def push(
        self,
        *,
        request_class: RequestClass,
        tenant: str,
        key: str,
        item: Item,
        cost: float = 1.0,
        weight: float = 1.0,
    ) -> None:
        """Puts an item at the end of its tenant's line in its class. When it is taken, it counts `cost`."""
        self._queues[request_class].push(tenant=tenant, key=key, item=item, cost=cost, weight=weight)

    def next_class(self) -> RequestClass | None:
        """The class to be served next, or None when nobody waits."""
        return next_class(
            num_interactive=self.count(RequestClass.INTERACTIVE), num_offline=self.count(RequestClass.OFFLINE)
        )

    def pop(self, request_class: RequestClass) -> Item:
        """Takes the next item of a class. Raises LookupError when nobody waits."""
        return self._queues[request_class].pop()

    def remove(self, key: str) -> Item | None:
        """Takes an item out wherever it stands; None when it is not waiting."""
        for queue in self._queues.values():
            if (item := queue.remove(key)) is not None:
                return item
        return None

    def tenants(self, request_class: RequestClass) -> Iterator[str]:
        """Whose requests of a class wait."""
        return self._queues[request_class].tenants

    def head(self, request_class: RequestClass, tenant: str) -> Item:
        """The first that waits of a tenant's; there must be one."""
        return self._queues[request_class].head(tenant)

    def count(self, request_class: RequestClass) -> int:
        """How many of a class wait."""
        return len(self._queues[request_class])

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __iter__(self) -> Iterator[Item]:
        for queue in self._queues.values():
            yield from queue
