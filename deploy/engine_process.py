"""The engine's process: `python -m deploy.engine_process`. Settings: environment and file.

What computes is imported last: that takes seconds, and whoever wrote a wrong setting should not wait for it.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy import lifeline, models
from deploy.engine_settings import load_settings
from deploy.failure import fail
from deploy.garbage import collect_seldom
from deploy.listener import AddressUnavailable, open_listener
from engine.errors import EngineError
from gateway.logs import configure_logging
from gateway.setting_sources import ConfigurationError


def main() -> int:
    """Runs the engine until it is told to stop; returns the exit status."""
    lifeline.hold()
    configure_logging(sys.stderr)
    try:
        settings = load_settings()
        listener = open_listener(settings.engine.listen, option="engine.listen")
        directory = models.find(settings.engine.model, settings.data_dir)
        with _nothing_collected():
            from engine import app
        return app.run(
            settings.of_engine,
            model_name=served_name(settings.engine.model),
            directory=directory,
            prepared_in=models.prepared_in(settings.data_dir),
            listener=listener,
        )
    except (ConfigurationError, EngineError, AddressUnavailable, models.ModelNotAvailable) as error:
        fail(error)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Imports make half a million objects that stay. The garbage collector would look through them again and
    again, which takes a fifth of their time; now it never will."""
    gc.disable()
    yield
    collect_seldom()
    gc.enable()


def served_name(model: str) -> str:
    """The name that requests use: a path's last part without .gguf, or a name as it is."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else model


if __name__ == "__main__":
    raise SystemExit(main())
