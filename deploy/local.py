"""Everything on one machine: `sluice serve` starts the parts in order, keeps them running and stops them.

    ─┬─▶ model ──▶ engine ────────────────────────────────────────────────────────────────┬─▶ ready
     └─▶ Postgres ──▶ schema ──▶ first tenant, key ──▶ gateway workers, admin UI ───────────┘

Gateways and admin UI are started after the engine, however long its model takes: it is stopped after them.

What stops, stops in the reverse order, so that nobody loses what they stand on.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import banner, configuration, first_start, models, probe
from deploy.data_directory import DataDirectory
from deploy.failure import Failure
from deploy.first_start import FirstStart
from deploy.gateway_workers import worker_specs
from deploy.listener import LISTENER_VARIABLE, LOOPBACK, bind, local_url
from deploy.metrics_server import MetricsServer
from deploy.postgres_keeper import PostgresKeeper
from deploy.progress import Progress
from deploy.store import DATABASE_URL_VARIABLE, configured_url
from deploy.supervisor import ChildSpec, Supervisor, python
from deploy.until_stopped import run_until_stopped
from gateway.settings import GatewaySettings, load_settings
from migrations import run as migrations

# The engine computes for whoever knows the shared secret; the store and its keys are none of its business.
ENGINE_WITHHELD = frozenset(
    {
        DATABASE_URL_VARIABLE,
        configuration.variable("secrets.key_pepper"),
        configuration.variable("secrets.cache_namespace"),
    }
)
EXTRA_ENGINE_STOP_SECONDS = 5.0  # to close and end after the last answer
ADMIN_STOP_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """What the command line and the settings say."""

    data_dir: Path
    model: str
    num_workers: int
    host: str
    port: int
    admin_host: str
    admin_port: int
    metrics_port: int
    engine_drain_seconds: float


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """The sockets that children inherit; they are bound before anything starts, and kept over restarts."""

    api: socket.socket
    admin: socket.socket
    engine: socket.socket

    @classmethod
    def bind(cls, options: LocalOptions) -> "Listeners":
        """Binds all of them; raises AddressUnavailable naming the option to change."""
        return cls(
            api=bind(options.host, options.port, option="--port"),
            admin=bind(options.admin_host, options.admin_port, option="--admin-port"),
            engine=bind(LOOPBACK, 0, option="engine.listen"),
        )

    def close(self) -> None:
        """Lets the addresses go."""
        for listener in (self.api, self.admin, self.engine):
            listener.close()


async def serve(options: LocalOptions, progress: Progress) -> None:
    """Runs until Ctrl-C or SIGTERM. Raises the one-line error of whatever cannot start."""
    directory = DataDirectory(options.data_dir.resolve())
    directory.create()
    supervisor = Supervisor(log_directory=directory.logs, say=progress.say)

    def start(at_exit: AsyncExitStack) -> Coroutine[Any, Any, str]:
        return LocalServer(options, directory, supervisor, progress, at_exit).start()

    await run_until_stopped(start, supervisor, progress.say)


class LocalServer:
    """The parts of one run; what each needs to be stopped is left with `at_exit`."""

    def __init__(
        self,
        options: LocalOptions,
        directory: DataDirectory,
        supervisor: Supervisor,
        progress: Progress,
        at_exit: AsyncExitStack,
    ) -> None:
        self._options = options
        self._directory = directory
        self._supervisor = supervisor
        self._progress = progress
        self._at_exit = at_exit
        self._listeners = Listeners.bind(options)
        self._metrics = MetricsServer(host=LOOPBACK, port=options.metrics_port)

    async def start(self) -> str:
        """Starts everything; returns what to tell the person at the terminal."""
        self._at_exit.callback(self._metrics.stop)
        store_exit = await self._at_exit.enter_async_context(AsyncExitStack())
        self._at_exit.push_async_callback(self._supervisor.stop)  # children first, then what they stand on
        # Before them all: who connects while the workers drain is refused at once, and waits for nobody.
        self._at_exit.callback(self._listeners.close)
        self._set_environment()
        async with asyncio.TaskGroup() as group:
            model = group.create_task(self._find_model())
            group.create_task(self._start_engine(model))
            settings, first = await self._open_store(store_exit)
            await model  # so the engine is started before them, and stopped after them
            group.create_task(self._start_admin())
            for spec in self._worker_specs(settings):
                group.create_task(self._start_child(spec, local_url(self._listeners.api) + "/readyz"))
        return await self._banner(settings, first)

    def _set_environment(self) -> None:
        """Tells the children where the others are, and gives an embedded store its secrets."""
        if configured_url(None) is None:
            configuration.use_secrets_of(self._directory)
        configuration.set_defaults(
            {
                "gateway.journal_dir": str(self._directory.journal),
                "files.directory": str(self._directory.files),
            }
        )
        configuration.set_options(
            {
                "data_dir": str(self._directory.path),
                "engine.model": self._options.model,
                "engine.listen": f"fd:{self._listeners.engine.fileno()}",
                "gateway.engines": local_url(self._listeners.engine, scheme="ws"),
                "admin.api_url": local_url(self._listeners.api),
            }
        )

    async def _open_store(self, at_exit: AsyncExitStack) -> tuple[GatewaySettings, FirstStart]:
        if configured_url(None) is None:
            with self._progress.step("Postgres"):
                postgres = await PostgresKeeper.start(self._directory.path, self._progress.say)
            at_exit.push_async_callback(postgres.stop)
            os.environ[DATABASE_URL_VARIABLE] = postgres.url
        settings = load_settings()
        with self._progress.step("database schema"):
            await asyncio.to_thread(migrations.upgrade, settings.database_url)
        return settings, await first_start.prepare(settings, self._directory)

    async def _find_model(self) -> None:
        with self._progress.step(f"model {self._options.model}"):
            await asyncio.to_thread(models.find, self._options.model, self._directory.path)

    async def _start_engine(self, model: asyncio.Task[None]) -> None:
        await model
        listener = self._listeners.engine
        spec = ChildSpec(
            name="engine",
            command=python("deploy.engine_process"),
            withheld=ENGINE_WITHHELD,
            file_descriptors=(listener.fileno(),),
            stop_seconds=self._options.engine_drain_seconds + EXTRA_ENGINE_STOP_SECONDS,
        )
        await self._start_child(spec, local_url(listener) + "/healthz")

    async def _start_admin(self) -> None:
        listener = self._listeners.admin
        spec = ChildSpec(
            name="admin",
            command=python("deploy.admin_process"),
            environment={LISTENER_VARIABLE: f"fd:{listener.fileno()}"},
            file_descriptors=(listener.fileno(),),
            stop_seconds=ADMIN_STOP_SECONDS,
        )
        await self._start_child(spec, local_url(listener) + "/healthz")

    def _worker_specs(self, settings: GatewaySettings) -> list[ChildSpec]:
        return worker_specs(
            num_workers=self._options.num_workers,
            listener=self._listeners.api,
            metrics=self._metrics,
            drain_seconds=settings.gateway.drain_seconds,
        )

    async def _start_child(self, spec: ChildSpec, health_url: str) -> None:
        with self._progress.step(spec.name):
            child = await self._supervisor.start(spec)
            await child.until_ready(lambda: probe.is_up(health_url))

    async def _banner(self, settings: GatewaySettings, first: FirstStart) -> str:
        engine_url = local_url(self._listeners.engine, scheme="ws")
        described = await probe.describe_engine(engine_url, settings.secrets.engine_shared)
        if described is None:
            raise Failure(f"the engine went away while starting; see {self._directory.logs}/engine.log")
        self._directory.admin_url.write_text(local_url(self._listeners.admin) + "\n")
        return banner.text(
            addresses=banner.Addresses(
                api=local_url(self._listeners.api),
                admin=local_url(self._listeners.admin),
                gateway_metrics=self._metrics.url,
                engine=local_url(self._listeners.engine),
            ),
            engine=described,
            first=first,
            directory=self._directory,
            num_workers=self._options.num_workers,
            seconds=self._progress.seconds(),
        )
