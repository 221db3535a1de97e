"""What operators order of engines: the row, its trail, and the line that says why not."""

import asyncio
from typing import Any

import pytest

from engine.protocol import GuardrailMode, GuardrailOrders, Guardrails, LimitChanges
from gateway.administration import create_tenant, set_cache_group
from gateway.audit import queries as audit
from gateway.db import Database
from gateway.engine_administration import (
    Ordered,
    set_guardrails,
    set_scheduler,
    set_weight,
    show_scheduler,
)
from gateway.engine_config import queries
from gateway.engine_config.changes import LIMIT_KEYS
from gateway.engine_config.values import Desired, EngineInForce
from gateway.tenants.errors import AdministrationError, BadValue, NoSuchThing
from tests.builders.engine_messages import engine_limits
from tests.builders.engine_store import meet_engine
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres


async def desired(database: Database, model: str = "tiny") -> Desired:
    (config,) = await show_scheduler(database, model)
    return config.desired


async def engines(database: Database) -> tuple[EngineInForce, ...]:
    (config,) = await show_scheduler(database)
    return config.engines


async def set_one(database: Database, **changes: Any) -> Ordered:
    (ordered,) = await set_scheduler(database, "ana", "tiny", changes)
    return ordered


async def test_a_model_that_an_engine_serves_has_a_row_of_revision_0(database: Database) -> None:
    await meet_engine(database)
    (config,) = await show_scheduler(database)
    assert (config.desired.model, config.desired.revision) == ("tiny", 0)
    assert config.desired.limits == LimitChanges()
    assert config.engines[0].limits == engine_limits()


async def test_before_any_engine_was_met_there_is_nothing_to_show_or_set(database: Database) -> None:
    with pytest.raises(NoSuchThing, match="No engine has been connected"):
        await show_scheduler(database)
    with pytest.raises(NoSuchThing, match="No engine has been connected"):
        await set_scheduler(database, "ana", None, {"max_num_seqs": 4})


async def test_a_change_is_a_new_revision_and_leaves_the_other_keys(database: Database) -> None:
    await meet_engine(database)
    await set_one(database, max_num_seqs=4)
    ordered = await set_one(database, kv_cache_utilization_limit="0.5")
    assert (ordered.before.revision, ordered.after.revision) == (1, 2)
    assert (await desired(database)).limits == LimitChanges(max_num_seqs=4, kv_cache_utilization_limit=0.5)


async def test_a_cleared_key_is_the_engines_own_again(database: Database) -> None:
    await meet_engine(database)
    await set_one(database, max_num_seqs=4, max_output_len=9)
    await set_one(database, max_num_seqs=None)
    assert (await desired(database)).limits == LimitChanges(max_output_len=9)


async def test_setting_what_is_set_already_changes_nothing(database: Database, database_url: str) -> None:
    await meet_engine(database)
    await set_one(database, max_num_seqs=4)
    ordered = await set_one(database, max_num_seqs=4)
    assert ordered.before == ordered.after
    assert value(database_url, "SELECT count(*) FROM audit_event") == 1


async def test_two_who_set_at_once_lose_nothing_of_each_other(database: Database) -> None:
    await meet_engine(database)
    await asyncio.gather(
        *(set_one(database, **{key: 9}) for key in ("max_num_seqs", "max_output_len", "prefill_chunk_size")),
        set_guardrails(database, "bo", "tiny", mode=GuardrailMode.DRY_RUN),
    )
    now = await desired(database)
    assert now.limits == LimitChanges(max_num_seqs=9, max_output_len=9, prefill_chunk_size=9)
    assert (now.revision, now.guardrails.mode) == (4, GuardrailMode.DRY_RUN)


async def test_without_a_model_all_models_are_set(database: Database) -> None:
    await meet_engine(database)
    await meet_engine(database, instance="life-2", address="ws://engine:2", model="other")
    await set_scheduler(database, "ana", None, {"max_num_seqs": 4})
    configs = await show_scheduler(database)
    assert [(config.desired.model, config.desired.limits.max_num_seqs) for config in configs] == [
        ("other", 4),
        ("tiny", 4),
    ]


async def test_a_model_that_nobody_serves_is_named(database: Database) -> None:
    await meet_engine(database)
    with pytest.raises(NoSuchThing, match=r"^No engine has served a model called 'huge'; known: tiny\.$"):
        await set_scheduler(database, "ana", "huge", {"max_num_seqs": 4})


