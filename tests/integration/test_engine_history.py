"""What engines say of themselves is stored once, however many gateways hear it and whoever of them dies."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from engine.protocol import EngineStatus, Guardrails, PrefixCounts, SloRow
from gateway.db import Database
from gateway.engine_administration import engine_history, guardrail_events, show_scheduler
from gateway.engine_history import EngineHistory
from gateway.engines.client import EngineAddress
from gateway.errors import StoreUnavailable
from tests.builders.engine_messages import engine_limits, engine_status
from tests.builders.engine_store import guardrail_event
from tests.builders.store_rows import rows, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

SINCE = datetime(2020, 1, 1, tzinfo=UTC)
NUM_SNAPSHOTS = "SELECT count(*) FROM engine_snapshot"
EVENTS = "SELECT instance, number FROM guardrail_event ORDER BY instance, number"


class Engine:
    """A connection that has heard what a test says."""

    def __init__(self) -> None:
        self.address = EngineAddress(url="ws://engine:1")
        self.status: EngineStatus | None = None

    def say(self, *numbers: int, instance: str = "life-1", **changes: Any) -> None:
        """A status with these events."""
        guardrails = Guardrails(level=1, events=tuple(guardrail_event(number) for number in numbers))
        self.status = engine_status(**{"instance": instance, "guardrails": guardrails, **changes})


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.say()
    return engine


@pytest.fixture
def histories(database: Database, engine: Engine) -> list[EngineHistory]:
    """Of two gateways."""
    return [EngineHistory(database, lambda: [engine]) for _ in range(2)]


async def write(histories: list[EngineHistory], now: float) -> None:
    await asyncio.gather(*(history.write(now) for history in histories))


async def test_of_two_gateways_one_stores_an_engines_figures(
    database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    began = datetime.now(UTC)
    for round_number in range(10):
        engine.say(step=round_number)
        await write(histories, now=10.0 * round_number)
    num_intervals = int((datetime.now(UTC) - began).total_seconds() // 10) + 2
    num_snapshots = value(database_url, NUM_SNAPSHOTS)
    assert isinstance(num_snapshots, int)
    assert 1 <= num_snapshots <= num_intervals


async def test_when_a_gateway_dies_another_stores_the_figures(
    database: Database, database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    await write(histories, now=0)
    async with database.system_transaction() as connection:  # ten seconds pass
        await connection.exec_driver_sql("UPDATE engine_snapshot SET at = at - interval '10 seconds'")
    engine.say()
    await histories[1].write(10)
    assert value(database_url, NUM_SNAPSHOTS) == 2


async def test_figures_are_what_operators_look_back_at(
    database: Database, engine: Engine, histories: list[EngineHistory]
) -> None:
    slo = (SloRow("ttft_p95_ms", target=1500.0, now=900.0, five_minutes=None, minutes_in_breach=0),)
    engine.say(fairness=0.98, prefix=PrefixCounts(100, 40), slo=slo, kv_blocks_used=3)
    await write(histories, now=0)
    (snapshot,) = await engine_history(database, since=SINCE)
    assert (snapshot.instance, snapshot.address, snapshot.model) == ("life-1", "ws://engine:1", "tiny")
    assert snapshot.at.timestamp() % 10 == 0
    figures = snapshot.figures
    assert figures["interactive"] == {"running": 0, "waiting": 0}
    assert (figures["fairness"], figures["kv_blocks_used"], figures["guardrail_level"]) == (0.98, 3, 1)
    assert figures["prefix"] == {"queried_tokens": 100, "hit_tokens": 40}
    assert figures["slo"][0]["now"] == 900.0
    assert figures["slo"][0]["five_minutes"] is None


async def test_every_event_is_stored_once_whoever_hears_it(
    database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    engine.say(1, 2)
    await write(histories, now=0)
    engine.say(2, 3, 4)  # 1 is no longer among the latest
    await write(histories, now=0.5)
    assert rows(database_url, EVENTS) == [("life-1", number) for number in (1, 2, 3, 4)]


async def test_events_of_an_engines_next_life_are_others(
    database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    engine.say(1)
    await write(histories, now=0)
    engine.say(1, instance="life-2")
    await write(histories, now=0.5)
    assert rows(database_url, EVENTS) == [("life-1", 1), ("life-2", 1)]
    assert rows(database_url, "SELECT instance FROM engine_instance") == [("life-2",)]


async def test_events_can_be_read_later_newest_first(
    database: Database, engine: Engine, histories: list[EngineHistory]
) -> None:
    engine.say(1, 2, 3)
    await write(histories, now=0)
    newest = await guardrail_events(database, limit=2)
    assert [event.number for event in newest] == [3, 2]
    assert newest[0].at == datetime.fromtimestamp(1_800_000_003, UTC)
    assert (newest[0].measure, newest[0].value, newest[0].target) == ("ttft_p95_ms", 1800.0, 1500.0)
    assert [event.number for event in await guardrail_events(database, since=newest[0].at)] == [3]


async def test_what_is_in_force_is_stored_when_it_changes_and_not_every_second(
    database: Database, database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    await write(histories, now=0)
    first = value(database_url, "SELECT seen_at FROM engine_instance")
    engine.say(step=2)
    await write(histories, now=1)
    assert value(database_url, "SELECT seen_at FROM engine_instance") == first
    engine.say(config_revision=1, limits=engine_limits(max_num_seqs=4))
    await write(histories, now=2)
    (config,) = await show_scheduler(database)
    assert config.engines[0].limits.max_num_seqs == 4


async def test_an_engine_that_says_nothing_new_is_not_taken_to_be_alive(
    database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    await write(histories, now=0)
    first = value(database_url, "SELECT seen_at FROM engine_instance")
    await write(histories, now=100)
    assert value(database_url, "SELECT seen_at FROM engine_instance") == first


async def test_events_that_came_while_the_store_was_away_are_stored_when_it_is_back(
    database_url: str, engine: Engine, histories: list[EngineHistory], store_switch: StoreSwitch
) -> None:
    engine.say(1)
    store_switch.off()
    with pytest.raises(StoreUnavailable):
        await histories[0].write(0)
    store_switch.on()
    await histories[0].write(1)
    assert rows(database_url, EVENTS) == [("life-1", 1)]


async def test_an_engine_that_does_not_name_its_life_is_known_by_its_address(
    database_url: str, engine: Engine, histories: list[EngineHistory]
) -> None:
    engine.say(instance="")
    await write(histories, now=0)
    assert rows(database_url, "SELECT instance FROM engine_instance") == [("ws://engine:1",)]
