"""What is asked of the store by operators keeps no request for inference waiting."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from admin_ui.app import create_app as create_admin_app
from gateway.db import Database
from tests.builders.admin_site import admin_settings
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description
from tests.builders.operators import operator_client
from tests.builders.store import make_customer
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = pytest.mark.postgres

CHAT = "/v1/chat/completions"


@pytest.fixture
async def url(database_url: str) -> AsyncIterator[str]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    async with stored_gateway(database_url, engine) as url:
        yield url
    await engine.stop()


async def test_management_that_hangs_on_a_lock_delays_no_inference(
    database: Database, database_url: str, url: str
) -> None:
    customer = await make_customer(database)
    loop = asyncio.get_running_loop()
    async with client_of(url, customer.secret) as client, await operator_client(database, url) as robot:
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        async with await psycopg.AsyncConnection.connect(database_url) as holder:
            await holder.execute("SELECT id FROM tenant FOR UPDATE")
            change = f"/admin/v1/tenants/{customer.tenant.id}"
            hanging = [asyncio.create_task(robot.patch(change, json={"weight": 2})) for _ in range(6)]
            await asyncio.sleep(0.5)
            for _ in range(5):
                begun = loop.time()
                assert (await client.post(CHAT, json=chat_body())).status_code == 200
                assert loop.time() - begun < 1
            assert not any(one.done() for one in hanging)
            answers = await asyncio.gather(*hanging)
        assert {one.status_code for one in answers} == {503}
        assert answers[0].json()["error"]["code"] == "store_unavailable"
        assert (await robot.patch(change, json={"weight": 2})).status_code == 200


async def test_the_admin_uis_statements_end_after_two_seconds(database_url: str) -> None:
    app = create_admin_app(admin_settings(database_url))
    async with app.router.lifespan_context(app):
        database: Database = app.state.context.database
        async with database.system_transaction() as connection:
            shown = await connection.exec_driver_sql("SHOW statement_timeout")
            assert shown.scalar_one() == "2s"
