"""Which processor cores who runs on. What is measured gets one to itself; on a single core all share it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Cores = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a gateway runs, and where all else does: store, engine, load generator."""

    gateway: Cores
    others: Cores

    def __str__(self) -> str:
        return f"gateway on {_named(self.gateway)}, everything else on {_named(self.others)}"


def pinned() -> Layout:
    """The gateway alone on the first core that we may use."""
    first, *rest = sorted(os.sched_getaffinity(0))
    return Layout(gateway=frozenset({first}), others=frozenset(rest or [first]))


def shared() -> Layout:
    """Everybody anywhere, as where several workers run."""
    everywhere = frozenset(os.sched_getaffinity(0))
    return Layout(gateway=everywhere, others=everywhere)


@contextmanager
def on_cores(cores: Cores) -> Iterator[None]:
    """Processes that are started in the block stay on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _named(cores: Cores) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {', '.join(map(str, sorted(cores)))}"
