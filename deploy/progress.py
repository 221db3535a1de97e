"""What `sluice serve` tells while it starts: one line for each step, with the time it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Lines on standard output. Plain text: it may be a terminal, a log or a pipe."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def say(self, text: str) -> None:
        """Something happened that a person at the terminal should know."""
        print(f"  · {text}", flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Names what begins, and says how long it took once the block ends."""
        began_at = time.monotonic()
        print(f"  … {name}", flush=True)
        yield
        print(f"  ✓ {name} ({time.monotonic() - began_at:.1f} s)", flush=True)

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started_at
