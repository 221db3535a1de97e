"""LiteLLM's proxy in an environment of its own: one worker, no database, a master key, one upstream."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.gateway.cores import Cores, on_cores
from tests.benchmarks.gateway.http_request import MODEL, Address
from tests.benchmarks.peers.environments import Recipe, prepare
from tests.benchmarks.peers.server_process import serving
from tests.benchmarks.peers.system import PEERS, free_port, outside_environment

VERSION: Final = "1.106.12"  # the newest of which every part can be installed
MASTER_KEY: Final = "sk-bench"
START_TIMEOUT_SECONDS: Final = 180.0  # it imports for a minute on a busy core
RECIPE: Final = Recipe(name="litellm", requirements=(f"litellm[proxy]=={VERSION}",), note=" (some minutes)")
# What its own guide recommends for production, and nothing fetched from outside.
_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "NO_PROXY": "*",
}


def install() -> None:
    """Raises NotAvailable."""
    PEERS.mkdir(parents=True, exist_ok=True)
    prepare(RECIPE)


@contextmanager
def running_litellm(upstream: Address, cores: Cores) -> Iterator[Address]:
    """The proxy in front of `upstream`, with MASTER_KEY; raises NotAvailable."""
    port = free_port()
    with TemporaryDirectory() as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(json.dumps(_config(upstream)))  # JSON is YAML
        command = [
            *(RECIPE.binary("litellm"), "--config", str(config), "--num_workers", "1"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
        with (
            on_cores(cores),
            serving(
                command,
                f"http://127.0.0.1:{port}",
                environment=outside_environment() | _ENVIRONMENT,
                log=PEERS / "litellm.log",
                start_timeout_seconds=START_TIMEOUT_SECONDS,
                ready_path="/health/liveliness",
            ),
        ):
            yield Address(host="127.0.0.1", port=port)


def _config(upstream: Address) -> dict[str, object]:
    parameters = {"model": f"openai/{MODEL}", "api_base": f"{upstream.url}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": MASTER_KEY},
    }
