"""How much of one core some processes take, and the memory that they hold, by /proc."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MEMORY: Final = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@dataclass
class Share:
    """Of one core, 1 being all of it; known once its block has ended."""

    value: float = 0.0


@contextmanager
def share_of_core(pids: Sequence[int]) -> Iterator[Share]:
    """Measures the block."""
    share, began_at, before = Share(), time.monotonic(), processor_seconds(pids)
    yield share
    share.value = (processor_seconds(pids) - before) / (time.monotonic() - began_at)


def processor_seconds(pids: Sequence[int]) -> float:
    """Used so far, by those that still run."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def resident_mib(pids: Sequence[int]) -> float:
    """Memory of their own that is resident: what they share, segments and code, would count many times."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total += sum(int(kilobytes) for kilobytes in _MEMORY.findall(status))
    return total / 1024
