"""`sluice serve` as a process, with the default model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.sluice_process import SluiceProcess

# What answers say is asked here, on however slow a machine; what guardrails do is asked elsewhere.
PATIENT_SLO = {"slo.ttft_p95_ms": 600_000, "slo.itl_p95_ms": 60_000, "slo.queue_wait_p95_ms": 600_000}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Iterator[SluiceProcess]:
    """One `sluice serve` with the default model, shared by the tests that only ask it questions."""
    running = SluiceProcess(tmp_path_factory.mktemp("served"), model=default_model_dir, settings=PATIENT_SLO)
    yield running
    assert running.stop() == 0
