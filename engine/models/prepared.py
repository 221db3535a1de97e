"""The folder of what was worked out about models once, for later starts. Knows files, not what is in them."""

import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


def prepared_path(folder: Path, directory: Path, suffix: str) -> Path:
    """The file in `folder` for the model in `directory`: one for each suffix, replaced when out of date."""
    directory = directory.resolve()
    place = hashlib.blake2b(str(directory).encode(), digest_size=4).hexdigest()
    return folder / f"{directory.name}-{place}{suffix}"


def keep(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make the file. One that cannot be written is said, and costs the next start its time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: another engine may be reading, or writing, the same one.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as folder:
            built = Path(folder) / path.name
            write(built)
            built.replace(path)
    except OSError as error:
        logger.warning("%s cannot be kept for the next start: %s", path.name, error)
