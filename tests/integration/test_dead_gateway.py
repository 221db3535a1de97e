"""A gateway process killed hard gives its slots back through the others."""

import subprocess
import sys

import pytest

from gateway.db import Database
from gateway.metering import Metering
from tests.builders.store import Customer, make_customer, reserve
from tests.builders.store_rows import until_value

pytestmark = pytest.mark.postgres

GATEWAY_PROGRAM = """
import asyncio, sys
from gateway.db import Database
from gateway.keys.caller import Caller
from gateway.metering import Metering
from tests.builders.store import reserve

async def main():
    metering = Metering(Database.connect(sys.argv[1], application_name="dying"), "dying")
    await metering.start()
    caller = Caller(
        tenant=sys.argv[2],
        tenant_name="acme",
        project="p",
        project_name="default",
        key="k",
        weight=1.0,
        scopes=frozenset(),
    )
    await reserve(metering, caller)
    print("holds", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def hold_and_die(url: str, customer: Customer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY_PROGRAM, url, customer.tenant.id], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        process.kill()


async def test_the_slot_of_a_killed_process_is_free_again(database: Database, database_url: str) -> None:
    customer = await make_customer(database, concurrent_requests=1)
    hold_and_die(database_url, customer)
    survivor = Metering(database, "survivor")
    await survivor.start()
    await until_value(database_url, "SELECT count(*) FROM quota_lease", 0, timeout_seconds=3)
    await reserve(survivor, customer.caller)
    await survivor.stop()
