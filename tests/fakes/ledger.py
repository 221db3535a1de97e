"""Books without a store: every reservation and every settlement, and an alarm when one is settled twice."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import RequestClass, Usage
from gateway.keys.caller import Caller
from gateway.quotas.reservation import RateState, Reservation
from gateway.usage.outcome import Outcome


@dataclass(frozen=True)
class Settled:
    """What was written down of one request."""

    usage: Usage
    outcome: Outcome


class FakeLedger:
    """Grants everything unless `failure` is set; grants at most `most_output` tokens of output."""

    epoch = 1

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.most_output = 10_000
        self.open: dict[str, Reservation] = {}
        self.settled: list[Settled] = []
        self.classes: list[RequestClass] = []
        self._changed = asyncio.Condition()

    async def reserve(
        self,
        *,
        request_id: str,
        caller: Caller,
        model: str,
        request_class: RequestClass,
        prompt_tokens: int,
        output_cap: int,
        output_floor: int,
    ) -> Reservation:
        """A reservation; raises `failure` when it is set."""
        if self.failure is not None:
            raise self.failure
        output = min(output_cap, self.most_output)
        reservation = Reservation(
            request_id=request_id,
            tenant=caller.tenant,
            reserved_tokens=prompt_tokens + output,
            max_output_tokens=output,
            requests=RateState(limit=8, remaining=7, reset_seconds=0.25),
            tokens=RateState(limit=60_000, remaining=59_000, reset_seconds=61),
        )
        self.open[request_id] = reservation
        self.classes.append(request_class)
        return reservation

    async def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Writes a settlement down."""
        async with self._changed:
            del self.open[reservation.request_id]  # KeyError: settled twice
            self.settled.append(Settled(usage, outcome))
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until settlements make `condition` true."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(condition)
