"""`sluice engine`."""

from importlib.util import find_spec
from typing import Annotated

import typer

from deploy import configuration, engine_process
from deploy.commands.options import ConfigFile, DataDir, Model
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.failure import Failure

app = typer.Typer(add_completion=False)


@app.command()
def engine(
    listen: Annotated[str | None, typer.Option(help="host:port", show_default="127.0.0.1:8090")] = None,
    model: Model = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    config: ConfigFile = None,
) -> None:
    """Runs one engine: a model replica that gateways connect to."""
    require_engine()
    configuration.use_config_file(config)
    configuration.set_options({"engine.listen": listen, "engine.model": model, "data_dir": str(data_dir)})
    raise typer.Exit(engine_process.main())


def require_engine() -> None:
    """The base install is gateway and admin UI; an engine needs more."""
    if find_spec("torch") is None:
        raise Failure("the engine is not installed; pip install 'sluice-llm[engine]'")
