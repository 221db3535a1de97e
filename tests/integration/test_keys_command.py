"""`sluice projects` and `sluice keys`, as an operator types them."""

import json

import pytest

from gateway.db import Database
from gateway.key_administration import list_keys
from gateway.keys.service import KeyService
from tests.builders.command_line import Command
from tests.builders.key_checks import bearer, is_let_in
from tests.builders.store import PEPPER, make_customer

pytestmark = pytest.mark.postgres


@pytest.fixture
def sluice(database_url: str) -> Command:
    return Command(database_url, SLUICE_SECRETS__KEY_PEPPER=PEPPER.hex())


async def test_a_key_is_made_for_a_project_with_scopes_and_models(
    database: Database, keys: KeyService, sluice: Command
) -> None:
    await make_customer(database)
    made = await sluice("projects", "create", "search", "--tenant", "acme")
    assert "sluice keys create --tenant acme --project search" in made.output
    terms = ["--project", "search", "--scope", "inference", "--scope", "files", "--model", "tiny"]
    created = await sluice("keys", "create", "--tenant", "acme", "--quiet", *terms)
    caller = await keys.authenticate(bearer(created.output.strip()))
    assert (caller.project_name, caller.scopes, caller.models) == ("search", {"inference", "files"}, {"tiny"})
    listed = (await sluice("keys", "list")).output
    assert "inference, files with tiny" in " ".join(listed.split())
    assert "everything" in listed


async def test_projects_are_listed(database: Database, sluice: Command) -> None:
    await make_customer(database)
    await sluice("projects", "create", "search", "--tenant", "acme")
    listed = json.loads((await sluice("projects", "list", "--tenant", "acme", "--json")).output)
    assert [project["name"] for project in listed] == ["default", "search"]
    assert "search" in (await sluice("projects", "list")).output


async def test_weights_of_projects_and_keys_are_given_and_changed(
    database: Database, keys: KeyService, sluice: Command
) -> None:
    await make_customer(database)
    await sluice("projects", "create", "search", "--tenant", "acme", "--weight", "2")
    terms = ["--tenant", "acme", "--project", "search", "--weight", "4"]
    secret = (await sluice("keys", "create", *terms, "--quiet")).output.strip()
    caller = await keys.authenticate(bearer(secret))
    assert (caller.project_weight, caller.key_weight) == (2.0, 4.0)
    changed = await sluice("projects", "set", "search", "--tenant", "acme", "--weight", "5")
    assert changed.output.strip() == "Project search of acme has the weight 5."
    await sluice("keys", "set", caller.key, "--weight", "0.5")
    (row,) = [one for one in await list_keys(database, "acme") if one.id == caller.key]
    assert row.weight == 0.5
    nothing = await sluice("keys", "set", caller.key, "--weight", "0")
    assert (nothing.status, nothing.errors) == (1, "sluice: A weight must be 0.001 to 1000.")


async def test_what_cannot_be_made_is_said_in_a_line(database: Database, sluice: Command) -> None:
    await make_customer(database)
    twice = await sluice("projects", "create", "default", "--tenant", "acme")
    assert (twice.status, twice.errors) == (1, "sluice: 'acme' has a project called 'default' already.")
    nowhere = await sluice("keys", "create", "--tenant", "acme", "--project", "none")
    assert nowhere.errors == "sluice: The tenant 'acme' has no project 'none'."
    assert (await sluice("keys", "create", "--tenant", "acme", "--scope", "admin")).status == 2


async def test_a_rotation_gives_a_new_secret_and_says_how_long_the_old_one_works(
    database: Database, keys: KeyService, sluice: Command
) -> None:
    customer = await make_customer(database)
    redacted = f"sk-…{customer.secret[-4:]}"
    rotated = (await sluice("keys", "rotate", customer.caller.key)).output
    assert f"The secret before it, {redacted}, works until 20" in " ".join(rotated.split())
    secret = next(word for word in rotated.split() if word.startswith("sk-live-"))
    assert (await keys.authenticate(bearer(secret))).key == customer.caller.key
    assert f"active, also {redacted} until 20" in " ".join((await sluice("keys", "list")).output.split())


async def test_a_rotation_without_overlap_ends_the_old_secret(
    database: Database, keys: KeyService, sluice: Command
) -> None:
    customer = await make_customer(database)
    rotated = await sluice("keys", "rotate", customer.caller.key, "--overlap-hours", "0")
    assert "is refused within 2 seconds" in " ".join(rotated.output.split())
    assert not await is_let_in(keys, customer.secret)
    assert "also" not in (await sluice("keys", "list")).output


@pytest.mark.parametrize("hours", ["-1", "721", "soon"])
async def test_an_overlap_that_cannot_be_is_wrong_usage(sluice: Command, hours: str) -> None:
    assert (await sluice("keys", "rotate", "abc", "--overlap-hours", hours)).status == 2


async def test_json_holds_everything_but_the_secret(database: Database, sluice: Command) -> None:
    customer = await make_customer(database)
    (key,) = json.loads((await sluice("keys", "list", "--json")).output)
    assert key["scopes"] == ["inference", "batch", "files", "models.read", "usage.read"]
    assert (key["models"], key["project_name"], key["previous_expires_at"]) == (None, "default", None)
    assert customer.secret not in json.dumps(key)