@pytest.mark.parametrize(
    ("key", "wrong", "line"),
    [
        ("max_num_seqs", 0, r"max_num_seqs must be a whole number of at least 1 and .*, not 0\."),
        ("max_num_seqs", "many", r"max_num_seqs must be a whole number .*, not 'many'\."),
        ("max_num_seqs", "null", r"max_num_seqs must be a whole number .*, not 'null'\."),
        ("max_num_seqs", 2**31, r"max_num_seqs must be .* at most 2147483647, not 2147483648\."),
        ("max_num_seqs", True, r"max_num_seqs must be a whole number .*, not True\."),
        (
            "kv_cache_utilization_limit",
            "nan",
            r"kv_cache_utilization_limit must be a number above 0 and at most 1, not 'nan'\.",
        ),
        (
            "offline_min_share",
            1,
            r"offline_min_share must be a number of at least 0 and below 1, not 1\.",
        ),
        ("max_seqs", 1, r"There is no 'max_seqs'; what can be set is max_num_seqs, .*offline_min_share\."),
    ],
)
async def test_what_cannot_be_set_is_one_line_that_names_the_key(
    database: Database, key: str, wrong: Any, line: str
) -> None:
    await meet_engine(database)
    with pytest.raises(BadValue, match=f"^{line}$"):
        await set_scheduler(database, "ana", None, {"max_output_len": 9, key: wrong})
    assert (await desired(database)).revision == 0


def test_every_limit_of_an_engine_can_be_set() -> None:
    assert set(LIMIT_KEYS) == set(engine_limits().__struct_fields__)


async def test_fewer_tokens_than_sequences_contradict_each_other(database: Database) -> None:
    await meet_engine(database)
    line = r"^max_num_batched_tokens \(7\) must be at least max_num_seqs \(8\)\.$"
    with pytest.raises(BadValue, match=line):
        await set_one(database, max_num_batched_tokens=7)
    await set_one(database, max_num_batched_tokens=7, max_num_seqs=7)
    with pytest.raises(BadValue, match=line):
        await set_one(database, max_num_seqs=8)


async def test_limits_that_guardrails_have_scaled_down_are_no_contradiction(database: Database) -> None:
    scaled = engine_limits(max_num_batched_tokens=8)
    await meet_engine(database, limits=scaled, guardrails=Guardrails(level=4))
    await set_one(database, max_num_seqs=16)


async def test_a_revision_is_above_what_an_engine_has_said_though_the_store_was_emptied(
    database: Database,
) -> None:
    await meet_engine(database, config_revision=41)
    assert (await set_one(database, max_num_seqs=4)).after.revision == 42


async def test_a_late_word_of_an_older_revision_is_not_stored(database: Database) -> None:
    await meet_engine(database, config_revision=2)
    await meet_engine(database, config_revision=1)
    (engine,) = await engines(database)
    assert engine.config_revision == 2


async def test_an_engine_says_why_it_does_not_obey(database: Database) -> None:
    await meet_engine(database, config_error="max_model_len is above the ceiling")
    (engine,) = await engines(database)
    assert engine.config_error == "max_model_len is above the ceiling"


async def test_of_a_silent_address_the_last_life_is_shown(database: Database, database_url: str) -> None:
    for instance, address in (("old", "ws://a"), ("new", "ws://a"), ("gone", "ws://b")):
        await meet_engine(database, instance=instance, address=address)
    async with database.system_transaction() as connection:
        await connection.exec_driver_sql(
            "UPDATE engine_instance SET seen_at = now() - interval '1 minute' WHERE instance <> 'new'"
        )
    shown = await engines(database)
    assert [(engine.instance, engine.is_silent) for engine in shown] == [("new", False), ("gone", True)]
    assert 60 <= shown[1].age_seconds < 90
    assert value(database_url, "SELECT count(*) FROM engine_instance") == 3


async def test_guardrails_are_ordered_and_given_back(database: Database) -> None:
    await meet_engine(database)
    await set_guardrails(database, "ana", None, mode=GuardrailMode.MANUAL, level=2)
    assert (await desired(database)).guardrails == GuardrailOrders(mode=GuardrailMode.MANUAL, level=2)
    await set_guardrails(database, "ana", None, level=0)
    await set_guardrails(database, "ana", None, level=3)
    await set_guardrails(database, "ana", None, mode=GuardrailMode.AUTOMATIC)
    assert (await desired(database)).guardrails == GuardrailOrders()


