"""Many clients of one tenant in a process of their own: reserve, use some, settle, again."""

import asyncio
import random
import time
from dataclasses import dataclass

from gateway.db import Database
from gateway.errors import LimitReached, StoreUnavailable
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.quotas.reservation import Reservation
from gateway.usage.outcome import Outcome
from tests.builders.store import reserve, used


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What one process got."""

    num_granted: int
    num_refused: int
    num_tokens_used: int
    spans: tuple[tuple[float, float], ...]
    """From when to when each request held what it was granted; Unix time."""


def run_clients(url: str, name: str, caller: Caller, *, num_clients: int, num_turns: int) -> Tally:
    """The body of the process; needs its own name, as request ids start with it."""
    return asyncio.run(_run(url, name, caller, num_clients=num_clients, num_turns=num_turns))


async def _run(url: str, name: str, caller: Caller, *, num_clients: int, num_turns: int) -> Tally:
    database = Database.connect(url, application_name=name, pool_size=4)
    metering = Metering(database, name)
    await metering.start()
    turns = await asyncio.gather(
        *(
            _client(metering, caller, f"{name}-{number}", random.Random(number), num_turns)
            for number in range(num_clients)
        )
    )
    await metering.stop()
    await database.close()
    granted = [turn for client in turns for turn in client if turn is not None]
    return Tally(
        num_granted=len(granted),
        num_refused=num_clients * num_turns - len(granted),
        num_tokens_used=sum(turn.num_tokens for turn in granted),
        spans=tuple((turn.began_at, turn.ended_at) for turn in granted),
    )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request that was let in."""

    num_tokens: int
    began_at: float
    ended_at: float


async def _client(
    metering: Metering, caller: Caller, name: str, chance: random.Random, num_turns: int
) -> list[Turn | None]:
    """Each turn; None where refused."""
    return [
        await _turn(metering, caller, f"{name}-{turn}", num_output_tokens=chance.randint(0, 20))
        for turn in range(num_turns)
    ]


async def _turn(
    metering: Metering, caller: Caller, request_id: str, *, num_output_tokens: int
) -> Turn | None:
    try:
        reservation = await _reserve_patiently(metering, caller, request_id)
    except LimitReached:
        await asyncio.sleep(0.01)
        return None
    began_at = time.time()
    await asyncio.sleep(0.001 * num_output_tokens)
    ended_at = time.time()
    metering.settle(reservation, used(10, num_output_tokens), Outcome.FINISHED)
    return Turn(num_tokens=10 + num_output_tokens, began_at=began_at, ended_at=ended_at)


async def _reserve_patiently(metering: Metering, caller: Caller, request_id: str) -> Reservation:
    """As clients do that are told to ask again: beside other work, the store may be too slow for so many."""
    while True:
        try:
            return await reserve(metering, caller, prompt=10, output=20, request_id=request_id)
        except StoreUnavailable as unavailable:
            await asyncio.sleep(unavailable.retry_after_seconds or 1)
