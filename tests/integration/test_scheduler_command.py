"""`sluice scheduler` and the tenant options that engines hear of, as an operator types them."""

import json
from collections.abc import AsyncIterator

import pytest

from engine.protocol import Configure
from gateway.db import Database
from gateway.engine_config import queries
from tests.builders.command_line import Command
from tests.builders.engine_messages import engine_description, engine_limits
from tests.builders.engine_store import guardrail_event, meet_engine, obey, tell
from tests.builders.store import make_customer
from tests.builders.store_rows import until_value, value
from tests.builders.stored_gateway import SHARED, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, hold

pytestmark = pytest.mark.postgres


@pytest.fixture
def sluice(database_url: str) -> Command:
    return Command(database_url)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[WebSocketEngine]:
    """An engine that obeys, behind a gateway that has heard it."""
    engine = WebSocketEngine(engine_description(), hold, secret=SHARED)
    engine.obey = obey
    await engine.start()
    async with stored_gateway(database_url, engine):
        tell(engine, Configure(revision=0))
        await until_value(database_url, "SELECT count(*) FROM engine_instance", 1)
        yield engine
    await engine.stop()


async def test_a_change_is_told_with_who_has_it_in_force(sluice: Command, engine: WebSocketEngine) -> None:
    ended = await sluice("scheduler", "set", "max_num_seqs=4", "kv_cache_utilization_limit=0.5")
    assert ended.status == 0, ended.errors
    assert ended.output.splitlines() == [
        "tiny: max_num_seqs default -> 4",
        "tiny: kv_cache_utilization_limit default -> 0.5",
        f"{engine.url}: in force (revision 1).",
    ]
    ended = await sluice("scheduler", "set", "max_num_seqs=default", "--model", "tiny")
    assert ended.output.splitlines()[0] == "tiny: max_num_seqs 4 -> default"


async def test_an_engine_that_refuses_is_one_line_and_status_1(
    sluice: Command, engine: WebSocketEngine
) -> None:
    engine.obey = lambda engine, configuration: tell(
        engine, Configure(revision=configuration.revision), config_error="max_model_len is above 512"
    )
    ended = await sluice("scheduler", "set", "max_model_len=9999")
    assert ended.status == 1
    assert ended.errors == f"sluice: {engine.url} refuses: max_model_len is above 512"


async def test_guardrails_are_ordered_and_shown(sluice: Command, engine: WebSocketEngine) -> None:
    ended = await sluice("scheduler", "guardrails", "--mode", "manual", "--level", "2")
    assert ended.status == 0, ended.errors
    assert "tiny: guardrail_level 0 -> 2" in ended.output.splitlines()
    ended = await sluice("scheduler", "guardrails")
    assert "manual" in ended.output
    assert engine.url in ended.output


async def test_wanted_and_in_force_are_shown_side_by_side(
    sluice: Command, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.commands.scheduler.OBEYED_WITHIN_SECONDS", 0.0)
    await meet_engine(database, limits=engine_limits(max_num_seqs=7), config_error="not today")
    ended = await sluice("scheduler", "set", "max_num_seqs=4")
    assert ended.status == 1, "the engine has an error and nobody brings it the change"
    shown = (await sluice("scheduler", "show")).output
    (line,) = [line for line in shown.splitlines() if line.startswith("max_num_seqs")]
    assert line.split() == ["max_num_seqs", "4", "7"]
    assert "not today" in shown
    assert "s ago" in shown
    (config,) = json.loads((await sluice("scheduler", "show", "--json", "--model", "tiny")).output)
    assert (config["revision"], config["limits"]) == (1, {"max_num_seqs": 4})
    assert config["engines"][0]["limits"]["max_num_seqs"] == 7
    assert config["engines"][0]["config_error"] == "not today"


@pytest.mark.parametrize(
    ("setting", "status", "line"),
    [
        ("max_num_seqs=0", 1, "sluice: max_num_seqs must be a whole number of at least 1"),
        ("max_seqs=4", 1, "sluice: There is no 'max_seqs'; what can be set is max_num_seqs,"),
        ("max_num_seqs", 2, "the keys are max_num_seqs,"),
    ],
)
async def test_what_cannot_be_set_is_one_line(
    sluice: Command, database: Database, setting: str, status: int, line: str
) -> None:
    await meet_engine(database)
    ended = await sluice("scheduler", "set", setting)
    assert ended.status == status
    assert line in " ".join(ended.errors.split()).replace("│ ", "")
    assert len(ended.errors.splitlines()) == 1 or status == 2


async def test_before_any_engine_was_met_it_is_one_line(sluice: Command) -> None:
    ended = await sluice("scheduler", "show")
    assert (ended.status, ended.output) == (1, "")
    assert ended.errors.startswith("sluice: No engine has been connected")


async def test_events_are_shown_with_their_cause(sluice: Command, database: Database) -> None:
    assert "have not moved" in (await sluice("scheduler", "events")).output
    async with database.system_transaction() as connection:
        await queries.add_events(
            connection,
            [guardrail_event(1), guardrail_event(2, is_dry_run=True)],
            instance="life-1",
            address="ws://engine:1",
            model="tiny",
        )
    shown = (await sluice("scheduler", "events")).output
    assert "ttft_p95_ms  1800   1500    Offline work is paused." in shown
    assert "(dry run)" in shown
    (newest,) = json.loads((await sluice("scheduler", "events", "--limit", "1", "--json")).output)
    assert (newest["number"], newest["is_dry_run"]) == (2, True)


async def test_a_tenants_weight_and_group_are_set_and_shown(
    sluice: Command, database: Database, database_url: str
) -> None:
    await make_customer(database, "acme")
    await meet_engine(database)
    ended = await sluice("tenants", "update", "acme", "--weight", "3", "--cache-group", "public")
    assert ended.status == 0, ended.errors
    assert value(database_url, "SELECT weight FROM tenant") == 3.0
    assert value(database_url, "SELECT revision FROM engine_config") == 1
    assert "public" in (await sluice("tenants", "show", "acme")).output
    assert (await sluice("tenants", "update", "acme", "--no-cache-group")).status == 0
    (tenant,) = json.loads((await sluice("tenants", "list", "--json")).output)
    assert (tenant["tenant"]["weight"], tenant["tenant"]["cache_group"]) == (3.0, None)
    assert (await sluice("tenants", "update", "acme", "--weight", "0")).status == 1
    both = await sluice("tenants", "update", "acme", "--no-cache-group", "--cache-group", "x")
    assert both.status == 2
