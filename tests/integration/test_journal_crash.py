"""A process that is killed while it writes has lost nothing that it had written down."""

import signal
import subprocess
import sys
from pathlib import Path

from gateway.usage.journal_lives import abandoned, remove, replay

WRITER = """
import sys
from pathlib import Path
from gateway.usage.journal import Journal
from tests.builders.journals import closed, opened

journal = Journal.open(Path(sys.argv[1]), 1, segment_bytes=20_000)
for number in range(1_000_000):
    journal.append(opened(f"{number}"))
    if number % 2:
        journal.append(closed(f"{number}"))
    print(number, flush=True)
"""
NUM_BEFORE_THE_KILL = 3_000


def test_a_process_killed_while_it_writes_loses_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(NUM_BEFORE_THE_KILL):
            writer.stdout.readline()
        assert abandoned(tmp_path) == [], "it lives"
        writer.send_signal(signal.SIGKILL)
        num_written = NUM_BEFORE_THE_KILL + writer.stdout.read().count("\n")
    (life,) = abandoned(tmp_path)
    replayed = replay(life)
    assert set(replayed.open) >= {f"{number}" for number in range(0, num_written, 2)}
    assert set(replayed.closed) >= {f"{number}" for number in range(1, num_written, 2)}
    assert len(replayed.open) + len(replayed.closed) <= num_written + 1
    remove(life)
    assert abandoned(tmp_path) == []
