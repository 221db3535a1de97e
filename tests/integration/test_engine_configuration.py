"""From an operator's order to an engine that obeys, through a composed gateway with a real store."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from engine.protocol import Configure, GenerateRequest, GuardrailMode, LimitChanges
from gateway.administration import create_tenant
from gateway.db import Database
from gateway.engine_administration import (
    set_guardrails,
    set_scheduler,
    set_weight,
    show_scheduler,
)
from gateway.engine_config.values import EngineInForce
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description, engine_limits
from tests.builders.engine_store import meet_engine, obey, tell
from tests.builders.store import make_customer
from tests.builders.store_rows import until_value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer, hold
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

IN_FORCE = "SELECT max(config_revision) FROM engine_instance"


@pytest.fixture
async def engine() -> AsyncIterator[WebSocketEngine]:
    """Obeys every configuration at once and says so."""
    engine = WebSocketEngine(engine_description(), hold, secret=SHARED)
    engine.obey = obey
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def url(database: Database, database_url: str, engine: WebSocketEngine) -> AsyncIterator[str]:
    """A gateway that has heard the engine."""
    async with stored_gateway(database_url, engine) as url:
        tell(engine, Configure(revision=0))
        await until_value(database_url, IN_FORCE, 0)
        yield url


async def only_engine(database: Database) -> EngineInForce:
    (config,) = await show_scheduler(database)
    (engine,) = config.engines
    return engine


async def until_configured(engine: WebSocketEngine, revision: int, *, seconds: float = 10) -> Configure:
    async with asyncio.timeout(seconds):
        await engine.until(lambda: any(each.revision == revision for each in engine.configured))
    return next(each for each in engine.configured if each.revision == revision)


async def test_an_order_is_at_the_engine_within_two_seconds_and_shown_as_in_force(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    await set_scheduler(database, "ana", None, {"max_num_seqs": 4})
    configuration = await until_configured(engine, 1, seconds=2)
    assert configuration.limits == LimitChanges(max_num_seqs=4)
    await until_value(database_url, IN_FORCE, 1)
    shown = await only_engine(database)
    assert shown.limits == engine_limits(max_num_seqs=4)
    assert (shown.instance, shown.address, shown.config_error) == ("life-1", engine.url, None)
    assert shown.age_seconds < 10


async def test_limits_hold_after_an_engine_was_restarted(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    await set_scheduler(database, "ana", None, {"max_num_seqs": 4})
    await until_configured(engine, 1)
    await engine.stop()
    engine.configured.clear()
    engine.obey = lambda engine, configuration: tell(engine, configuration, instance="life-2")
    await engine.start()
    await until_configured(engine, 1)
    await until_value(database_url, "SELECT min(instance) FROM engine_instance", "life-2")
    assert (await only_engine(database)).limits.max_num_seqs == 4


async def test_an_engine_is_configured_before_its_first_request(
    database: Database, database_url: str, engine: WebSocketEngine
) -> None:
    engine.script = answer(5)
    customer = await make_customer(database)
    await meet_engine(database)
    await set_scheduler(database, "ana", None, {"max_num_seqs": 4})
    async with stored_gateway(database_url, engine) as url, client_of(url, customer.secret) as client:
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
    kinds = [type(message) for message in engine.heard]
    assert kinds.index(Configure) < kinds.index(GenerateRequest)


async def test_an_engine_of_another_model_is_left_alone(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    await meet_engine(database, instance="life-2", address="ws://engine:2", model="other")
    await set_scheduler(database, "ana", "other", {"max_num_seqs": 4})
    await set_scheduler(database, "ana", "tiny", {"max_num_seqs": 5})
    await until_configured(engine, 1)
    assert [each.limits.max_num_seqs for each in engine.configured] == [5]


async def test_a_weight_reaches_a_connected_engine(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    await set_weight(database, "ana", "acme", 4.0)
    assert (await until_configured(engine, 1, seconds=2)).weights == {tenant.id: 4.0}


async def test_guardrails_are_ordered_and_what_is_in_force_is_shown(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    await set_guardrails(database, "ana", None, mode=GuardrailMode.MANUAL, level=3)
    await until_value(database_url, IN_FORCE, 1)
    shown = await only_engine(database)
    assert (shown.guardrail_mode, shown.guardrail_level) == (GuardrailMode.MANUAL, 3)


async def test_an_engine_that_refuses_is_shown_with_its_reason(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    def refuse(engine: WebSocketEngine, configuration: Configure) -> None:
        tell(engine, Configure(revision=configuration.revision), config_error="above the ceiling")

    engine.obey = refuse
    await set_scheduler(database, "ana", None, {"max_model_len": 999_999})
    await until_value(database_url, "SELECT max(config_error) FROM engine_instance", "above the ceiling")
    assert (await only_engine(database)).limits.max_model_len == engine_limits().max_model_len


async def test_a_limit_that_only_a_newer_version_knows_is_passed_over(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    async with database.system_transaction() as connection:
        await connection.exec_driver_sql("UPDATE engine_config SET limits = '{\"newer\": 1}'")
    await set_scheduler(database, "ana", "tiny", {"max_num_seqs": 4})
    assert (await until_configured(engine, 1)).limits == LimitChanges(max_num_seqs=4)


async def test_while_the_store_is_away_the_last_configuration_stays_and_it_is_logged_once(
    database: Database,
    engine: WebSocketEngine,
    url: str,
    store_switch: StoreSwitch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await set_scheduler(database, "ana", None, {"max_num_seqs": 4})
    await until_configured(engine, 1)
    with caplog.at_level(logging.INFO, logger="gateway"):
        store_switch.off()
        await engine.stop()
        engine.configured.clear()
        await engine.start()
        assert (await until_configured(engine, 1)).limits.max_num_seqs == 4
        await asyncio.sleep(2.5)  # several attempts of everybody
        assert caplog.text.count("changes of engines' configuration are not seen:") == 1
        assert caplog.text.count("what engines say is not stored:") == 1
        store_switch.on()
        async with asyncio.timeout(20):
            while caplog.text.count(": no longer") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
