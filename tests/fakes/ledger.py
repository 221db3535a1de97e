"""Books without a store: every reservation and every settlement, and an alarm when one is settled twice."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import RequestClass, Usage
from gateway.keys.caller import Caller
from gateway.quotas.reservation import Demand, Payment, RateState, Reservation
from gateway.quotas.wallet import Hold
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
        self.num_reached = 0  # by the request that got output last
        self.settled: list[Settled] = []
        self._changed = asyncio.Event()

    async def reserve(
        self,
        *,
        request_id: str,
        caller: Caller,
        model: str,
        request_class: RequestClass,
        demand: Demand,
    ) -> Reservation:
        """A reservation; raises `failure` when it is set."""
        if self.failure is not None:
            raise self.failure
        output = min(demand.output_cap, self.most_output)
        reservation = Reservation(
            request_id=request_id,
            tenant=caller.tenant,
            output_cap=output,
            hold=Hold(parts={}, output_tokens=output),
            requests=RateState(limit=8, remaining=7, reset_seconds=0.25),
            tokens=RateState(limit=60_000, remaining=59_000, reset_seconds=61),
        )
        self.open[request_id] = reservation
        self._note_change()
        return reservation

    async def extend(self, reservation: Reservation) -> Payment:
        """Never asked for: all is paid for from the beginning."""
        raise AssertionError(f"{reservation.request_id} is paid for")

    def reached(self, reservation: Reservation, *, output_tokens: int) -> None:
        """Of a request that is open."""
        assert reservation.request_id in self.open
        self.num_reached = output_tokens

    def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Writes a settlement down."""
        del self.open[reservation.request_id]  # KeyError: settled twice
        self.settled.append(Settled(usage, outcome))
        self._note_change()

    async def until_reserved(self) -> None:
        """Waits until some request holds a reservation."""
        await self._until(lambda: len(self.open) > 0)

    async def until_settled(self, *outcomes: Outcome) -> list[Usage]:
        """Waits until requests have ended in these ways, and no others; what each of them used."""
        await self._until(lambda: len(self.settled) >= len(outcomes))
        assert [row.outcome for row in self.settled] == list(outcomes)
        return [row.usage for row in self.settled]

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await self._changed.wait()
