"""Two keys of one tenant at a real gateway and a scripted engine: each gets what it weighs."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from engine.core.slo import SloTargets
from engine.runner.scripted_runner import ScriptedRunner, letters
from gateway.db import Database
from gateway.key_administration import issue_key
from tests.builders.engine_messages import engine_description
from tests.builders.scripted_engine import LIMITS, scripted_engine
from tests.builders.store import PEPPER, make_customer
from tests.builders.stored_gateway import client_of, stored_gateway

pytestmark = pytest.mark.postgres

CLIENTS = 16  # of each key, each with one request at a time, so that both always have some that wait
FIRST, COUNTED = 32, 64  # requests that end before the order has settled, and those that are looked at
BODY = {"model": "scripted", "prompt": "abcd", "max_tokens": 8}


async def test_of_two_keys_that_both_want_more_the_one_of_thrice_the_weight_gets_three_for_one(
    database: Database, database_url: str
) -> None:
    await make_customer(database)
    secrets = {
        name: (await issue_key(database, PEPPER, "test", "acme", name=name, weight=weight)).secret
        for name, weight in (("light", 1.0), ("heavy", 3.0))
    }
    slow = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.02)
    async with (
        scripted_engine(
            engine_description().tokenizer_json,
            limits=replace(LIMITS, max_num_seqs=4),
            runner=slow,
            targets=SloTargets(queue_wait_p95_ms=60_000),  # whoever waits here is meant to
        ) as engine,
        stored_gateway(database_url, engine) as url,
    ):
        ended = await _ended_in_order(url, secrets)
    counted = Counter(ended[FIRST : FIRST + COUNTED])
    assert 2.5 <= counted["heavy"] / counted["light"] <= 3.5, counted


async def _ended_in_order(url: str, secrets: dict[str, str]) -> list[str]:
    """Whose requests came to their end, first to last."""
    ended: list[str] = []

    async def ask_again_and_again(name: str) -> None:
        async with client_of(url, secrets[name]) as client:
            while len(ended) < FIRST + COUNTED:
                response = await client.post("/v1/completions", json=BODY)
                assert response.status_code == 200, response.text
                ended.append(name)

    await asyncio.gather(*(ask_again_and_again(name) for _ in range(CLIENTS) for name in secrets))
    return ended
