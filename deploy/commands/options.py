"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="SLUICE_DATA_DIR", help="Where `sluice serve` keeps its data.")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", envvar="SLUICE_DATABASE_URL", help="A Postgres to use instead of the embedded one."
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", envvar="SLUICE_CONFIG", help="A TOML file of settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
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
