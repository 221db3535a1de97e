"""How long the store side takes: reserve and settle.

python -m tests.benchmarks.store_latency [--clients 32] [--requests 4000] [--tenants 1]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from deploy.embedded_postgres import start
from gateway.db import Database
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from migrations.run import upgrade
from tests.builders.store import Customer, make_customer, reserve, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--tenants", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = start(Path(directory))
        try:
            upgrade(server.url)
            asyncio.run(
                measure(server.url, arguments.clients, arguments.requests, num_tenants=arguments.tenants)
            )
        finally:
            server.stop()


async def measure(url: str, num_clients: int, num_requests: int, *, num_tenants: int) -> None:
    database = Database.connect(url, application_name="benchmark", pool_size=8)
    customers = [
        await make_customer(
            database, f"tenant-{number}", concurrent_requests=1_000, tokens_per_minute=1_000_000_000
        )
        for number in range(num_tenants)
    ]
    metering = Metering(database, "benchmark")
    await metering.start()
    for clients in (1, num_clients):
        await measure_requests(metering, customers, clients, num_requests * clients // num_clients)
    await metering.stop()
    await database.close()


async def measure_requests(
    metering: Metering, customers: list[Customer], num_clients: int, num_requests: int
) -> None:
    reserving: list[float] = []
    settling: list[float] = []

    async def client(caller: Caller, num_turns: int) -> None:
        for _ in range(num_turns):
            begun = time.perf_counter()
            reservation = await reserve(metering, caller)
            reserved = time.perf_counter()
            metering.settle(reservation, used(10, 10), Outcome.FINISHED)
            settling.append(time.perf_counter() - reserved)
            reserving.append(reserved - begun)

    begun = time.perf_counter()
    callers = [customers[number % len(customers)].caller for number in range(num_clients)]
    await asyncio.gather(*(client(caller, num_requests // num_clients) for caller in callers))
    rate = len(reserving) / (time.perf_counter() - begun)
    print(
        f"{num_clients} clients, {len(customers)} tenants: {rate:.0f} requests/s; "
        f"reserve {summary(reserving)}; settle {summary(settling)}"
    )


def summary(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1e3:.2f} ms p99 {cuts[98] * 1e3:.2f} ms"


if __name__ == "__main__":
    main()
