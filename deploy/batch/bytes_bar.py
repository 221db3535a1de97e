"""The bar of an upload or a download: on standard error, and only where a person sees it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

Tell = Callable[[int], None]


@contextmanager
def bytes_bar(label: str, num_bytes: int | None, *, is_hidden: bool = False) -> Iterator[Tell]:
    """Gives what is to be called with the size of each piece; of an unknown size only the pieces show."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    is_seen = console.is_terminal and not is_hidden
    with Progress(*columns, console=console, transient=True, disable=not is_seen) as progress:
        task = progress.add_task(label, total=num_bytes)
        yield lambda size: progress.advance(task, size)
