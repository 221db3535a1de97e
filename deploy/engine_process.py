"""The engine's process: `python -m deploy.engine_process`. Settings: environment and file."""

import sys
from pathlib import Path

from deploy import lifeline, models
from deploy.failure import fail
from deploy.listener import AddressUnavailable, open_listener
from engine import app, settings
from engine.errors import EngineError
from gateway.logs import configure_logging


def main() -> int:
    """Runs the engine until it is told to stop; returns the exit status."""
    lifeline.hold()
    configure_logging(sys.stderr)
    try:
        chosen = settings.load()
        listener = open_listener(chosen.engine.listen, option="engine.listen")
        return app.run(
            chosen,
            model_name=served_name(chosen.engine.model),
            directory=models.find(chosen.engine.model, chosen.data_dir),
            listener=listener,
        )
    except (EngineError, AddressUnavailable, models.ModelNotAvailable) as error:
        fail(error)


def served_name(model: str) -> str:
    """The name that requests use: a path's last part without .gguf, or a name as it is."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else model


if __name__ == "__main__":
    raise SystemExit(main())
