"""`/metrics` of a gateway: the sums of all its workers, under few labels."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deploy.metrics_server import MetricsServer
from tests.builders.bodies import chat_body
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.websocket_engine import answer

NUM_WORKERS = 4
WORKER_PROGRAM = """
import sys, time
from prometheus_client import CollectorRegistry
from gateway.metrics import GatewayMetrics

metrics = GatewayMetrics(CollectorRegistry())
metrics.quota_rejected.labels("rate_limit_exceeded").inc(10)
metrics.overhead.observe(0.002)
metrics.in_flight.set(3)
metrics.engines_connected.set(2)
print("counted", flush=True)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(host="127.0.0.1", port=0)
    yield server
    server.stop()


def figures(page: str) -> dict[str, float]:
    """By name; of those with labels the sum."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def started_worker(server: MetricsServer) -> "subprocess.Popen[str]":
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER_PROGRAM], env=server.environment, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "counted\n"
    return worker


def test_metrics_of_four_workers_are_their_sum_and_a_dead_one_leaves_its_counts(
    server: MetricsServer,
) -> None:
    """H8: whichever worker answered showed its own figures."""
    workers = [started_worker(server) for _ in range(NUM_WORKERS)]
    try:
        seen = figures(httpx.get(server.url, trust_env=False).text)
        assert seen["gateway_quota_rejected_total"] == 40
        assert seen["gateway_overhead_seconds_count"] == 4
        assert seen["gateway_requests_in_flight"] == 12
        assert seen["gateway_engines_connected"] == 2, "all of them mean the same engines"
        dead = workers.pop()
        with dead:
            dead.kill()
        server.forget()(dead.pid)
        seen = figures(httpx.get(server.url, trust_env=False).text)
        assert seen["gateway_quota_rejected_total"] == 40
        assert seen["gateway_requests_in_flight"] == 9
    finally:
        for worker in workers:
            with worker:
                worker.kill()


async def test_junk_model_names_and_users_make_no_labels(gateway: GatewayUnderTest) -> None:
    """H7: whatever a client writes, the page stays as long as it was."""
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        await client.post("/v1/chat/completions", json=chat_body())
        await client.post("/v1/chat/completions", json=chat_body(model="junk-0"))
        before = generate_latest(gateway.registry).decode()
        for number in range(50):
            body = chat_body(model=f"junk-{number}", user=f"junk-user-{number}")
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 404
            assert (await client.post(f"/v1/junk-{number}", json=body)).status_code == 404
            served = chat_body(user=f"junk-user-{number}")
            assert (await client.post("/v1/chat/completions", json=served)).status_code == 200
    after = generate_latest(gateway.registry).decode()
    assert "junk" not in after
    assert len(after.splitlines()) == len(before.splitlines())
