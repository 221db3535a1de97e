"""`sluice serve`."""

import asyncio
from typing import Annotated

import typer

from deploy import configuration, local, serve_settings
from deploy.commands.engine import require_engine
from deploy.commands.options import AdminPort, ConfigFile, DataDir, Host, Model, Port, Workers
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.progress import Progress

app = typer.Typer(add_completion=False)


@app.command()
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
    require_engine()
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
