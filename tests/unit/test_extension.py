"""An answer that is paid for while it is generated comes to its end, whatever becomes of the payment."""

import asyncio
from dataclasses import dataclass, field

from gateway.engines.stream import EngineStream
from gateway.extension import Extension
from gateway.quotas.reservation import Payment, Reservation
from gateway.quotas.wallet import Hold
from gateway.tenants.ids import TenantId
from tests.builders.engine_messages import generate_request


class BrokenPayer:
    async def extend(self, _: Reservation) -> Payment:
        raise RuntimeError("a bug")


@dataclass
class Engines:
    """What they were told: so much is paid for, and whether more will be."""

    told: list[tuple[int, bool]] = field(default_factory=list)

    def extend(self, _: EngineStream, *, paid_tokens: int, is_last: bool) -> None:
        self.told.append((paid_tokens, is_last))


async def test_a_bug_in_the_books_ends_the_answer_where_it_is_paid_for() -> None:
    """It waited at the engine, on its seat, until its time was over."""
    hold = Hold(parts={}, output_tokens=256)
    reservation = Reservation(
        request_id="r", tenant=TenantId("t"), output_cap=1_000, requests=None, tokens=None, hold=hold
    )
    engines = Engines()
    extension = Extension(BrokenPayer(), engines, reservation, EngineStream(generate_request()))
    extension.note(250)
    await asyncio.sleep(0)
    assert engines.told == [(256, True)]
    assert extension.ended_by == "error"
