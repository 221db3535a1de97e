"""What torch computes here is small: its threads would wait for one another longer than they work."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _torch_on_one_thread() -> Iterator[None]:
    """Native operators have threads of their own, and keep them."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
