"""Ours, as a user starts it: `sluice serve` with store, keys, quotas, gateway, engine and admin UI."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.models import prepared_in
from tests.benchmarks.peers.http_load import HttpServer
from tests.benchmarks.peers.model_files import model_directory
from tests.benchmarks.peers.system import PEERS, NotAvailable
from tests.builders.sluice_process import SluiceProcess

TENANT: Final = "bench"
# Far above the load: what is compared is speed, and the checks cost the same whatever the limit.
CONCURRENT_REQUESTS: Final = 1_000
TOKENS_PER_MINUTE: Final = 10_000_000
# Peers promise no latency. Held to promises that this load breaks, ours would slow some and refuse others.
NO_PROMISES: Final = {
    "slo.ttft_p95_ms": "600000",
    "slo.itl_p95_ms": "60000",
    "slo.queue_wait_p95_ms": "600000",
    "scheduler.waiting_timeout_ms": "600000",
}


class SluiceServe:
    """A new data directory for each start, and a tenant with both limits.

    Packed weights are kept from start to start, as peers keep what they compiled.
    """

    def __init__(self, *, dtype: str, settings: Mapping[str, str]) -> None:
        self.name = f"ours-{dtype}"
        self.description = f"sluice serve, {dtype}"
        self._settings = {**NO_PROMISES, **settings, "engine.dtype": dtype}

    def prepare(self) -> None:
        """Raises NotAvailable."""
        model_directory()

    @contextmanager
    def running(self) -> Iterator[HttpServer]:
        """Raises NotAvailable."""
        with TemporaryDirectory() as directory:
            _keep_prepared(Path(directory))
            try:
                sluice = SluiceProcess(Path(directory), model=model_directory(), settings=self._settings)
            except AssertionError as error:
                raise NotAvailable(_reason(str(error))) from error
            try:
                yield HttpServer(url=sluice.api, key=_key(sluice))
            finally:
                sluice.stop()


def _keep_prepared(data_dir: Path) -> None:
    kept, place = PEERS / "ours-prepared", prepared_in(data_dir)
    kept.mkdir(parents=True, exist_ok=True)
    place.parent.mkdir(parents=True)
    place.symlink_to(kept)


def _key(sluice: SluiceProcess) -> str:
    limits = (
        "--concurrent-requests",
        str(CONCURRENT_REQUESTS),
        "--tokens-per-minute",
        str(TOKENS_PER_MINUTE),
    )
    sluice.command("tenants", "create", TENANT, *limits)
    return sluice.command("keys", "create", "--tenant", TENANT, "--quiet").strip()


def _reason(output: str) -> str:
    said = [line for line in output.splitlines() if line.startswith("sluice:")]
    return (said or output.strip().splitlines())[-1]
