"""300 requests, most of which end badly: afterwards nothing is held anywhere, and every row is settled."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

from engine import protocol
from tests.builders.sluice_process import SluiceProcess, wait_until
from tests.fakes.observer import latest_status

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_REQUESTS = 300
SEED = 20_261_129
SETTINGS = {
    "slo.itl_p95_ms": 60_000,  # guardrails are not asked here
    "scheduler.max_num_seqs": 12,
    "scheduler.waiting_timeout_ms": 2500,
    "gateway.request_timeout_seconds": 6,
}


@dataclass(frozen=True)
class Plan:
    """What one client does. `leaves_after` seconds it drops the connection; None: it waits for the end."""

    max_tokens: int
    is_streamed: bool
    leaves_after: float | None
    read_timeout: float | None


@pytest.fixture
def small(tmp_path: Path, default_model_dir: Path) -> Iterator[SluiceProcess]:
    running = SluiceProcess(tmp_path, model=default_model_dir, settings=SETTINGS, workers=2)
    yield running
    assert running.stop() == 0


def plans() -> list[Plan]:
    """A third leaves, a third runs out of some time, a third behaves."""
    rng = random.Random(SEED)
    leaving = [
        Plan(rng.choice([40, 200]), rng.random() < 0.5, rng.uniform(0.0, 3.0), None) for _ in range(100)
    ]
    late = [
        Plan(rng.choice([300, 600]), rng.random() < 0.5, None, rng.choice([0.3, 1.0, None]))
        for _ in range(100)
    ]
    good = [Plan(rng.randint(1, 12), rng.random() < 0.5, None, None) for _ in range(100)]
    mixed = leaving + late + good
    rng.shuffle(mixed)
    return mixed


async def send(client: httpx.AsyncClient, plan: Plan, index: int) -> tuple[str, dict | None]:
    """Carries out a plan; returns how it ended, and the body of a whole answer."""
    headers = {} if plan.read_timeout is None else {"x-stainless-read-timeout": str(plan.read_timeout)}
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": f"Story number {index}: " + "once upon a time " * (index % 7),
        "max_tokens": plan.max_tokens,
        "ignore_eos": True,
        "stream": plan.is_streamed,
    }
    request = client.post("/v1/completions", json=body, headers=headers)
    try:
        answer = await asyncio.wait_for(request, plan.leaves_after)
    except TimeoutError:
        return "left", None
    if plan.is_streamed or answer.status_code != 200:
        text = answer.text
        ended = "error event" if '"error"' in text and answer.status_code == 200 else str(answer.status_code)
        return ended, None
    return "200", answer.json()


async def send_all(running: SluiceProcess) -> list[tuple[str, dict | None]]:
    rng = random.Random(SEED + 1)
    async with httpx.AsyncClient(
        base_url=running.api,
        headers={"Authorization": f"Bearer {running.key}"},
        timeout=60,
        limits=httpx.Limits(max_connections=None),
    ) as client:
        tasks = []
        for index, plan in enumerate(plans()):
            tasks.append(asyncio.create_task(send(client, plan, index)))
            await asyncio.sleep(rng.expovariate(15))
        return await asyncio.gather(*tasks)


def ledger(running: SluiceProcess) -> dict[str, tuple[int, int, str]]:
    with psycopg.connect(running.database_url) as connection:
        rows = connection.execute(
            "SELECT request_id, prompt_tokens, completion_tokens, outcome FROM usage_event"
        ).fetchall()
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def num_live(running: SluiceProcess) -> int:
    with psycopg.connect(running.database_url) as connection:
        query = "SELECT coalesce(sum(num_live), 0)::int FROM replica_load"
        (count,) = connection.execute(query).fetchone() or (None,)
    assert isinstance(count, int)
    return count


def test_after_300_requests_that_mostly_go_wrong_nothing_is_held(small: SluiceProcess) -> None:
    endings = asyncio.run(send_all(small))
    counts = Counter(ending for ending, _ in endings)
    print(f"how the requests ended: {dict(counts)}")
    assert counts["left"] > 50
    assert counts["503"] > 0  # waited too long
    assert counts["504"] + counts["error event"] > 0  # ran out of their own time
    assert counts["200"] > 10  # enough whole answers to compare with the ledger

    wait_until(lambda: num_live(small) == 0, seconds=10, what="every request to be settled")
    status = asyncio.run(latest_status(small.engine, small.shared_secret, _is_idle))
    assert status.kv_blocks_used == 0
    assert status.kv_blocks_free + status.kv_blocks_cached == status.kv_blocks_total
    tenants = json.loads(small.command("tenants", "list", "--json"))
    assert [tenant["num_live_requests"] for tenant in tenants] == [0]

    rows = ledger(small)
    print(f"the ledger: {dict(Counter(outcome for _, _, outcome in rows.values()))}")
    assert "lost" not in {outcome for _, _, outcome in rows.values()}
    for _, answer in endings:
        if answer is not None:
            usage = answer["usage"]
            counted = (usage["prompt_tokens"], usage["completion_tokens"], "finished")
            assert rows[answer["id"]] == counted


def _is_idle(status: protocol.EngineStatus) -> bool:
    counts = (status.interactive, status.offline)
    return all(count.running == count.waiting == 0 for count in counts)
