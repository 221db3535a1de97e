"""The default model for tests, fetched and converted once per checkout."""

from pathlib import Path

import pytest

from deploy.models import DEFAULT_MODEL, find

CACHE = Path(__file__).parents[1] / ".cache"


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's Hugging Face directory."""
    return find(DEFAULT_MODEL, CACHE)
