"""An answer without a cap is paid for while it is generated: by a real gateway, store and engine loop."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.db import Database
from gateway.quotas.limits import QuotaKind
from tests.builders.bodies import chat_body
from tests.builders.scripted_engine import LIMITS, scripted_engine
from tests.builders.store import make_customer
from tests.builders.store_rows import until_rows, value
from tests.builders.stored_gateway import client_of, stored_gateway
from tests.builders.tokenizers import byte_level_tokenizer_json
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

CHAT = "/v1/chat/completions"
MOST = 1_000  # tokens of output that the engine gives
LEDGER = "SELECT completion_tokens FROM usage_event"
USED = "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::int FROM usage_event"
HELD = "SELECT coalesce(sum(granted - idle), 0)::int FROM quota_lease"


@pytest.fixture
async def url(database_url: str) -> AsyncIterator[str]:
    limits = replace(LIMITS, max_model_len=2_048, max_output_len=MOST)
    async with (
        scripted_engine(
            byte_level_tokenizer_json(), limits=limits, num_blocks=2_048, name="tiny", vocab_size=610
        ) as engine,
        stored_gateway(database_url, engine) as url,
    ):
        yield url


async def test_an_answer_goes_on_as_long_as_its_budget_pays(
    database: Database, database_url: str, url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000_000})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
    assert response.json()["usage"]["completion_tokens"] == MOST
    assert "x-sluice-output-limited-by" not in response.headers
    await until_rows(database_url, LEDGER, [(MOST,)])


async def test_a_budget_that_runs_out_ends_the_answer_and_its_header_says_so(
    database: Database, database_url: str, url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 700})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.headers["x-sluice-output-limited-by"] == "tenant/tokens_per_day"
        assert response.json()["usage"]["total_tokens"] == 700
        assert (await client.post(CHAT, json=chat_body())).status_code == 429
    await until_rows(database_url, USED, [(700,)])


async def test_what_is_left_of_a_budget_can_be_used_up_without_naming_a_length(
    database: Database, database_url: str, url: str
) -> None:
    """It was refused for want of 256 tokens, beside a header that said that 200 are left."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 300})
    async with client_of(url, customer.secret) as client:
        assert (await client.post(CHAT, json=chat_body(max_tokens=60))).status_code == 200
        response = await client.post(CHAT, json=chat_body())
        assert response.status_code == 200
        assert response.headers["x-sluice-output-limited-by"] == "tenant/tokens_per_day"
    await until_rows(database_url, USED, [(300,)])


async def test_an_answer_at_its_longest_allowed_length_says_so(database: Database, url: str) -> None:
    customer = await make_customer(database, limits={QuotaKind.OUTPUT_TOKENS: 5})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
        assert response.json()["usage"]["completion_tokens"] == 5
        assert response.headers["x-sluice-output-limited-by"] == "tenant/output_tokens"


async def test_where_no_output_is_allowed_the_limit_says_so_and_not_the_engine(
    database: Database, url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.OUTPUT_TOKENS: 0})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
        assert response.status_code == 400
        assert "may ask for at most 0" in response.json()["error"]["message"]


async def test_a_stream_tells_which_budget_ended_it_in_its_last_chunk(database: Database, url: str) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_MONTH: 600})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body(stream=True))
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["x_sluice_output_limited_by"] == "tenant/tokens_per_month"
    assert all("x_sluice_output_limited_by" not in chunk for chunk in chunks[:-1])


async def test_many_answers_that_run_out_together_use_the_budget_to_its_end_and_no_more(
    database: Database, database_url: str, url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 8_000})
    async with client_of(url, customer.secret) as client:
        answers = await asyncio.gather(*(client.post(CHAT, json=chat_body()) for _ in range(20)))
    served = [answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200]
    assert sum(served) == 8_000
    await until_rows(database_url, USED, [(8_000,)])
    assert value(database_url, HELD) == 0


async def test_an_answer_waits_a_little_for_a_rate_to_refill(database: Database, url: str) -> None:
    """300 a minute are 5 a second: where a day's budget would end it, it gets some more."""
    customer = await make_customer(database, tokens_per_minute=300)
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert response.headers["x-sluice-output-limited-by"] == "tenant/tokens_per_minute"
    assert response.json()["usage"]["total_tokens"] >= 300


async def test_a_store_that_goes_away_ends_an_answer_at_what_is_paid_and_charges_it_later(
    database: Database, database_url: str, url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 100_000})
    async with client_of(url, customer.secret) as client:
        async with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            store_switch.off()
            text = [line async for line in lines]
        store_switch.on()
    last = json.loads([line for line in text if line.startswith("data: {")][-1][6:])
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["x_sluice_output_limited_by"] == "database"
    await until_rows(database_url, "SELECT count(*) FROM usage_event WHERE completion_tokens >= 256", [(1,)])


async def test_a_client_that_leaves_while_more_is_borrowed_leaks_nothing(
    database: Database, database_url: str, url: str
) -> None:
    customer = await make_customer(database, tokens_per_minute=300)
    async with client_of(url, customer.secret) as client:
        for _ in range(3):
            async with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
                if response.status_code != 200:
                    break
                async for _ in response.aiter_lines():
                    pass
                    break
    await until_rows(database_url, HELD, [(0,)])