@pytest.mark.parametrize(
    ("mode", "level", "line"),
    [
        (None, 1, "A level can be ordered in manual mode only, and the mode is automatic."),
        (GuardrailMode.DRY_RUN, 1, "A level can be ordered in manual mode only, and the mode is dry_run."),
        (GuardrailMode.MANUAL, 6, "A guardrail level is 0 (normal) to 5, not 6."),
    ],
)
async def test_a_level_out_of_place_is_refused(
    database: Database, mode: GuardrailMode | None, level: int, line: str
) -> None:
    await meet_engine(database)
    with pytest.raises(BadValue) as refusal:
        await set_guardrails(database, "ana", None, mode=mode, level=level)
    assert str(refusal.value) == line


async def test_a_weight_changes_with_every_models_engines_in_one_go(
    database: Database, database_url: str
) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    await meet_engine(database)
    await meet_engine(database, instance="life-2", address="ws://engine:2", model="other")
    changed = await set_weight(database, "ana", "acme", 4.0)
    assert changed.weight == 4.0
    for config in await show_scheduler(database):
        assert (config.desired.revision, config.desired.weights) == (1, {tenant.id: 4.0})
    await set_weight(database, "ana", "acme", 4.0)
    assert rows(database_url, "SELECT DISTINCT revision FROM engine_config") == [(1,)]


async def test_weights_and_limits_set_at_once_are_both_kept(database: Database) -> None:
    await meet_engine(database)
    names = ["a", "b", "c"]
    for name in names:
        await create_tenant(database, "ana", name)
    await asyncio.gather(
        *(set_weight(database, "ana", name, 2.0) for name in names),
        set_one(database, max_num_seqs=4),
    )
    now = await desired(database)
    assert (len(now.weights), now.limits.max_num_seqs, now.revision) == (3, 4, 4)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_weight_that_is_no_share_is_refused(database: Database, weight: float) -> None:
    await create_tenant(database, "ana", "acme")
    with pytest.raises(BadValue, match="weight"):
        await set_weight(database, "ana", "acme", weight)


async def test_a_cache_group_is_joined_and_left(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    assert (await set_cache_group(database, "ana", "acme", " public ")).cache_group == "public"
    assert (await set_cache_group(database, "ana", "acme", None)).cache_group is None
    with pytest.raises(BadValue, match="A name must be"):
        await set_cache_group(database, "ana", "acme", "")


async def test_every_order_leaves_who_what_before_and_after(database: Database) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    await meet_engine(database)
    await set_one(database, max_num_seqs=4)
    await set_guardrails(database, "bo", None, mode=GuardrailMode.MANUAL, level=1)
    await set_weight(database, "cy", "acme", 2.0)
    await set_cache_group(database, "di", "acme", "public")
    async with database.system_transaction() as connection:
        newest = await audit.newest(connection, limit=4)
    assert [(event.actor, event.action, event.subject, event.before, event.after) for event in newest] == [
        ("di", "tenant.set_cache_group", tenant.id, {"cache_group": None}, {"cache_group": "public"}),
        ("cy", "tenant.set_weight", tenant.id, {"weight": 1.0}, {"weight": 2.0}),
        (
            "bo",
            "guardrails.set",
            "tiny",
            {"revision": 1, "guardrail_mode": "automatic", "guardrail_level": 0},
            {"revision": 2, "guardrail_mode": "manual", "guardrail_level": 1},
        ),
        (
            "ana",
            "scheduler.set",
            "tiny",
            {"revision": 0, "max_num_seqs": None},
            {"revision": 1, "max_num_seqs": 4},
        ),
    ]


async def test_an_order_that_fails_changes_nothing(database: Database, database_url: str) -> None:
    await meet_engine(database)
    await meet_engine(
        database,
        instance="life-2",
        address="ws://engine:2",
        model="other",
        limits=engine_limits(max_num_seqs=100),
    )
    with pytest.raises(AdministrationError):
        await set_scheduler(database, "ana", None, {"max_num_batched_tokens": 50})
    assert rows(database_url, "SELECT DISTINCT revision FROM engine_config") == [(0,)]
    assert value(database_url, "SELECT count(*) FROM audit_event") == 0


async def test_figures_are_forgotten_after_a_week(database: Database, database_url: str) -> None:
    await meet_engine(database)
    async with database.system_transaction() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO engine_snapshot (instance, at, address, model, figures) "
            "SELECT 'life-1', now() - day * interval '1 day', 'a', 'tiny', '{}' "
            "FROM generate_series(0, 9) AS day"
        )
    async with database.system_transaction() as connection:
        await queries.forget_old(connection)
    assert value(database_url, "SELECT count(*) FROM engine_snapshot") == 7
    assert value(database_url, "SELECT count(*) FROM engine_instance") == 1
