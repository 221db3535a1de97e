"""What this machine can do at best: the measure that benchmarks hold the operators against."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.tensors import address

_ROUNDS = 2_000_000
_READ_FLOATS = 64 << 20  # 256 MiB: more than a cache holds
_NUM_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """The best that all threads together reached, in units of 10^9 a second."""

    gflops: float
    """Float multiply-adds, each counted as two, on registers alone."""

    int8_gops: float | None
    """Multiply-adds of int8 as the level computes them; None where it has no instruction for them."""

    read_gbps: float
    """Bytes read from memory."""


def measure(library: ctypes.CDLL) -> MachineLimits:
    """Takes a second or two, with the library's number of threads."""
    rounds = ctypes.c_int64(_ROUNDS)
    library.sluice_machine_float_operations.restype = ctypes.c_double
    library.sluice_machine_int8_operations.restype = ctypes.c_double
    memory = torch.ones(_READ_FLOATS)
    num_int8 = library.sluice_machine_int8_operations(ctypes.c_int64(1))
    num_floats = library.sluice_machine_float_operations(ctypes.c_int64(1))
    return MachineLimits(
        gflops=num_floats * _ROUNDS / _best(lambda: library.sluice_machine_float_operations(rounds)) / 1e9,
        int8_gops=num_int8 * _ROUNDS / _best(lambda: library.sluice_machine_int8_operations(rounds)) / 1e9
        if num_int8
        else None,
        read_gbps=memory.nbytes
        / _best(lambda: library.sluice_machine_read(address(memory), ctypes.c_int64(_READ_FLOATS)))
        / 1e9,
    )


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few tries: others use the machine, too."""
    seconds = []
    for _ in range(_NUM_TRIES):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
