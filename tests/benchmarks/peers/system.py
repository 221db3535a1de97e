"""What the comparison asks of a system: to be there, to run, to carry a load. Knows none of them."""

import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from deploy.bench.figures import Figures
from tests.benchmarks.peers.loads import Load

CACHE: Final = Path(__file__).parents[3] / ".cache"
PEERS: Final = CACHE / "peers"


class NotAvailable(Exception):
    """A system cannot be set up or cannot serve on this machine; the message is one line with the reason."""


class Running(Protocol):
    """A system that is ready for requests."""

    def carry_out(self, load: Load, *, seed: int) -> Figures:
        """What the load took; raises NotAvailable when the system does not survive it."""
        ...


class System(Protocol):
    """One column of the table. `description` says version and precision."""

    name: str
    description: str

    def prepare(self) -> None:
        """Installs and fetches what is missing; raises NotAvailable."""
        ...

    def running(self) -> AbstractContextManager[Running]:
        """A fresh start, ended with the block; raises NotAvailable."""
        ...


def num_cores() -> int:
    """Those that this process, and so every system, may use."""
    return len(os.sched_getaffinity(0))


def has_fast_bfloat16() -> bool:
    """Without AVX-512 each value is converted: vLLM's products then take six times those of float32."""
    with open("/proc/cpuinfo") as lines:
        return "avx512f" in {flag for line in lines if line.startswith("flags") for flag in line.split()}


def outside_environment() -> dict[str, str]:
    """The environment of a system that is not ours: nothing of our settings or interpreter."""
    foreign = ("SLUICE_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def free_port() -> int:
    """Free a moment ago, on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
