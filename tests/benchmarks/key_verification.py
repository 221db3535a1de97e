"""How long it takes to tell who calls, where no SQL is needed for it.

python -m tests.benchmarks.key_verification [--checks 20000]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded_postgres import start
from gateway.db import Database
from gateway.errors import InvalidApiKey
from gateway.keys.secret import make_key
from gateway.keys.service import KeyService
from migrations.run import upgrade
from tests.builders.key_checks import bearer
from tests.builders.statements import counted_statements
from tests.builders.store import PEPPER, make_customer

ROUNDS = 10  # the fastest counts: the others were interrupted


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One check's time, and the statements that all of them sent."""

    microseconds: float
    num_statements: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = start(Path(directory))
        try:
            upgrade(server.url)
            figures = asyncio.run(measure(server.url, num_checks=arguments.checks))
        finally:
            server.stop()
    print(f"{'presented':<44} {'us a check':>10} {'SQL':>5}")
    for presented, figure in figures.items():
        print(f"{presented:<44} {figure.microseconds:>10.2f} {figure.num_statements:>5}")


async def measure(url: str, *, num_checks: int) -> Mapping[str, Figure]:
    """By what is presented."""
    database = Database.connect(url, application_name="benchmark", pool_size=1)
    keys = KeyService(database, PEPPER)
    customer = await make_customer(database)
    unknown = make_key().value
    presented = {
        "a cached key": customer.secret,
        "junk with a wrong checksum": customer.secret[:-1] + ("a" if customer.secret[-1] != "a" else "b"),
        "junk as long as a header may be": "sk-live-" + "a" * 60_000,
        "a well-formed key that was refused just now": unknown,
    }
    figures = {name: await check(keys, secret, num_checks=num_checks) for name, secret in presented.items()}
    await database.close()
    return figures


async def check(keys: KeyService, secret: str, *, num_checks: int) -> Figure:
    """The first time it is presented may cost SQL and does not count."""
    header = bearer(secret)
    await present(keys, header, num_times=1)
    with counted_statements() as statements:
        seconds = [await present(keys, header, num_times=num_checks // ROUNDS) for _ in range(ROUNDS)]
    return Figure(microseconds=min(seconds) / (num_checks // ROUNDS) * 1e6, num_statements=len(statements))


async def present(keys: KeyService, header: str, *, num_times: int) -> float:
    """Seconds of the processor that it took: nobody is waited for, and others may be at work here."""
    begun = time.thread_time()
    for _ in range(num_times):
        with suppress(InvalidApiKey):
            await keys.authenticate(header)
    return time.thread_time() - begun


if __name__ == "__main__":
    main()
