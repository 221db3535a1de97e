"""What an engine's /metrics says after requests that really ran."""

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect

from engine import protocol
from engine.protocol import Finished, GenerateRequest, Hello, Refused, RequestClass, Sampling, StepEvents
from tests.builders.scripted_engine import SHARED_SECRET, scripted_engine

Rows = dict[tuple[str, frozenset[tuple[str, str]]], float]


def request(id: str, *, max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(
        id=id,
        trace_id="t",
        model="scripted",
        tenant="1",
        tenant_name="acme",
        request_class=RequestClass.INTERACTIVE,
        prompt_ids=tuple(range(3, 43)),
        sampling=Sampling(max_tokens=max_tokens),
        timeout_ms=30_000,
        epoch=1,
        cache_namespace=b"acme",
    )


async def answer(websocket: ClientConnection, message: GenerateRequest) -> None:
    """Sends a request and waits until it is over."""
    await websocket.send(protocol.encode(message))
    while True:
        frame = await asyncio.wait_for(websocket.recv(), 5)
        assert isinstance(frame, bytes)
        told = protocol.decode_from_engine(frame)
        if isinstance(told, StepEvents) and isinstance(told.events[-1], Finished | Refused):
            return


def scrape(url: str) -> Rows:
    with urllib.request.urlopen(url.replace("ws://", "http://") + "/metrics", timeout=5) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {
        (sample.name.removeprefix("sluice_engine_"), frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
async def rows() -> Rows:
    """The page after one prompt was answered twice and a request that asks for nothing was refused."""
    async with scripted_engine("{}") as engine:
        headers = {"Authorization": f"Bearer {SHARED_SECRET}"}
        async with connect(engine.url, additional_headers=headers) as websocket:
            hello = Hello(protocol.PROTOCOL_MAJOR, protocol.PROTOCOL_MINOR, "gateway", 1)
            await websocket.send(protocol.encode(hello))
            await answer(websocket, request("first"))
            await answer(websocket, request("second"))
            await answer(websocket, request("third", max_tokens=0))
        return await asyncio.to_thread(scrape, engine.url)


BY_CLASS = {"request_class": "interactive"}
BY_SIZE = {**BY_CLASS, "prompt_size": "short"}
TENANT = {"tenant": "acme"}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("admission_outcomes_total", {"reason": "admitted", **BY_CLASS, **TENANT}, 2),
        ("admission_outcomes_total", {"reason": "invalid_request", **BY_CLASS, **TENANT}, 1),
        ("request_success_total", {"finished_reason": "length", **BY_CLASS, **TENANT}, 2),
        ("time_to_first_token_seconds_count", BY_SIZE, 2),
        ("inter_token_latency_seconds_count", BY_SIZE, 6),
        ("request_max_inter_token_latency_seconds_count", BY_SIZE, 2),
        ("request_time_per_output_token_seconds_count", BY_CLASS, 2),
        ("prompt_tokens_total", TENANT, 80),
        ("prompt_tokens_cached_total", TENANT, 32),
        ("generation_tokens_total", TENANT, 8),
        ("prefix_cache_queries_total", {}, 80),
        ("prefix_cache_hits_total", {}, 32),
        ("iteration_tokens_by_kind_sum", {"kind": "decode"}, 6),
        ("iteration_tokens_by_kind_sum", {"kind": "prefill"}, 48),
        ("guardrail_level", {}, 0),
    ],
)
async def test_what_ran_shows(rows: Rows, name: str, labels: dict[str, str], expected: float) -> None:
    assert rows[name, frozenset(labels.items())] == expected


async def test_the_blocks_of_what_is_over_are_given_back(rows: Rows) -> None:
    freed = rows["kv_blocks_freed_total", frozenset({("cause", "finished")})]
    used = rows["kv_blocks", frozenset({("state", "used")})]
    assert (freed, used) == (6, 0)
