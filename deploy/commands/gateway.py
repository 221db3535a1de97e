"""`sluice gateway`."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from deploy import configuration
from deploy.commands.options import ConfigFile, DataDir, Host, Port, Workers
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.data_directory import DataDirectory
from deploy.gateway_workers import start_gateway
from deploy.listener import bind, port_of
from deploy.progress import Progress
from deploy.supervisor import Supervisor
from deploy.until_stopped import run_until_stopped
from gateway.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command()
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
    configuration.set_defaults({"gateway.journal_dir": str(directory.journal)})
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
