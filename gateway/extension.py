"""Pays for more of an answer while it is generated: ahead, so that the engine rarely waits for it.

tokens arrive ── what is paid for is nearly used up ── ledger: more credit ── engine: go on, or end there
"""

import asyncio
import logging
from typing import Final, Protocol

from gateway.engines.stream import EngineStream
from gateway.quotas.reservation import Payment, Reservation

TOKENS_AHEAD: Final = 64  # about as many as are generated while idle credit comes back from elsewhere

logger = logging.getLogger(__name__)


class Payer(Protocol):
    """Finds more credit for what is live (`gateway.metering.Metering`)."""

    async def extend(self, reservation: Reservation) -> Payment:
        """Pays for more output; says so when there is no more."""


class Engines(Protocol):
    """Reaches the engine that has a request (`gateway.dispatch.Dispatcher`)."""

    def extend(self, stream: EngineStream, *, paid_tokens: int, is_last: bool) -> None:
        """Tells it how much output is paid for."""


class Extension:
    """How far one answer is paid for. `ended_by` names what ran out, once nothing more is to be had."""

    def __init__(
        self, payer: Payer, engines: Engines, reservation: Reservation, stream: EngineStream
    ) -> None:
        self.ended_by: str | None = None
        self._payer = payer
        self._engines = engines
        self._reservation = reservation
        self._stream = stream
        self._paying: asyncio.Task[None] | None = None

    def note(self, num_tokens: int) -> None:
        """So many tokens have been generated. Begins to pay for more when it is time."""
        paid = self._reservation.paid_tokens
        is_whole = paid >= self._reservation.output_cap
        if is_whole or self.ended_by is not None or self._paying is not None:
            return
        if num_tokens + TOKENS_AHEAD >= paid:
            self._paying = asyncio.create_task(self._pay())

    def num_tokens_until_due(self, num_tokens: int) -> int:
        """After so many more tokens `note` must be called, at least 1; what is paid for never needs it."""
        paid = self._reservation.paid_tokens
        is_whole = paid >= self._reservation.output_cap
        return max(1, (paid if is_whole else paid - TOKENS_AHEAD) - num_tokens)

    def stop(self) -> None:
        """The answer is over."""
        if self._paying is not None:
            self._paying.cancel()

    async def _pay(self) -> None:
        try:
            payment = await self._payer.extend(self._reservation)
        except Exception:  # else the answer would keep its place and wait until its time is over
            logger.exception("more of an answer could not be paid for")
            payment = Payment(paid_tokens=self._reservation.paid_tokens, ended_by="error")
        self.ended_by = payment.ended_by
        is_last = payment.ended_by is not None
        self._engines.extend(self._stream, paid_tokens=payment.paid_tokens, is_last=is_last)
        self._paying = None
