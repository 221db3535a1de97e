"""`sluice serve`, and the single processes of an installation that is spread over machines."""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer

from deploy import configuration, local, serve_settings
from deploy.commands.options import ConfigFile, DatabaseUrl, DataDir
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.data_directory import DataDirectory
from deploy.failure import Failure
from deploy.gateway_workers import start_gateway
from deploy.listener import bind, port_of
from deploy.progress import Progress
from deploy.store import configured_url, store_url
from deploy.supervisor import Supervisor, python
from deploy.until_stopped import run_until_stopped
from gateway.settings import load_settings
from migrations import run as migrations

Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API.", show_default="8080")]
AdminPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the admin UI.", show_default="8081")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Gateway processes that share the port.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A name, a Hugging Face directory, a .gguf file or a hub id.",
        show_default="smollm2-135m-instruct",
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    admin_port: AdminPort = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    model: Model = None,
    workers: Workers = 1,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    config: ConfigFile = None,
) -> None:
    """Runs everything on this machine: Postgres, engine, gateway and admin UI."""
    _require_engine()
    configuration.use_config_file(config)
    configuration.set_options({"gateway.host": host, "gateway.port": port, "admin.port": admin_port})
    configuration.set_options({"engine.model": model})
    settings = serve_settings.load()
    options = local.LocalOptions(
        data_dir=data_dir,
        model=settings.engine.model,
        num_workers=workers,
        host=settings.gateway.host,
        port=settings.gateway.port,
        admin_host=settings.admin.host,
        admin_port=settings.admin.port,
        metrics_port=metrics_port,
        engine_drain_seconds=settings.engine.drain_seconds,
    )
    asyncio.run(local.serve(options, Progress()))


def gateway(
    host: Host = None,
    port: Port = None,
    workers: Workers = 1,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Of /metrics.")] = 9100,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    config: ConfigFile = None,
) -> None:
    """Runs the gateway: the API that tenants use."""
    configuration.use_config_file(config)
    configuration.set_options({"gateway.host": host, "gateway.port": port})
    settings, directory, progress = load_settings(), DataDirectory(data_dir.resolve()), Progress()
    directory.create()
    listener = bind(settings.gateway.host, settings.gateway.port, option="--port")
    # By port: the data directory may be that of a `sluice serve`, which has workers of its own.
    log_directory = directory.logs / f"gateway-at-{port_of(listener)}"
    supervisor = Supervisor(log_directory=log_directory, say=progress.say)

    def start(at_exit: AsyncExitStack) -> Coroutine[Any, Any, str]:
        return start_gateway(
            settings,
            listener,
            supervisor,
            num_workers=workers,
            metrics_port=metrics_port,
            progress=progress,
            at_exit=at_exit,
        )

    asyncio.run(run_until_stopped(start, supervisor, progress.say))


def engine(
    listen: Annotated[str | None, typer.Option(help="host:port", show_default="127.0.0.1:8090")] = None,
    model: Model = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    config: ConfigFile = None,
) -> None:
    """Runs one engine: a model replica that gateways connect to."""
    _require_engine()
    configuration.use_config_file(config)
    configuration.set_options({"engine.listen": listen, "engine.model": model, "data_dir": str(data_dir)})
    _become("deploy.engine_process")


def admin(host: Host = None, admin_port: AdminPort = None, config: ConfigFile = None) -> None:
    """Runs the admin UI."""
    configuration.use_config_file(config)
    configuration.set_options({"admin.host": host, "admin.port": admin_port})
    _become("deploy.admin_process")


def migrate(data_dir: DataDir = DEFAULT_DATA_DIR, database_url: DatabaseUrl = None) -> None:
    """Brings the database to the newest schema."""
    external = configured_url(database_url)
    if external is not None:
        migrations.upgrade(external)
    else:
        with store_url(data_dir=data_dir, database_url=None):
            pass  # an embedded store that is up has the newest schema
    print("The database has the newest schema.")


def _require_engine() -> None:
    """The base install is gateway and admin UI; an engine needs more."""
    if find_spec("torch") is None:
        raise Failure("the engine is not installed; pip install 'sluice-llm[engine]'")


def _become(module: str) -> NoReturn:
    """Replaces this process, so that signals and the exit status are the part's own."""
    command = python(module)
    try:
        os.execv(command[0], command)  # noqa: S606  # our own interpreter and module
    except OSError as error:
        raise Failure(f"cannot start {module}: {error.strerror}") from error
