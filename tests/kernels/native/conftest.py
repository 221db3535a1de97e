"""Each native operator at every level that this machine can run, over memory that holds NaN until written."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.native import Level, load, usable_levels

EMULATED = Level(
    "avx512_vnni_emulated",
    ("-mavx2", "-mfma", "-include", str(Path(__file__).with_name("emulated_avx512.h"))),
    frozenset({"avx2", "fma"}),
)
"""The code for AVX-512 with its instructions written out, so that any machine shows whether it is right."""


@pytest.fixture(
    params=[*usable_levels(), pytest.param(EMULATED, marks=pytest.mark.slow)], ids=lambda level: level.name
)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The operators compiled for one level."""
    level: Level = request.param
    library = load(level)
    library.sluice_set_num_threads(ctypes.c_int(2))
    return library


@pytest.fixture(autouse=True)
def _empty_memory_is_nan() -> Iterator[None]:
    """What torch.empty gives is NaN, or the largest number, so that what nobody wrote is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
