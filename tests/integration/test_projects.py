"""Projects of a tenant, and the keys that belong to them."""

import asyncio

import pytest

from gateway.administration import create_tenant
from gateway.audit import queries as audit
from gateway.db import Database
from gateway.key_administration import change_key, issue_key
from gateway.keys.key import KeyTerms
from gateway.keys.service import KeyService
from gateway.project_administration import (
    create_project,
    list_projects,
    page_of_projects,
    set_project_weight,
)
from gateway.tenants import queries as tenants
from gateway.tenants.errors import AlreadyExists, BadValue, NoSuchThing
from tests.builders.key_checks import bearer, until_caller
from tests.builders.store import PEPPER, make_customer

pytestmark = pytest.mark.postgres


async def test_a_tenant_begins_with_one_project(database: Database) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    (project,) = await list_projects(database, "acme")
    assert (project.tenant, project.tenant_name, project.name) == (tenant.id, "acme", "default")


async def test_a_key_belongs_to_the_project_it_was_made_for(database: Database, keys: KeyService) -> None:
    await create_tenant(database, "ana", "acme")
    project = await create_project(database, "ana", "acme", "search")
    issued = await issue_key(database, PEPPER, "ana", "acme", name="key", project="search")
    caller = await keys.authenticate(bearer(issued.secret))
    assert (caller.project, caller.project_name) == (project.id, "search")


async def test_a_key_without_a_project_belongs_to_the_first(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    await create_project(database, "ana", "acme", "a later one")
    assert (await issue_key(database, PEPPER, "ana", "acme", name="key")).key.project_name == "default"


async def test_projects_of_two_tenants_may_have_one_name(database: Database) -> None:
    for tenant in ("acme", "other"):
        await create_tenant(database, "ana", tenant)
        await create_project(database, "ana", tenant, "search")
    assert [(project.tenant_name, project.name) for project in await list_projects(database)] == [
        ("acme", "default"),
        ("acme", "search"),
        ("other", "default"),
        ("other", "search"),
    ]
    assert len(await list_projects(database, "acme")) == 2


async def test_of_two_who_make_a_project_at_once_one_does(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    answers = await asyncio.gather(
        *(create_project(database, "ana", "acme", "search") for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(answer, AlreadyExists) for answer in answers) == 3
    assert len(await list_projects(database, "acme")) == 2


async def test_another_tenant_s_project_does_not_exist(database: Database) -> None:
    for tenant in ("acme", "other"):
        await create_tenant(database, "ana", tenant)
    project = await create_project(database, "ana", "other", "search")
    for name_or_id in ("search", project.id, "nothing"):
        with pytest.raises(NoSuchThing):
            await issue_key(database, PEPPER, "ana", "acme", name="key", project=name_or_id)


async def test_who_lists_projects_does_not_wait_for_who_changes_one(database: Database) -> None:
    first = await create_project(database, "ana", (await create_tenant(database, "ana", "acme")).id, "a")
    async with database.system_transaction() as connection, asyncio.timeout(2):
        await tenants.set_project_weight(connection, first.tenant, first.id, 2.0)
        assert [each.name for each in await page_of_projects(database, limit=2, after=first.id)] == [
            "default"
        ]


async def test_a_project_needs_a_tenant_and_a_name(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    with pytest.raises(NoSuchThing, match="no tenant 'nobody'"):
        await create_project(database, "ana", "nobody", "search")
    with pytest.raises(BadValue, match="A name must be"):
        await create_project(database, "ana", "acme", " ")


async def test_a_new_project_is_in_the_trail(database: Database) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    project = await create_project(database, "bo", "acme", "search")
    async with database.system_transaction() as connection:
        (event,) = await audit.newest(connection, limit=1)
    assert (event.actor, event.action, event.subject) == ("bo", "project.create", project.id)
    assert event.after == {"tenant": tenant.id, "name": "search", "weight": 1.0}


async def test_a_projects_new_weight_reaches_its_keys_within_two_seconds_and_is_in_the_trail(
    database: Database, keys: KeyService
) -> None:
    customer = await make_customer(database)
    assert (await keys.authenticate(bearer(customer.secret))).project_weight == 1.0
    changed = await set_project_weight(database, "bo", customer.caller.project, 2.5)
    assert changed.weight == 2.5
    await until_caller(keys, customer.secret, lambda caller: caller.project_weight == 2.5)
    async with database.system_transaction() as connection:
        (event,) = await audit.newest(connection, limit=1)
    assert (event.actor, event.action, event.subject) == ("bo", "project.set_weight", changed.id)
    assert (event.before, event.after) == ({"weight": 1.0}, {"weight": 2.5})


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
async def test_what_is_no_share_is_no_weight_of_a_project_or_a_key(database: Database, weight: float) -> None:
    customer = await make_customer(database)
    with pytest.raises(BadValue, match="A weight must be"):
        await set_project_weight(database, "ana", customer.caller.project, weight)
    with pytest.raises(BadValue, match="A weight must be"):
        await create_project(database, "ana", "acme", "search", weight=weight)
    with pytest.raises(BadValue, match="A weight must be"):
        await change_key(database, "ana", customer.caller.key, KeyTerms(weight=weight))
    with pytest.raises(BadValue, match="A weight must be"):
        await issue_key(database, PEPPER, "ana", "acme", name="key", weight=weight)
