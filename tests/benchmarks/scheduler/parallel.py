"""Independent simulations on all CPUs. They are deterministic, so it does not matter where each one runs."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def simulate_all(simulate: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
    """The results, in the order of the jobs. Not for what measures wall-clock time."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(simulate, jobs))
