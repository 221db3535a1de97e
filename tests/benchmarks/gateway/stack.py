"""All that a scenario runs on: a new store, an engine in place of a model, and one or several gateways."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.gateway.child import Child, child
from tests.benchmarks.gateway.cores import Layout
from tests.benchmarks.gateway.customers import Limits, make_customer
from tests.benchmarks.gateway.gateway_process import GatewayProcess, clean_environment, running_gateway
from tests.benchmarks.gateway.http_request import Address
from tests.benchmarks.gateway.store import Store, running_store
from tests.builders.scripted_engine import SHARED_SECRET


@dataclass(frozen=True, kw_only=True)
class TimerKind:
    """An engine that answers by timers (`timer_process`)."""

    first_ms: float = 0.0
    token_ms: float = 0.0

    def start(self, layout: Layout) -> AbstractContextManager[Child]:
        """The process."""
        arguments = ("--first-ms", str(self.first_ms), "--token-ms", str(self.token_ms))
        return child("timer_process", "--secret", SHARED_SECRET, *arguments, cores=layout.others)


@dataclass(frozen=True, kw_only=True)
class ScriptedKind:
    """The real engine without a model (`scripted_process`). `spans` is a file that it fills at its end."""

    step_ms: float
    spans: Path | None = None

    def start(self, layout: Layout) -> AbstractContextManager[Child]:
        """The process."""
        spans = () if self.spans is None else ("--spans", str(self.spans))
        return child("scripted_process", "--step-ms", str(self.step_ms), *spans, cores=layout.others)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What runs. `gateways` are replicas of one installation, each with its own port and workers."""

    store: Store
    engine: Child
    gateways: Sequence[GatewayProcess]
    environment: Mapping[str, str] = field(repr=False)

    def customer(self, name: str, limits: Limits | None = None) -> str:
        """Makes a tenant; returns its key."""
        return make_customer(name, limits or Limits(), self.environment)

    def address(self, place: int = 0) -> Address:
        """Of one of the gateways."""
        return Address(host=self.gateways[place].host, port=self.gateways[place].port)

    @property
    def direct(self) -> Address:
        """Of the timer itself, without a gateway."""
        return Address(host="127.0.0.1", port=self.engine.said["http"])


@contextmanager
def running_stack(
    engine: TimerKind | ScriptedKind, layout: Layout, *, num_workers: int = 1, num_gateways: int = 1
) -> Iterator[Stack]:
    """Everything, until the block ends."""
    with ExitStack() as at_exit:
        data_dir = Path(at_exit.enter_context(TemporaryDirectory(prefix="sluice-bench-")))
        store = at_exit.enter_context(running_store(data_dir, layout.others))
        process = at_exit.enter_context(engine.start(layout))
        environment = clean_environment(_settings(store, process, data_dir))
        gateways = [
            at_exit.enter_context(
                running_gateway(
                    data_dir / f"gateway-{number}",
                    environment,
                    num_workers=num_workers,
                    cores=layout.gateway,
                )
            )
            for number in range(num_gateways)
        ]
        yield Stack(store=store, engine=process, gateways=gateways, environment=environment)


def _settings(store: Store, engine: Child, data_dir: Path) -> dict[str, str]:
    return {
        "files.directory": str(data_dir / "files"),
        "database_url": store.url,
        "gateway.engines": f"ws://127.0.0.1:{engine.said['wire']}",
        "secrets.engine_shared": SHARED_SECRET,
        "secrets.key_pepper": secrets.token_hex(32),
        "secrets.cache_namespace": secrets.token_hex(32),
    }
