"""The ledger of batches' items, as `gateway.generation` wants one: how each ended waits here for its result.

A request of a person is settled on the spot. An item's use is charged with its result, in one transaction, so
here its settlement is only noted; the worker takes it and either records the item or gives it up.
"""

import asyncio

import msgspec

from engine.protocol import RequestClass, Usage
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.quotas.reservation import Demand, Payment, Reservation
from gateway.usage.outcome import Outcome


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How an item's request ended. Whoever takes it lets go of what the reservation holds."""

    reservation: Reservation
    usage: Usage
    outcome: Outcome


class ItemLedger:
    """Reserves out of a process's credit, and keeps how each request ended until that is taken."""

    def __init__(self, metering: Metering) -> None:
        self._metering = metering
        self._open: dict[str, asyncio.Future[Settlement]] = {}

    @property
    def epoch(self) -> int:
        """The number of this life of the process."""
        return self._metering.epoch

    # --- for the generation ------------------------------------------------------------------------------

    async def reserve(
        self, *, request_id: str, caller: Caller, model: str, request_class: RequestClass, demand: Demand
    ) -> Reservation:
        """Takes what counts for items. Raises LimitReached, InvalidRequest, StoreUnavailable."""
        assert request_class is RequestClass.OFFLINE
        reservation = await self._metering.reserve_item(
            request_id=request_id, caller=caller, model=model, demand=demand
        )
        self._open[request_id] = asyncio.get_running_loop().create_future()
        return reservation

    async def extend(self, reservation: Reservation) -> Payment:
        """Pays for more output."""
        return await self._metering.extend(reservation)

    def reached(self, reservation: Reservation, *, output_tokens: int) -> None:
        """Nothing: an item's output reaches nobody before it is recorded."""

    def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Notes how it ended."""
        ended = self._open[reservation.request_id]
        if not ended.done():
            ended.set_result(Settlement(reservation=reservation, usage=usage, outcome=outcome))

    # --- for the worker ----------------------------------------------------------------------------------

    async def settlement(self, request_id: str) -> Settlement | None:
        """How a request ended, once that is known; None: nothing was reserved for it."""
        ended = self._open.get(request_id)
        if ended is None:
            return None
        settlement = await ended
        del self._open[request_id]
        return settlement

    def abandon(self, request_id: str) -> None:
        """Nobody will ask how it ended: what it holds is let go as soon as it has."""
        ended = self._open.get(request_id)
        if ended is not None:
            ended.add_done_callback(self._give_up)

    def _give_up(self, ended: "asyncio.Future[Settlement]") -> None:
        reservation = ended.result().reservation
        del self._open[reservation.request_id]
        self._metering.give_up_item(reservation)
