"""Text that Postgres cannot hold is refused with a line, wherever it comes in: never an error of our own."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import Text, TypeEngine

from admin_ui.sessions import CSRF_FIELD
from gateway.api.application import build_application
from gateway.db import Database
from gateway.errors import UnstorableText
from tests.builders.admin_site import admin_site, hidden_fields
from tests.builders.command_line import Command
from tests.builders.engine_messages import engine_description
from tests.builders.management_texts import text_places
from tests.builders.operators import operator_client
from tests.builders.store import PEPPER, make_customer
from tests.builders.store_rows import value
from tests.builders.stored_gateway import SHARED, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = pytest.mark.postgres

NUL = "no\0thing"
HALF_A_PAIR = "no\udcffthing"  # how an argument arrives whose bytes are no UTF-8
CHANGES = "SELECT count(*) FROM audit_event"


@asynccontextmanager
async def never_started(_: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
    yield {}


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (Text(), NUL),
        (Text(), HALF_A_PAIR),
        (ARRAY(Text()), [NUL]),
        (ARRAY(Text()), [HALF_A_PAIR]),
        (JSONB(), {"name": NUL}),
    ],
    ids=["text NUL", "text half", "array NUL", "array half", "json NUL"],
)
async def test_the_door_to_the_store_refuses_it(
    database: Database, kind: TypeEngine[Any], held: object
) -> None:
    with pytest.raises(UnstorableText, match="cannot be stored or looked for"):
        async with database.system_transaction() as connection:
            await connection.scalar(text("SELECT :held").bindparams(bindparam("held", held, type_=kind)))


@pytest.mark.parametrize("mistake", ["SELECT 1 / 0", "SELECT 'x'::int"])
async def test_other_bad_data_is_no_fault_of_the_text(database: Database, mistake: str) -> None:
    with pytest.raises(Exception, match=r"division|invalid input") as caught:
        async with database.system_transaction() as connection:
            await connection.scalar(text(mistake))
    assert not isinstance(caught.value, UnstorableText)


async def test_every_text_of_every_management_route_may_hold_it_and_is_a_400(
    database: Database, database_url: str
) -> None:
    places = text_places(build_application(never_started).framework)
    assert {place.where for place in places} == {"path", "query", "body"}
    customer = await make_customer(database, "ours-canary")  # whom the bodies of RULES speak of
    caller = customer.caller
    known = {"tenant": str(caller.tenant), "project": str(caller.project), "key": str(caller.key)}
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    async with (
        stored_gateway(database_url, engine) as url,
        await operator_client(database, url) as client,
    ):
        before = value(database_url, CHANGES)
        answers = {place: await client.request(**place.request(NUL, known)) for place in places}
    await engine.stop()
    assert {place: answer.text for place, answer in answers.items() if answer.status_code != 400} == {}
    for answered in answers.values():
        assert set(answered.json()["error"]) == {"message", "type", "param", "code"}
    assert value(database_url, CHANGES) == before


@pytest.mark.parametrize(
    "command",
    [
        "tenants create X",
        "tenants show X",
        "tenants update X --weight 2",
        "tenants update acme --cache-group X",
        "projects create X --tenant acme",
        "projects create new --tenant X",
        "projects list --tenant X",
        "keys create --tenant X",
        "keys create --tenant acme --project X",
        "keys create --tenant acme --name X",
        "keys create --tenant acme --model X",
        "keys list --tenant X",
        "keys set X --name new",
        "keys set KEY --name X",
        "keys set KEY --model X",
        "keys rotate X",
        "keys revoke X",
        "limits set tokens_per_day 5 --tenant X",
        "limits set tokens_per_day 5 --tenant acme --project X",
        "limits set tokens_per_day 5 --tenant acme --key X",
        "limits set tokens_per_day 5 --tenant acme --model X",
        "limits list --tenant X",
        "usage --tenant X",
        "operators keys create X --scope tenants.read",
        "operators keys revoke X",
        "scheduler show --model X",
        "scheduler set max_num_seqs=3 --model X",
    ],
)
async def test_every_verb_that_takes_a_text_says_a_line(
    database: Database, database_url: str, command: str
) -> None:
    customer = await make_customer(database)
    words = {"X": HALF_A_PAIR, "KEY": customer.caller.key}
    before = value(database_url, CHANGES)
    sluice = Command(database_url, SLUICE_SECRETS__KEY_PEPPER=PEPPER.hex())
    ended = await sluice(*(words.get(word, word) for word in command.split()))
    assert ended.status == 1
    assert ended.errors.startswith("sluice: ")
    assert ended.errors.count("\n") == 0
    assert ended.errors.encode(), "a terminal can show it"
    assert value(database_url, CHANGES) == before


@pytest.mark.parametrize(
    "path", ["/keys/no%00thing/rotate", "/keys/no%00thing/revoke", "/tenants/no%00thing"]
)
async def test_an_admin_page_of_it_is_no_error_of_our_own(
    database: Database, database_url: str, path: str
) -> None:
    async with admin_site(database_url, database) as site:
        operator = await site.operator()
        form = {CSRF_FIELD: hidden_fields((await operator.get("/keys/new")).text)[CSRF_FIELD]}
        answers = [await operator.get(path), await operator.post(path, form)]
    assert all(400 <= answer.status_code < 500 for answer in answers), answers
