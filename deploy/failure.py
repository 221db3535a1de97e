"""How a process ends for a foreseeable reason: one line on standard error, and status 1 or 2."""

import sys
from typing import NoReturn


class Failure(Exception):
    """A command cannot do what was asked; the message is one line that says why and what to do."""


def fail(message: object, *, status: int = 1) -> NoReturn:
    """Prints the line and ends this process."""
    print(f"sluice: {message}", file=sys.stderr, flush=True)
    raise SystemExit(status)
