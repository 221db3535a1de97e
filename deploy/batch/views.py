"""What is seen of a wait: a live bar on a terminal, a plain line for each change elsewhere, or nothing."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.batch.pace import Pace
from deploy.batch.watching import View
from deploy.batch.wire import Sighting, standing

STEPS: Final = 100  # lines for counts alone: one a per cent, however many items there are
_COLUMNS: Final = (
    "[bold]{task.fields[status]}",
    "{task.fields[done]}",
    "{task.fields[failed]}",
    "{task.fields[rate]}",
    "{task.fields[left]}",
)


class Nothing:
    """For who wants the end only."""

    def show(self, seen: Sighting) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Lines:
    """Plain text, a line where something has changed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: tuple[object, ...] | None = None

    def show(self, seen: Sighting) -> None:
        """A line for a new state, and for each per cent."""
        counts = seen.batch.request_counts
        step = counts.done * STEPS // counts.total if counts.total else 0
        if self._last != (now := (seen.batch.status, counts.total, step)):
            self._tell(standing(seen.batch))
        self._last = now

    def say(self, text: str) -> None:
        """A line."""
        self._tell(text)


class Bar:
    """One line that moves: state, counts, rate and what is left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, status="", done="", failed="", rate="", left="")
        self._pace = Pace()

    def show(self, seen: Sighting) -> None:
        """Moves the bar."""
        counts = seen.batch.request_counts
        if counts.total:
            self._pace.note(time.monotonic(), counts.done)
        rate = self._pace.items_per_second()
        self._progress.update(
            self._task,
            total=counts.total or None,
            completed=counts.done,
            status=escape(seen.batch.status),
            done=f"{counts.done:,} of {counts.total:,}" if counts.total else "",
            failed=f"[red]{counts.failed:,} failed" if counts.failed else "",
            rate="" if rate is None else f"{rate:,.1f}/s",
            left=self._left(seen),
        )

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(escape(text), highlight=False)

    def _left(self, seen: Sighting) -> str:
        """The server knows its other work; where it says nothing, what was seen of late."""
        counts = seen.batch.request_counts
        if seen.batch.is_over or not counts.total:
            return ""
        seconds = self._pace.seconds_left(counts.total - counts.done)
        if seen.estimated_end is not None:
            seconds = max(0.0, seen.estimated_end - time.time())
        return "" if seconds is None else f"about {duration(seconds)} left"


@contextmanager
def view_on(console: Console) -> Iterator[View]:
    """A bar where the console is a terminal, and lines where it is not."""
    if not console.is_terminal:
        yield Lines(lambda text: print(text, file=console.file, flush=True))
        return
    texts = [TextColumn(text) for text in _COLUMNS]
    with Progress(texts[0], BarColumn(), *texts[1:], TimeElapsedColumn(), console=console) as progress:
        yield Bar(progress)


def duration(seconds: float) -> str:
    """The two largest units: 42 s, 12 min, 3 h 5 min."""
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
