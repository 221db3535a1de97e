"""Settling again, late, or by two at once changes nothing that is settled."""

import pytest

from gateway import settlement
from gateway.db import Database
from gateway.metering import Metering
from gateway.quotas import queries as quotas
from gateway.quotas.held import Held
from gateway.settlement import Lost, Spent, Voided
from gateway.usage.outcome import Outcome
from tests.builders.store import make_customer, reserve, used
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

LEDGER = "SELECT prompt_tokens, completion_tokens, outcome FROM usage_event"
AVAILABLE = "SELECT available FROM quota_bucket"


@pytest.fixture
async def held(database: Database) -> Held:
    """A live request that holds 30 of its tenant's 60 tokens; its gateway is gone."""
    customer = await make_customer(database, tokens_per_minute=60)
    metering = Metering(database, "gone")
    await metering.start()
    await reserve(metering, customer.caller, prompt=10, output=20)
    async with database.transaction() as connection:
        (held,) = await quotas.held_by(connection, epoch=metering.epoch)
    await metering.stop()
    return held


def finished(held: Held) -> Spent:
    return Spent(held=held, usage=used(10, 5), outcome=Outcome.FINISHED)


async def test_the_same_settlement_again_moves_nothing(
    database: Database, database_url: str, held: Held
) -> None:
    await settlement.write(database, [finished(held)])
    await settlement.write(database, [finished(held)])
    assert rows(database_url, LEDGER) == [(10, 5, "finished")]
    assert value(database_url, AVAILABLE) == pytest.approx(45, abs=1)


async def test_what_is_settled_cannot_be_lost(database: Database, database_url: str, held: Held) -> None:
    await settlement.write(database, [finished(held)])
    await settlement.write(database, [Lost(held=held)])
    assert rows(database_url, LEDGER) == [(10, 5, "finished")]


async def test_what_was_lost_keeps_its_tokens_spent(
    database: Database, database_url: str, held: Held
) -> None:
    await settlement.write(database, [Lost(held=held)])
    assert rows(database_url, LEDGER) == [(0, 0, "lost")]
    assert value(database_url, AVAILABLE) == pytest.approx(30, abs=1)


async def test_what_never_began_is_given_back_and_not_in_the_ledger(
    database: Database, database_url: str, held: Held
) -> None:
    await settlement.write(database, [Voided(request_id=held.request_id, tenant=held.tenant)])
    assert rows(database_url, LEDGER) == []
    assert value(database_url, AVAILABLE) == pytest.approx(60)
    assert value(database_url, "SELECT count(*) FROM reservation") == 0


async def test_what_is_used_beyond_what_was_held_is_owed(
    database: Database, database_url: str, held: Held
) -> None:
    await settlement.write(database, [Spent(held=held, usage=used(10, 90), outcome=Outcome.FINISHED)])
    assert value(database_url, AVAILABLE) == pytest.approx(60 - 100, abs=1)


async def test_another_tenant_cannot_end_a_request(database: Database, database_url: str, held: Held) -> None:
    stranger = await make_customer(database, "stranger")
    await settlement.write(database, [Voided(request_id=held.request_id, tenant=stranger.tenant.id)])
    assert value(database_url, "SELECT count(*) FROM reservation") == 1
