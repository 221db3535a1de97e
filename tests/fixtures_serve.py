"""`sluice serve` as a process: with a tiny model for tests of processes, with the default one for answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.sluice_process import SluiceProcess
from tests.builders.tiny_llama import write_tiny_llama

# What answers say is asked here, on however slow a machine; what guardrails do is asked elsewhere.
PATIENT_SLO = {"slo.ttft_p95_ms": 600_000, "slo.itl_p95_ms": 60_000, "slo.queue_wait_p95_ms": 600_000}


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model of a few thousand weights, named `tiny`."""
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Iterator[SluiceProcess]:
    """One `sluice serve` with the default model, shared by the tests that only ask it questions."""
    running = SluiceProcess(tmp_path_factory.mktemp("served"), model=default_model_dir, settings=PATIENT_SLO)
    yield running
    assert running.stop() == 0
