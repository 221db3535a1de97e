"""A load over HTTP, by `sluice bench` in a process of its own: the same generator for every server."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.bench.figures import Figures
from deploy.bench.report import read_json
from tests.benchmarks.peers.loads import Load
from tests.benchmarks.peers.logged import run_logged
from tests.benchmarks.peers.system import PEERS


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    """A server that runs at `url`."""

    url: str
    key: str | None = None

    def carry_out(self, load: Load, *, seed: int) -> Figures:
        """What the load took; raises NotAvailable when the server does not answer."""
        with TemporaryDirectory() as directory:
            report = Path(directory) / "report.json"
            run_logged(
                _command(self.url, load, seed, report),
                what=load.name,
                log=PEERS / "bench.log",
                environment={**os.environ, **({} if self.key is None else {"SLUICE_BENCH_KEY": self.key})},
            )
            return read_json(report).runs[0].figures


def _command(url: str, load: Load, seed: int, report: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "deploy", "bench", "--url", url, "--seed", str(seed), "--json", str(report)),
        *("--concurrency", str(load.concurrency), "--num-requests", str(load.num_requests)),
        *("--prompt-tokens", str(load.num_prompt_tokens), "--output-tokens", str(load.num_output_tokens)),
    ]
